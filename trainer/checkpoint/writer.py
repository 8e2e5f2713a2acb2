"""The thread that writes what was staged, one checkpoint at a time, and commits it.

It stays out of training's way: pieces are small wherever the interpreter's lock is held (contracts/stores/local.py).
Its priority is that of training: with a lower one, on a busy machine, it would be set aside while it holds that lock.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

# Between two looks at whether the job that is waited for gets on.
LOOK_EVERY_S = 1.0


class Writer:
    """Runs one job at a time in a thread; remembers the first error until it is taken."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[int, Callable[[], None]]] = queue.SimpleQueue()
        self._free = [0]
        self._changed = threading.Condition()
        self._running = 0
        self._moved = 0
        self._moves_until = 0.0
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether something waits or runs."""
        return self._running > 0

    def get_on(self) -> None:
        """Say that a job gets on; called from its thread."""
        self._moved += 1

    def get_on_until(self, until: float) -> None:
        """Say that a job gets on until then, on the clock of time.monotonic, though it may not say so meanwhile."""
        self._moves_until = until

    def take_buffer(self, alive: Callable[[], None] | None = None) -> int | None:
        """Return the number of a free buffer; None when there is none, and it is not waited for.

        Raises what a job has raised.

        Args:
            alive: Wait for one, and call this while jobs get on.
        """
        if alive is not None:
            self.wait_for_buffer(alive)
        self.raise_error()
        with self._changed:
            return self._free.pop() if self._free else None

    def submit(self, buffer: int, job: Callable[[], None]) -> None:
        """Run `job` after those before it; `buffer` is free when it has ended."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="checkpoint writer", daemon=True)
            self._thread.start()
        with self._changed:
            self._running += 1
        self._jobs.put((buffer, job))

    def wait_for_buffer(self, alive: Callable[[], None]) -> None:
        """Wait until a buffer is free, and call `alive` while jobs get on."""
        self._wait_for(lambda: bool(self._free), alive)

    def wait(self, alive: Callable[[], None]) -> None:
        """Wait until nothing runs, and call `alive` while jobs get on."""
        self._wait_for(lambda: not self._running, alive)

    def _wait_for(self, condition: Callable[[], bool], alive: Callable[[], None]) -> None:
        seen = self._moved
        while True:
            with self._changed:
                if self._changed.wait_for(condition, LOOK_EVERY_S):
                    return
            if self._moved != seen or time.monotonic() < self._moves_until:
                seen = self._moved
                alive()

    def raise_error(self) -> None:
        """Raise what a job has raised, once."""
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        while True:
            buffer, job = self._jobs.get()
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - the entry of a thread; raised again in the trainer's
                self._error = self._error or error
            # Not to keep what it refers to until the next one comes.
            del job
            with self._changed:
                self._running -= 1
                self._free.append(buffer)
                self._changed.notify_all()
