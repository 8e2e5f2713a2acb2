"""Folders of rehearsals, and cleanup after killed ones: processes, temporary folders, links to machines' disks.

A rehearsal locks an entry file with the path of its folder. The kernel releases the lock when the process ends, so the
next rehearsal detects entries of killed ones and removes their leftovers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from contracts.errors import ConfigError
from rehearsal.machines.machine import LINKS_PREFIX
from rehearsal.machines.processes import MARK_VARIABLE, end_processes, has_mark

_FOLDER_PREFIX = "shardline-rehearsal-"
# Age after which an unlocked, unfinished entry is stale: it is locked microseconds after its creation.
_UNFINISHED_S = 60.0


@contextlib.contextmanager
def claimed_folder(keep: Path | None = None) -> Iterator[Path]:
    """Remove leftovers of this user's killed rehearsals, then yield the folder of a new one.

    Without `keep` the folder is temporary and removed at the end.

    Raises:
        ConfigError: Other users may write to the folder of entries, an entry is damaged, or processes of a killed
            rehearsal do not end.
    """
    places = Path(tempfile.gettempdir()).absolute()
    entries = places / f"shardline-rehearsals-{os.getuid()}"
    _require_private(entries)
    for entry in list(entries.iterdir()):
        _remove_leftovers(entry)
    # Created only after its entry, so that every folder has one.
    folder = places / f"{_FOLDER_PREFIX}{uuid.uuid4().hex}" if keep is None else keep
    # Written and locked under a temporary name first.
    unfinished, entry = entries / f".{uuid.uuid4().hex}", entries / uuid.uuid4().hex
    with unfinished.open("x") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        json.dump({"folder": str(folder.absolute()), "is_temporary": keep is None, "places": str(places)}, stream)
        stream.flush()
        os.fsync(stream.fileno())
        unfinished.rename(entry)
        try:
            if keep is None:
                folder.mkdir(mode=0o700)
            yield folder
        finally:
            if keep is None:
                shutil.rmtree(folder, ignore_errors=True)
            entry.unlink(missing_ok=True)


def _require_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"{folder} is not a folder of this user alone",
            allowed="a folder with the permissions 0700",
            todo="remove it, or set TMPDIR to a folder of your own",
        )


def _remove_leftovers(entry: Path) -> None:
    """Remove the leftovers of an entry's rehearsal, unless it still runs."""
    with contextlib.suppress(FileNotFoundError, BlockingIOError), entry.open("r+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if entry.name.startswith("."):
            if time.time() - entry.stat().st_mtime > _UNFINISHED_S:
                entry.unlink()
            return
        try:
            values = json.load(stream)
            folder, places, is_temporary = Path(values["folder"]), Path(values["places"]), values["is_temporary"]
        except (ValueError, LookupError, TypeError):
            raise ConfigError(
                f"{entry} is damaged: it should name the folder of a killed rehearsal",
                allowed="a JSON object with folder, places and is_temporary",
                todo=f"remove it, and in {entry.parent.parent} the folders {_FOLDER_PREFIX}* that no rehearsal uses",
            ) from None
        _end_processes(folder)
        for links in places.glob(f"{LINKS_PREFIX}*"):
            # Those of other users cannot be read.
            if links.lstat().st_uid != os.getuid():
                continue
            if any(link.readlink().is_relative_to(folder) for link in links.iterdir() if link.is_symlink()):
                shutil.rmtree(links, ignore_errors=True)
        if is_temporary:
            shutil.rmtree(folder, ignore_errors=True)
        entry.unlink(missing_ok=True)


def _end_processes(folder: Path) -> None:
    """End the processes that a rehearsal in a folder started, but not other clients of its cloud."""
    if not Path("/proc/self/environ").exists():
        return
    survivors = end_processes(lambda pid: has_mark(pid, f"{folder}/") and has_mark(pid, f"{MARK_VARIABLE}="))
    if survivors:
        raise ConfigError(
            f"processes {', '.join(map(str, survivors))} of a killed rehearsal do not end",
            allowed="no running processes of it",
            todo="end them",
        )
