import io
from pathlib import Path
from typing import Any

import pytest

from inspection.stages import StageTrace
from pipelines.progress import Bars, PlainLines


def progress(done: float, total: float, unit: str = "steps", message: str = "") -> dict[str, Any]:
    return {"event": "progress", "done": done, "total": total, "unit": unit, "message": message}


RECORDED: list[dict[str, Any]] = [
    {"event": "start", "launched_at": 1.0},
    {"event": "ready", "time": 2.0},
    {"event": "folder", "uri": "file:///f", "fingerprint": "f"},
    {"event": "log", "message": "slot size 32 [chosen by the profile]"},
    *(progress(step, 200, message=f"loss {1 - step / 400:.2f}") for step in range(201)),
    progress(1, 1, "test split"),
    {"event": "finish", "uri": "file:///f", "made": "weights"},
    {"event": "exit", "exit_code": 0, "launched_at": 1.0, "wall_s": 3.0},
]


def draw(view: Bars | PlainLines, events: list[dict[str, Any]]) -> None:
    trace = StageTrace("train", Path("unused"))
    with view:
        for event in events:
            full = {"time": 1.0, "stage": "train", **event}
            trace.apply(full)
            view.show(trace, full)


def test_plain_lines_show_changes_not_events() -> None:
    stream = io.StringIO()
    draw(PlainLines(["profile", "train"], stream), RECORDED)
    lines = stream.getvalue().splitlines()
    assert lines[:3] == [
        "train    starts",
        "train    slot size 32 [chosen by the profile]",
        "train    20 of 200 steps, loss 0.95",
    ]
    assert lines[-3:] == [
        "train    200 of 200 steps, loss 0.50",
        "train    1 of 1 test split",
        "train    done: weights",
    ]
    assert len(lines) == 14


def test_bars_take_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    failed = [RECORDED[0], {"event": "error", "exit_code": 2, "message": "m"}]
    for events in (RECORDED, failed, [{"event": "reused", "uri": "file:///f"}]):
        draw(Bars(["profile", "train"]), events)
    captured = capsys.readouterr()
    assert captured.out == ""
    # A message is text, never markup.
    assert "slot size 32 [chosen by the profile]" in captured.err
