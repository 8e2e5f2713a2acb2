"""Base class of job executors: a thread per job, from its start to its end."""

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
    """Services and folder of a job executor."""

    store: Store
    logs: LogBook
    clock: Clock
    folder: Path
    """Folder of all its files."""
    token: Callable[[], str] = lambda: "rehearsal"
    """Returns an access token for clients on the machines."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of containers: proxy, certificates and guard. Set before the first job."""
    on_refused: Callable[[str], None] = lambda text: None
    """Called with each request that a metadata server refuses."""


class JobThreads:
    """Starts, cancels and joins the threads of one kind of job.

    Subclasses implement execution (`_execute`), the end by a fault of the rehearsal itself (`_fail`), and the state of
    a cancelled job (`_mark_cancelled`).
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
        """Execute a job until it has ended."""
        raise NotImplementedError

    def _fail(self, name: str, message: str) -> None:
        """End a job with the error INTERNAL."""
        raise NotImplementedError

    def _mark_cancelled(self, job: Any) -> None:
        """Set the state of a job that is being cancelled."""
        raise NotImplementedError

    def start(self, name: str) -> None:
        """Execute a job; after `close` it is cancelled before it starts."""
        cancelled = threading.Event()
        thread = threading.Thread(target=self._run, args=(name, cancelled), name=f"job {name}", daemon=True)
        with self._lock:
            self._cancelled[name] = cancelled
            self._threads = [*(previous for previous in self._threads if previous.is_alive()), thread]
            if self._is_closed:
                cancelled.set()
            # Started inside the lock: `close` must not join a thread that was not started.
            thread.start()

    def cancel(self, name: str) -> None:
        """Cancel a job; its state becomes cancelled when it has ended. Ended jobs stay unchanged."""
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
        except Exception:  # noqa: BLE001 - thread entry point: a fault of ours fails the job, and is raised at the end
            self.failures.append(traceback.format_exc())
            with contextlib.suppress(KeyError):
                self._fail(name, f"the rehearsal's own fault: {self.failures[-1]}")
        finally:
            with self._lock:
                self._cancelled.pop(name, None)
