"""Short places for the sockets by which loader processes hand over tensors.

A loader process shares a batch by a file descriptor, which it sends through a socket in the temporary folder. The path
of such a socket has at most 107 bytes (https://man7.org/linux/man-pages/man7/unix.7.html); in a longer one it fails
in a thread of multiprocessing's, which drops the batch, and training waits for ever. Seen where TMPDIR was that long.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from multiprocessing import process, util
from typing import Any

_MOST_BYTES = 107
# What multiprocessing adds to the temporary folder.
_FOLDER, _SOCKET = "/pymp-xxxxxxxx", "/listener-xxxxxxxx"
_SHORT = "/tmp"


def shorten_socket_paths() -> None:
    """See to it that this process, and loader processes that it starts from now on, use paths that fit.

    Does nothing where the temporary folder is short enough. CPython does the same from 3.14 on.
    """
    configuration: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
    place = configuration.get("tempdir") or tempfile.gettempdir() + _FOLDER
    if len(os.fsencode(place + _SOCKET)) <= _MOST_BYTES:
        return
    folder = tempfile.mkdtemp(prefix="pymp-", dir=_SHORT)
    util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
    configuration["tempdir"] = folder
