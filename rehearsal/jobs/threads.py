"""What all kinds of jobs have in common: a thread per job, from its start to its end."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rehearsal.clock import Clock
from rehearsal.vertex.logs import LogBook
from rehearsal.vertex.store import Store, has_ended


@dataclass
class Place:
    """Where jobs are executed."""

    store: Store
    logs: LogBook
    clock: Clock
    folder: Path
    """For everything that is written on this machine."""
    token: Callable[[], str] = lambda: "rehearsal"
    """Returns a token for machines' clients."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of containers: proxy, trust and guard. Set before the first job."""
    on_refused: Callable[[str], None] = lambda text: None
    """Called with each request that a metadata server refuses."""


class JobThreads:
    """Starts, cancels and joins the threads of one kind of job.

    A kind says how a job is executed (`_execute`), how one is ended by a fault of the rehearsal itself (`_fail`), and
    how one is marked that is to end (`_mark_cancelled`).
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.failures: list[str] = []
        """Faults of the rehearsal itself, as tracebacks."""
        self._cancelled: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def _execute(self, name: str, cancelled: threading.Event) -> None:
        """Execute the job of a name until it has ended."""
        raise NotImplementedError

    def _fail(self, name: str, message: str) -> None:
        """End the job of a name with INTERNAL."""
        raise NotImplementedError

    def _mark_cancelled(self, job: Any) -> None:
        """Set the state of a job that is to end."""
        raise NotImplementedError

    def start(self, name: str) -> None:
        """Execute the job of this name; after `close` it is cancelled before it begins."""
        cancelled = threading.Event()
        thread = threading.Thread(target=self._run, args=(name, cancelled), name=f"job {name}", daemon=True)
        with self._lock:
            self._cancelled[name] = cancelled
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]
            if self._is_closed:
                cancelled.set()
            # Before anybody can join it.
            thread.start()

    def cancel(self, name: str) -> None:
        """End a job; its state becomes cancelled once nothing of it runs any more. An ended one stays as it is."""
        self.place.store.update(name, lambda job: None if has_ended(job) else self._mark_cancelled(job))
        with self._lock:
            if name in self._cancelled:
                self._cancelled[name].set()

    def close(self) -> None:
        """Cancel all jobs, and wait until their threads have ended."""
        with self._lock:
            self._is_closed = True
            events, threads = list(self._cancelled.values()), list(self._threads)
        for event in events:
            event.set()
        for thread in threads:
            thread.join()

    def _run(self, name: str, cancelled: threading.Event) -> None:
        try:
            self._execute(name, cancelled)
        except Exception:  # noqa: BLE001 - a thread's entry: a fault of ours fails the job, and is raised at the end
            self.failures.append(traceback.format_exc())
            with contextlib.suppress(KeyError):
                self._fail(name, f"the rehearsal's own fault: {self.failures[-1]}")
        finally:
            with self._lock:
                self._cancelled.pop(name, None)
