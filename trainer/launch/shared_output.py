"""Whether machines share their output: each shows it by a file of its own, which the first machine looks for.

The first rank writes checkpoints and the result, and all ranks and launchers read them: with a folder per machine a
training would come to its end, and fail there.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from contracts import storage
from contracts.errors import StorageError
from trainer.launch.messages import Message

TOKEN_PREFIX = ".machine-"
# For a mounted folder to show what another machine has written.
_PATIENCE_S = 3.0
_POLL_S = 0.2


@contextmanager
def shown_output(folder: str) -> Iterator[str]:
    """Give the name of a new file in a local training folder, deleted at the end; in a bucket there is none.

    Where it cannot be written, its absence says so.
    """
    token = f"{TOKEN_PREFIX}{uuid.uuid4().hex}"
    if not storage.is_local(folder):
        yield ""
        return
    with suppress(OSError, StorageError):
        storage.publish(storage.join(folder, token), b"")
    try:
        yield token
    finally:
        with suppress(OSError, StorageError):
            storage.delete(storage.join(folder, token))


def is_shared(folder: str, hello: Message) -> bool:
    """Whether the machine that says hello writes to this machine's training folder."""
    if not storage.is_local(folder) or not storage.is_local(hello.output):
        return hello.output == folder
    deadline = time.monotonic() + _PATIENCE_S
    while not storage.exists(storage.join(folder, hello.token)):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
