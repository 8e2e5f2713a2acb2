"""Progress of stages on stderr, from their events: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Self, TextIO

from inspection.stages import Event, StageTrace

# Plain progress lines per unit of work: one per tenth of the total.
_PARTS = 10


def make_view(stages: Sequence[str]) -> PlainLines | Bars:
    """Return bars when stderr is a terminal, else plain lines."""
    return Bars(stages) if sys.stderr.isatty() else PlainLines(stages)


class PlainLines:
    """One line per important change, for log files, pipes and continuous integration."""

    def __init__(self, stages: Sequence[str], stream: TextIO | None = None) -> None:
        self._width = max(map(len, stages), default=0)
        self._stream = stream
        self._shown: dict[str, tuple[str, float, int]] = {}

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing to restore."""

    def show(self, trace: StageTrace, event: Event) -> None:
        """Print a line if the event needs one; `trace` already includes the event."""
        text = self._describe_progress(trace.name, event) if event["event"] == "progress" else describe(trace, event)
        if text is not None:
            print(f"{trace.name:<{self._width}}  {text}", file=self._stream or sys.stderr, flush=True)

    def _describe_progress(self, name: str, event: Event) -> str | None:
        total = float(event["total"])
        tenths = int(_PARTS * event["done"] / total) if total > 0 else 0
        shown = (str(event["unit"]), total, tenths)
        previous, self._shown[name] = self._shown.get(name), shown
        return None if shown == previous or tenths == 0 else _amount(event)


class Bars:
    """A progress bar per stage (rich), with log messages above."""

    def __init__(self, stages: Sequence[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[what]}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._tasks = {name: self._progress.add_task(name, start=False, total=None, what="") for name in stages}

    def __enter__(self) -> Self:
        """Start the live display."""
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop the live display; the bars stay visible."""
        self._progress.stop()

    def show(self, trace: StageTrace, event: Event) -> None:
        """Move the stage's bar, or print a log line above the bars; `trace` has taken the event in."""
        task, progress = self._tasks[trace.name], self._progress
        match event["event"]:
            case "start":
                progress.start_task(task)
                progress.update(task, what="starting")
            case "ready":
                progress.update(task, what="")
            case "progress":
                progress.update(task, completed=event["done"], total=event["total"] or None, what=_amount(event))
            case "finish" | "reused":
                progress.update(task, completed=1, total=1, what=trace.summary)
                progress.stop_task(task)
            case "error":
                progress.update(task, what="interrupted" if trace.interrupted else "failed")
                progress.stop_task(task)
            case "interrupted":
                progress.update(task, what="interrupted")
            case "log":
                progress.console.print(f"{trace.name}: {event['message']}", markup=False, highlight=False)


def describe(trace: StageTrace, event: Event) -> str | None:
    """Return the line of an event other than progress; None if it has none."""
    match event["event"]:
        case "start":
            return "starts"
        case "log":
            return str(event["message"])
        case "reused":
            return "reused: finished before, nothing to do"
        case "finish":
            return f"done: {event['made']}"
        case "interrupted":
            return f"interrupted by {event['signal']}"
        case "error" if not trace.interrupted:
            return "failed"
        case "exit" if event["exit_code"] < 0 and not trace.interrupted:
            return f"ended by signal {-event['exit_code']}"
    return None


def _amount(event: Event) -> str:
    message = f", {event['message']}" if event.get("message") else ""
    return f"{event['done']:g} of {event['total']:g} {event['unit']}{message}"
