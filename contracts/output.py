"""Output folders: exclusive lock, ownership marker, safe deletion.

The lock file is beside the folder, since it is held while the folder is deleted. It is removed at the end; one that a
killed process has left blocks nothing.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from typing import TextIO

try:
    import fcntl
except ImportError:  # not Unix: what submits and looks needs no lock
    fcntl = None  # type: ignore[assignment]

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.errors import ConfigError, TryAgain

# Ownership marker of a folder given by --output: the name of its stage.
MARK_NAME = ".stage"
# Room on the disk that the error of a stage needs.
LEAST_ROOM_BYTES = 2048
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Lock:
    """A lock on a local folder for the life of this process; the kernel drops it when the process dies.

    Args:
        uri: The folder; its parent is made. In a bucket nothing is locked.

    Raises:
        TryAgain: Another process holds it.
        ConfigError: This system has no such locks.
    """

    def __init__(self, uri: str) -> None:
        self._stream: TextIO | None = None
        if not storage.is_local(uri):
            return
        if fcntl is None:
            raise ConfigError(
                f"stages cannot run on {sys.platform}: it has no flock",
                allowed="Linux, or another Unix; plan, compile, submit, status and logs run anywhere",
                todo="run this on such a machine, or submit it",
            )
        folder = storage.local_path(uri)
        folder.parent.mkdir(parents=True, exist_ok=True)
        path = folder.with_name(f".{folder.name}.lock")
        stream = path.open("a+")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            stream.close()
            raise TryAgain(
                f"another process (pid {holder}) is working on {storage.display(uri)}; wait for it to end, or end it"
            ) from None
        if os.fstat(stream.fileno()).st_nlink == 0:
            # The former holder removed the file after it was opened here: a third process may have locked a new one.
            stream.close()
            raise TryAgain(f"another process has just ended its work on {storage.display(uri)}; start again")
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        self._stream = stream
        self._path = path

    def release(self) -> None:
        """Remove the lock file, then release the lock."""
        if self._stream is not None:
            self._path.unlink(missing_ok=True)
            self._stream.close()
            self._stream = None


def is_locked(uri: str) -> bool | None:
    """Whether a process on this machine holds the lock of a folder; None: there is no lock file, so it is unknown.

    A process that takes the lock during this check may be refused once.
    """
    folder = storage.local_path(uri)
    if fcntl is None:
        return None
    try:
        # O_NONBLOCK: opening a pipe of that name would wait.
        descriptor = os.open(folder.with_name(f".{folder.name}.lock"), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def require_room(uri: str) -> None:
    """Create a local folder and check that its disk is not full, since not even the error could be written.

    Raises:
        ConfigError: It is full.
        OSError: The folder cannot be written for another reason.
    """
    if not storage.is_local(uri):
        return
    folder = storage.local_path(uri)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(LEAST_ROOM_BYTES))
            file.flush()
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        raise ConfigError(
            f"{storage.display(uri)} cannot be written: {os.strerror(error.errno or 0)}",
            allowed="a disk with room for what the stage makes",
            todo=f"free space there (df -h {storage.display(uri)}), or set run.root, or --output, to another disk; the "
            "same command goes on where it stopped",
        ) from None


def check_apart(source: str | None, place: str) -> None:
    """Raise ConfigError when the shards would become files of their own source.

    Args:
        source: `sharding.source`.
        place: URI of the shard stage's output, or of the folder of its outputs.
    """
    if not source:
        return
    uri = storage.normalise(source)
    if f"{place}/".startswith(f"{uri}/"):
        raise ConfigError(
            f"the output {storage.display(place)} is inside of sharding.source {storage.display(uri)}",
            allowed="a folder outside of the source, which is never changed",
            todo="choose another --output or run.root",
        )


def mark_folder(uri: str, stage: str) -> None:
    """Mark a folder given by --output as owned by a stage; it must be new, empty, or marked by that stage.

    Raises:
        ConfigError: It holds files that no attempt of this stage has written.
    """
    mark = storage.join(uri, MARK_NAME)
    names = storage.list_names(uri)
    if names and MARK_NAME not in names:
        raise ConfigError(
            f"--output {storage.display(uri)} holds files that stage {stage} did not write "
            f"({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})",
            allowed="a new or an empty folder, or one that this stage has written",
            todo="choose another --output",
        )
    if names and storage.read_bytes(mark).decode(errors="replace").strip() != stage:
        raise ConfigError(
            f"--output {storage.display(uri)} belongs to another stage",
            allowed=f"a new or an empty folder, or one that stage {stage} has written",
            todo="choose another --output",
        )
    storage.replace(mark, f"{stage}\n".encode())


def empty_folder(uri: str) -> None:
    """Delete the content of a marked folder, manifests first, and keep the mark."""
    storage.delete(storage.join(uri, MANIFEST_NAME))
    for name in storage.list_names(uri):
        if name != MARK_NAME:
            entry = storage.join(uri, name)
            if not storage.is_local(entry) or storage.local_path(entry).is_dir():
                storage.delete_tree(entry, manifest_name=MANIFEST_NAME)
            if storage.exists(entry):
                storage.delete(entry)
