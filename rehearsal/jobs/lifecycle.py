"""What all kinds of jobs have in common: a thread per job, from its start to its end, and where it works."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Required, TypedDict

from rehearsal.jobs.logbook import Clock, LogBook
from rehearsal.machines.network import Network
from rehearsal.resources.states import has_ended
from rehearsal.resources.store import Store


class Surroundings(TypedDict, total=False):
    """Options of every kind of jobs: see JobRuns."""

    folder: Required[Path]
    logs: Required[LogBook]
    clock: Required[Clock]
    environment: Mapping[str, str]
    network: Network | None
    token: Callable[[], str]


class JobRuns:
    """Starts, cancels and joins the threads of a kind of job (rehearsal.resources.store.Runs).

    Each kind says how a job is executed (`_execute`), how it ends by a fault of the rehearsal's own (`_fail`), and how
    one that is to end is marked (`_mark_cancelled`).

    Args:
        kind: What the jobs are called, for the threads' names.
        store: Has the jobs.
        folder: For everything that is written on this machine.
        logs: Gets what containers print.
        clock: Of the rehearsed world.
        environment: Of containers; may be set later, before the first job.
        network: That machines are on; may be set later.
        token: Returns a token for machines' clients.
    """

    def __init__(
        self,
        kind: str,
        store: Store,
        *,
        folder: Path,
        logs: LogBook,
        clock: Clock,
        environment: Mapping[str, str] | None = None,
        network: Network | None = None,
        token: Callable[[], str] = lambda: "rehearsal",
    ) -> None:
        self._kind, self._store, self._folder, self._logs, self._clock = kind, store, folder, logs, clock
        self.environment: Mapping[str, str] = environment or {}
        self.network, self._token = network, token
        self._cancelled: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._lock = threading.Lock()
        self.failures: list[str] = []
        """Faults of the rehearsal itself, as tracebacks."""

    def _execute(self, name: str, cancelled: threading.Event) -> None:
        """Execute the job of a name until it has ended; the event says that it is cancelled."""
        raise NotImplementedError

    def _fail(self, name: str, fault: str) -> None:
        """End the job of a name by a fault of the rehearsal's own, a traceback."""
        raise NotImplementedError

    def _mark_cancelled(self, job: Any) -> None:
        """Write into a job that has not ended that it is to end."""
        raise NotImplementedError

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
        """End a job; its state becomes cancelled once nothing of it runs any more. One that has ended is let alone."""
        self._store.update(name, lambda job: None if has_ended(job) else self._mark_cancelled(job))
        with self._lock:
            if name in self._cancelled:
                self._cancelled[name].set()

    def wait(self, name: str, timeout_s: float) -> Any:
        """Wait for the end of a job, and return it as it is then."""
        return self._store.wait(name, has_ended, timeout_s)

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
