"""Signs of life: a worker that works keeps changing a small file, and the command watches that none stands still.

Needed where the workers are somebody else's (a job service): a killed one leaves such a job waiting forever, and no
message says so. One that is killed at work leaves a file that stands still; one that is killed between two steps, or
before its first, leaves none, and after a while nobody is at work. Where Beam or the platform notices, nothing is
written.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator

from contracts import storage
from contracts.errors import ShardlineError
from sharding.job import JobHandle

BEAT_INTERVAL_S = 2.0
# Of its own: beside it lies a record for each shard.
_FOLDER = "alive"


@contextlib.contextmanager
def beating(job: JobHandle) -> Iterator[None]:
    """Show signs of life while the block runs, where the job asks for them."""
    if not job.beats:
        yield
        return
    uri = storage.join(job.work_uri, _FOLDER, uuid.uuid4().hex)
    ended = threading.Event()

    def beat() -> None:
        number = 0
        while not ended.wait(BEAT_INTERVAL_S if number else 0):
            number += 1
            # A bucket that does not answer for a while is no death; what is wrong for good, the work itself will say.
            with contextlib.suppress(OSError, ShardlineError):
                storage.replace(uri, str(number).encode())

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        # Must not take the place of how the block ended.
        with contextlib.suppress(OSError, ShardlineError):
            storage.delete(uri)


class Monitor:
    """Watches the signs of life below a folder, by the clock of the watching process.

    Args:
        work_uri: Folder of what the job needs until its manifest is there.
        silence_s: Seconds without a change after which a worker at work counts as gone.
        idle_s: Seconds without any worker at work after which all count as gone.
    """

    def __init__(self, work_uri: str, silence_s: float, idle_s: float) -> None:
        self._folder = storage.join(work_uri, _FOLDER)
        self._silence_s = silence_s
        self._idle_s = idle_s
        self._seen: dict[str, tuple[bytes, float]] = {}
        self._busy_at = time.monotonic()

    def find_dead(self) -> bool:
        """Whether a worker stopped in the middle of its work, looked at for a few of its beats."""
        deadline = time.monotonic() + 3 * BEAT_INTERVAL_S
        while self.find_silent(0) is not None or self._seen:
            if time.monotonic() > deadline:
                return self.find_silent(2 * BEAT_INTERVAL_S) is not None
            time.sleep(BEAT_INTERVAL_S / 4)
        return False

    def find_silent(self, silence_s: float | None = None) -> float | None:
        """Return the seconds that a worker has been silent for, when that is more than `silence_s` (or the limit)."""
        now = time.monotonic()
        seen = {}
        for name in storage.list_names(self._folder):
            if name.startswith(storage.TEMPORARY_PREFIX):
                continue
            try:
                content = storage.read_bytes(storage.join(self._folder, name))
            except FileNotFoundError:
                continue  # its work ended in between
            before, since = self._seen.get(name, (b"", now))
            seen[name] = (content, since if before == content else now)
        self._seen = seen
        if seen:
            self._busy_at = now
        longest = max((now - since for _, since in seen.values()), default=0.0)
        return longest if longest > (self._silence_s if silence_s is None else silence_s) else None

    def find_idle(self) -> float | None:
        """Return the seconds that nobody has been at work for, up to now, when that is more than the limit.

        What was seen is what `find_silent` saw.
        """
        idle_s = time.monotonic() - self._busy_at
        return idle_s if idle_s > self._idle_s else None
