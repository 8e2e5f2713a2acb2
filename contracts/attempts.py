"""Attempts of a stage whose output is in a bucket: written on this machine's disk, and copied while the work goes on.

Events, errors and TensorBoard's files are appended to, objects of a bucket cannot be: they are copied whole when they
have changed. A machine that goes away takes up to 30 s of them along (less in the first minutes), and nothing that
training continues from.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

from contracts import storage
from contracts.errors import ShardlineError, StorageError
from contracts.events import ATTEMPTS_FOLDER, EventLog

COPY_INTERVAL_S = 30.0
# At first more often, a tenth of the time since the start: a machine that goes away after a minute has told something.
_SHARE_OF_LIFE, _SHORTEST_INTERVAL_S = 0.1, 1.0


class Copier:
    """Copies folders of this machine to URIs, in a thread, until it is closed."""

    def __init__(self) -> None:
        self._folders: list[tuple[Path, str]] = []
        self._copied: dict[tuple[Path, str], tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="copies events to the bucket", daemon=True)

    def add(self, folder: Path, uri: str) -> None:
        """Copy a folder too, once there is one; a folder in another one that is added goes to its own URI alone."""
        with self._lock:
            self._folders.append((folder, uri))
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> bool:
        """Copy what has changed since, and stop; whether all is copied."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        return self.copy()

    def copy(self) -> bool:
        """Copy what has changed; whether all is copied. What cannot be is reported, and tried again the next time."""
        complete = True
        with self._lock:
            added = {folder for folder, _ in self._folders}
            for folder, uri in self._folders:
                try:
                    paths = sorted(path for path in folder.rglob("*") if path.is_file())
                except OSError as error:
                    print(f"{folder} was not copied to {uri}: {error}", file=sys.stderr, flush=True)
                    complete = False
                    continue
                for path in paths:
                    if next(parent for parent in path.parents if parent in added) == folder:
                        complete &= self._copy_file(path, storage.join(uri, *path.relative_to(folder).parts))
        return complete

    def _copy_file(self, path: Path, uri: str) -> bool:
        if path.name.startswith(storage.TEMPORARY_PREFIX):
            return True
        try:
            state = path.stat()
            version = (state.st_size, state.st_mtime_ns)
            if self._copied.get((path, uri)) != version:
                storage.replace(uri, path.read_bytes())
                self._copied[path, uri] = version
        except FileNotFoundError:
            return True
        except (OSError, ShardlineError) as error:
            # Work goes on without: what is copied only tells about it.
            print(f"{path} was not copied to {uri}: {error}", file=sys.stderr, flush=True)
            return False
        return True

    def _work(self) -> None:
        began = time.monotonic()
        interval_s = _SHORTEST_INTERVAL_S
        while not self._stop.wait(min(COPY_INTERVAL_S, interval_s)):
            self.copy()
            interval_s = max(_SHORTEST_INTERVAL_S, (time.monotonic() - began) * _SHARE_OF_LIFE)


def open_attempt(name: str, options: argparse.Namespace, attempt: str, *, keep: bool) -> tuple[EventLog, Copier | None]:
    """Open the events of an attempt, beside the outputs; of a bucket's, on this machine's disk.

    Args:
        name: Of the stage.
        options: Its command line.
        attempt: Id of the attempt.
        keep: Whether they are copied to a bucket.

    Raises:
        StorageError: The folder cannot be made.
    """
    folder, copier = Path(options.events) if options.events else None, None
    if not options.looks and (options.root or options.output):
        # The parent of one output folder is what --root is for many: attempts lie beside the outputs in both.
        place = storage.normalise(options.root or parent_of(options.output))
        if storage.is_local(place):
            folder = folder or storage.local_path(place) / ATTEMPTS_FOLDER / attempt
        elif keep:
            copier = Copier()
            folder = folder or Path(tempfile.mkdtemp(prefix="shardline-"))
            copier.add(folder, storage.join(place, ATTEMPTS_FOLDER, attempt))
    try:
        return EventLog(folder, stage=name, attempt=attempt), copier
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be made ({error.strerror})",
            allowed="a folder that you may write, or one that can be made",
            todo="choose another folder, or correct its permissions",
        ) from None


def parent_of(uri: str) -> str:
    """Return the URI of the folder that holds another."""
    return uri.rstrip("/").rpartition("/")[0]
