"""Folders of rehearsals, and what killed ones have left: processes, temporary folders, links to machines' disks.

A rehearsal holds the lock of an entry that names its folder, beside the temporary folders. The kernel lets go of the
lock when the process has ended, whatever ended it: the next start finds the entry and removes what is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from contracts.errors import ConfigError
from rehearsal.machines.processes import MARK_VARIABLE, find_marked

LINKS_PREFIX = "shl-"
"""Of the folders of links to machines' disks (rehearsal/jobs/gang.py)."""
_FOLDER_PREFIX = "shardline-rehearsal-"
# Between the creation of an entry and its lock lie microseconds.
_UNFINISHED_S = 60.0
_END_LIMIT_S = 30.0


@contextlib.contextmanager
def claimed_folder(keep: Path | None = None) -> Iterator[Path]:
    """Yield the folder of a rehearsal, once what killed rehearsals of this user have left is removed.

    Args:
        keep: The folder; None: a temporary one, which is removed at the end.

    Raises:
        ConfigError: The folder of entries is not this user's own.
    """
    places = Path(tempfile.gettempdir()).absolute()
    entries = places / f"shardline-rehearsals-{os.getuid()}"
    _require_own(entries)
    for entry in list(entries.iterdir()):
        _remove_leftovers(entry)
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX)) if keep is None else keep
    # Complete and locked before it has the name by which others take it for an entry.
    unfinished, entry = entries / f".{uuid.uuid4().hex}", entries / uuid.uuid4().hex
    with unfinished.open("x") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        json.dump({"folder": str(folder.absolute()), "is_temporary": keep is None, "places": str(places)}, stream)
        stream.flush()
        unfinished.rename(entry)
        try:
            yield folder
        finally:
            if keep is None:
                shutil.rmtree(folder, ignore_errors=True)
            entry.unlink(missing_ok=True)


def _require_own(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"{folder} is not a folder of this user alone",
            allowed="a folder with the permissions 0700",
            todo="remove it, or set TMPDIR to a folder of your own",
        )


def _remove_leftovers(entry: Path) -> None:
    """Remove what the rehearsal of an entry has left, unless it still runs."""
    with contextlib.suppress(FileNotFoundError, BlockingIOError), entry.open("r+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        content = stream.read()
        if entry.name.startswith("."):
            if time.time() - entry.stat().st_mtime > _UNFINISHED_S:
                entry.unlink()
            return
        found = json.loads(content)
        folder = Path(found["folder"])
        _end_processes(folder)
        for links in Path(found["places"]).glob(f"{LINKS_PREFIX}*"):
            if any(link.readlink().is_relative_to(folder) for link in links.iterdir() if link.is_symlink()):
                shutil.rmtree(links, ignore_errors=True)
        if found["is_temporary"]:
            shutil.rmtree(folder, ignore_errors=True)
        entry.unlink(missing_ok=True)


def _end_processes(folder: Path) -> None:
    """End the processes that a rehearsal in a folder has started; who was only led to its cloud goes on."""
    if not Path("/proc/self/environ").exists():
        return
    deadline = time.monotonic() + _END_LIMIT_S
    while left := set(find_marked(f"{folder}/")) & set(find_marked(f"{MARK_VARIABLE}=")):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ConfigError(
                f"processes {', '.join(map(str, sorted(left)))} of a killed rehearsal do not end",
                allowed="a machine on which nothing of it runs",
                todo="end them",
            )
        time.sleep(0.05)
