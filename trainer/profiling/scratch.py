"""A folder of this machine for one profiling run; those of runs that were killed are deleted by the next one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "shardline-profile-"
_LOCK_NAME = "lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a new folder, and delete it afterwards; first delete those whose processes are gone."""
    root = Path(tempfile.gettempdir())
    for left in root.glob(f"{PREFIX}*"):
        _delete_if_left(left)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    # Held as long as this process lives, however it ends.
    with (folder / _LOCK_NAME).open("w") as lock:
        _try_lock(lock.fileno())
        try:
            inside = folder / "work"
            inside.mkdir()
            yield inside
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _delete_if_left(folder: Path) -> None:
    try:
        with (folder / _LOCK_NAME).open("r+") as lock:
            if not _try_lock(lock.fileno()):
                return
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        # Another user's, or one that is being made or deleted just now.
        return


def _try_lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
