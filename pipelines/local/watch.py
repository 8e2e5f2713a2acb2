"""Runs a job to its end in the foreground, and draws its stages' events meanwhile."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from contracts.errors import ErrorDocument
from contracts.events import EventLog
from inspection.trace import StageTrace
from pipelines.jobs import Backend, JobSpec, JobState
from pipelines.local.progress import View

# Short enough to look alive, long enough to cost nothing.
_POLL_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Ending:
    """How the job ended."""

    state: JobState
    interrupted_by: int | None
    """The signal that this process received meanwhile."""
    wall_s: float


def find_interruption(ending: Ending) -> ErrorDocument | None:
    """Return the error of a command that a signal ended; None: none did."""
    if ending.interrupted_by is None:
        return None
    return ErrorDocument.interrupted(signal.Signals(ending.interrupted_by))


def watch(backend: Backend, spec: JobSpec, *, traces: Sequence[StageTrace], view: View) -> Ending:
    """Run a job to its end, and show what its stages say.

    A signal to this process (Ctrl-C, SIGTERM, SIGHUP) cancels the job.

    Args:
        backend: Where it runs.
        spec: The job.
        traces: The stages to follow.
        view: Draws their events.
    """
    started = time.monotonic()
    with _caught_signals() as received, view:
        job = backend.submit(spec)
        state = None
        try:
            while not (state := backend.state(job)).ended and not received:
                _show(traces, view)
                time.sleep(_POLL_S)
        finally:
            if received:
                _show(traces, view)
                _tell(traces, signal.Signals(received[0]))
            if received or state is None or not state.ended:
                backend.cancel(job)
            _show(traces, view)
        return Ending(backend.state(job), received[0] if received else None, time.monotonic() - started)


def _tell(traces: Sequence[StageTrace], number: signal.Signals) -> None:
    """Write into the events of the stages that work that a user ends them: they may have no time to say so."""
    for trace in traces:
        if trace.started and trace.uri is None and trace.exit_code is None:
            events = EventLog(trace.folder, stage=trace.name, attempt=trace.folder.name)
            events.emit("interrupted", signal=number.name)


def _show(traces: Sequence[StageTrace], view: View) -> None:
    for trace in traces:
        for event in trace.poll():
            view.show(trace, event)


@contextlib.contextmanager
def _caught_signals() -> Iterator[list[int]]:
    """Collect signals instead of dying of them; a second one changes nothing, the grace is short."""
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        received.append(number)

    # What was ignored from outside (nohup, a job in the background) stays ignored.
    wanted = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, remember) for number in wanted}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
