"""Attempts of a stage with an output in a bucket: written to the local disk and copied periodically.

Events, errors and TensorBoard files grow, and objects cannot be appended to, so changed files are copied whole. A
preempted machine loses up to 30 s of them (less in the first minutes), but nothing that training resumes from.
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
# In the first minutes the interval is a tenth of the time since the start.
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
        """Also copy a folder, which may not exist yet; a folder nested in another added one is copied only once."""
        with self._lock:
            self._folders.append((folder, uri))
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> bool:
        """Stop, and copy the last changes; return whether all files are copied."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        return self.copy()

    def copy(self) -> bool:
        """Copy changed files; return whether all are copied. Failures are reported and retried by the next call."""
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
            # The copies are informational: the work continues without them.
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
        name: Name of the stage.
        options: Its command line.
        attempt: Id of the attempt.
        keep: Whether events are copied to a bucket.

    Raises:
        StorageError: The folder cannot be made.
    """
    folder, copier = Path(options.events) if options.events else None, None
    if not options.looks and (options.root or options.output):
        # Attempts are beside the outputs: in --root, or in the parent of --output.
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
