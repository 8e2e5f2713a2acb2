"""Threads that execute jobs: one per job, from its start to its end, whatever kind of job it is."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable

Execute = Callable[[str, threading.Event], None]
"""Executes the job of a name until it has ended; the event says that it is cancelled."""


class JobThreads:
    """Starts, cancels and joins the threads of a kind of job.

    Args:
        kind: What the jobs are called, for the threads' names.
        execute: Executes one.
        fail: Ends the job of a name by a fault of the rehearsal's own; gets the traceback.
    """

    def __init__(self, kind: str, execute: Execute, fail: Callable[[str, str], None]) -> None:
        self._kind, self._execute, self._fail = kind, execute, fail
        self._cancelled: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._lock = threading.Lock()
        self.failures: list[str] = []
        """Faults of the rehearsal itself, as tracebacks."""

    def start(self, name: str) -> None:
        """Begin to execute the job of this name; after `close` it is cancelled before it begins."""
        cancelled = threading.Event()
        thread = threading.Thread(target=self._run, args=(name, cancelled), name=f"{self._kind} {name}", daemon=True)
        with self._lock:
            self._cancelled[name] = cancelled
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]
            if self._closed:
                cancelled.set()
            # Before anybody can join it.
            thread.start()

    def cancel(self, name: str) -> None:
        """Tell the job of this name that it is cancelled; one that has ended, or is not known, is let alone."""
        with self._lock:
            if name in self._cancelled:
                self._cancelled[name].set()

    def close(self) -> None:
        """Cancel all jobs, and wait until their threads have ended."""
        with self._lock:
            self._closed = True
            events, threads = list(self._cancelled.values()), list(self._threads)
        for event in events:
            event.set()
        for thread in threads:
            thread.join()

    def _run(self, name: str, cancelled: threading.Event) -> None:
        try:
            self._execute(name, cancelled)
        except Exception:  # noqa: BLE001 - a thread's entry: a fault of ours fails the job, and is told
            self.failures.append(traceback.format_exc())
            # One that was deleted meanwhile has no state.
            with contextlib.suppress(KeyError):
                self._fail(name, self.failures[-1])
        finally:
            with self._lock:
                self._cancelled.pop(name, None)
