"""A folder of this machine for one profiling run; those of runs that were killed are deleted by the next one."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "shardline-profile-"
_LOCK_NAME = "lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a new folder, and delete it afterwards; first delete those whose processes are gone."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Of a process that lives, of another user, or one that is being made or deleted just now.
        with suppress(OSError), (left / _LOCK_NAME).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    # Held as long as this process lives, however it ends.
    with (folder / _LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            inside = folder / "work"
            inside.mkdir()
            yield inside
        finally:
            shutil.rmtree(folder, ignore_errors=True)
