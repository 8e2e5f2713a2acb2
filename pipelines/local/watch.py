"""Runs a command in the foreground, in a process group of its own, and draws its stages' events meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from contracts.errors import ErrorDocument
from contracts.events import EventLog
from inspection.trace import StageTrace
from pipelines.local.progress import View

# Short enough to look alive, long enough to cost nothing.
_POLL_S = 0.1
# Time that a cancelled command has to end by itself. Nothing is lost without it: results are committed by manifests,
# and a training has saved before.
_GRACE_S = 3.0
# The stage that saves when it is told to stop, and what its processes take to end behind resources.stop_budget_s.
_SAVING_STAGE = "train"
_SAVING_SLACK_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Ending:
    """How the command ended."""

    exit_code: int
    """Negative where a signal ended it."""
    interrupted_by: int | None
    """The signal that this process received meanwhile."""
    wall_s: float


def find_interruption(ending: Ending) -> ErrorDocument | None:
    """Return the error of a command that a signal ended; None: none did."""
    if ending.interrupted_by is None:
        return None
    return ErrorDocument.interrupted(signal.Signals(ending.interrupted_by))


def watch(
    command: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    *,
    traces: Sequence[StageTrace],
    view: View,
    stop_budget_s: float,
) -> Ending:
    """Run a command to its end, and show what its stages say.

    A signal to this process (Ctrl-C, SIGTERM, SIGHUP) ends the command; a training saves first, unless a second signal
    comes.

    Args:
        command: The command and its arguments.
        env: Its environment.
        log: File to which everything that it prints is appended.
        traces: The stages to follow.
        view: Draws their events.
        stop_budget_s: Seconds within which a training that is told to stop has saved (resources.stop_budget_s).
    """
    started = time.monotonic()
    with _caught_signals() as received, view:
        with log.open("ab") as stream:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=dict(env), process_group=0
            )
        try:
            while process.poll() is None and not received:
                _show(traces, view)
                time.sleep(_POLL_S)
        finally:
            if received:
                _show(traces, view)
                _tell(traces, signal.Signals(received[0]))
                deadline = time.monotonic() + stop_budget_s + _SAVING_SLACK_S
                saving = _ask_to_save(traces, process)
                while saving and process.poll() is None and len(received) == 1 and time.monotonic() < deadline:
                    _show(traces, view)
                    time.sleep(_POLL_S)
            if received or process.poll() is None:
                end_group(process)
            _show(traces, view)
        return Ending(process.wait(), received[0] if received else None, time.monotonic() - started)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End every process of a process's group: a request first, then no choice; it has ended when this returns."""
    deadline = time.monotonic() + _GRACE_S
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(_POLL_S / 2)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tell(traces: Sequence[StageTrace], number: signal.Signals) -> None:
    """Write into the events of the stages that work that a user ends them: they may have no time to say so."""
    for trace in filter(_works, traces):
        _events(trace).emit("interrupted", signal=number.name)


def _ask_to_save(traces: Sequence[StageTrace], process: subprocess.Popen[bytes]) -> bool:
    """Tell a training that works below the command to stop; return whether there is one.

    It is told alone: whoever waits for it would end before it, and take it along.
    """
    for trace in filter(_works, traces):
        if trace.name == _SAVING_STAGE and trace.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                # The number may be another process's by now.
                if os.getpgid(trace.pid) == process.pid:
                    os.kill(trace.pid, signal.SIGTERM)
                    _events(trace).emit("log", message="saves and ends; a second signal ends it at once")
                    return True
    return False


def _works(trace: StageTrace) -> bool:
    return trace.started and trace.uri is None and trace.exit_code is None


def _events(trace: StageTrace) -> EventLog:
    return EventLog(trace.folder, stage=trace.name, attempt=trace.folder.name)


def _show(traces: Sequence[StageTrace], view: View) -> None:
    for trace in traces:
        for event in trace.poll():
            view.show(trace, event)


@contextlib.contextmanager
def _caught_signals() -> Iterator[list[int]]:
    """Collect signals instead of dying of them."""
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
