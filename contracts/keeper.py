"""Copies what an attempt leaves on this machine's disk to a bucket, while it works and when it ends.

Events, errors and TensorBoard's files are appended to as work goes on; objects of a bucket cannot be. So they are
written on the disk, and copied whole when they have changed: a machine that goes away takes an interval of them along
(30 s, less in the first minutes), and nothing that training continues from.
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
# At first more often: of a machine that goes away after a minute, what it told would else be gone with it.
SHARE_OF_LIFE, SHORTEST_INTERVAL_S = 0.1, 1.0


class Keeper:
    """Copies folders of this machine to URIs, in a thread, until it is closed."""

    def __init__(self) -> None:
        self._folders: dict[Path, list[str]] = {}
        self._copied: dict[tuple[Path, str], tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, folder: Path, uri: str) -> None:
        """Copy a folder too, once there is one; files in it that another call named go where that one says.

        A folder that is named twice goes to both places.
        """
        with self._lock:
            self._folders.setdefault(folder, []).append(uri)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="copies events to the bucket", daemon=True)
            self._thread.start()

    def close(self) -> bool:
        """Copy what has changed since, and stop; whether all is copied."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        return self.copy()

    def copy(self) -> bool:
        """Copy what has changed; whether all is copied. What cannot be is said, and tried again the next time."""
        with self._lock:
            # The deepest folder that holds a file decides where it goes.
            folders = sorted(self._folders.items(), key=lambda item: len(item[0].parts), reverse=True)
            seen: set[Path] = set()
            complete = True
            for folder, uris in folders:
                for path in sorted(path for path in folder.rglob("*") if path.is_file() and path not in seen):
                    seen.add(path)
                    for uri in uris:
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
        while not self._stop.wait(self._interval_s(time.monotonic() - began)):
            self.copy()

    def _interval_s(self, age_s: float) -> float:
        """Return how long to wait for the next copy: a tenth of what has passed, so that no more than that is lost."""
        return min(COPY_INTERVAL_S, max(SHORTEST_INTERVAL_S, age_s * SHARE_OF_LIFE))


def open_events(name: str, options: argparse.Namespace, attempt: str, *, keep: bool) -> tuple[EventLog, Keeper | None]:
    """Open the events of an attempt; of an output in a bucket they are on this machine's disk, and are copied.

    Args:
        name: Of the stage.
        options: Its command line.
        attempt: Id of the attempt.
        keep: Whether they are copied to a bucket.

    Raises:
        StorageError: The folder cannot be made.
    """
    folder, keeper = Path(options.events) if options.events else None, None
    if not options.looks:
        # The parent of one output folder is what --root is for many: attempts lie beside the outputs in both.
        place = storage.normalise(options.root or parent_of(options.output or "") or ".")
        if not storage.is_local(place) and keep:
            keeper = Keeper()
            folder = folder or Path(tempfile.mkdtemp(prefix="shardline-"))
            keeper.add(folder, storage.join(place, ATTEMPTS_FOLDER, attempt))
        elif storage.is_local(place) and folder is None and (options.root or options.output):
            folder = storage.local_path(place) / ATTEMPTS_FOLDER / attempt
    try:
        return EventLog(folder, stage=name, attempt=attempt), keeper
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be made ({error.strerror})",
            allowed="a folder that you may write, or one that can be made",
            todo="choose another folder, or correct its permissions",
        ) from None


def parent_of(uri: str) -> str:
    """Return the URI of the folder that holds another."""
    return uri.rstrip("/").rpartition("/")[0]
