"""The account of a training from folders as stages leave them."""

import json
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import GoodputRecord
from inspection.training import read_goodput

ID, OTHER_ID = "20261121-120000-0001", "20261121-130000-0001"


def write_attempt(
    line: Path,
    name: str,
    launched_at: float,
    *,
    fingerprint: str = "f",
    tail: str = "",
    step: int = 0,
    number: int = 1,
) -> None:
    folder = line / "train" / "attempts" / name
    folder.mkdir(parents=True, exist_ok=True)
    at = launched_at
    events: list[dict[str, Any]] = [
        {"time": at, "event": "start", "launched_at": at},
        {"time": at + 1, "event": "folder", "uri": "file:///u", "fingerprint": fingerprint},
        {"time": at + 2, "event": "life", "life": "0", "started_at": at + 2},
        {"time": at + 4, "event": "resume", "life": "0", "step": step, "number": number, "ranks": 2, "nodes": 1},
        {"time": at + 10, "event": "spent", "life": "0", "step": 8, "seconds": {"set-up": 2, "step": 6}},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + tail)


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    line = tmp_path / "runs" / "photos"
    write_attempt(line, ID, 100, tail='{"time": 1')
    for run in (ID, OTHER_ID):
        (line / "runs" / run).mkdir(parents=True)
        (line / "runs" / run / "run-start.json").touch()
    return line


def ask(line: Path, run_id: str | None = ID) -> GoodputRecord:
    record = read_goodput(storage.normalise(line), run_id)
    assert record is not None
    return record


def test_the_seconds_of_a_training_are_told_apart(line: Path) -> None:
    for run_id in (ID, None):
        record = ask(line, run_id)
        assert (record.wall_s, record.productive_s, record.goodput_percent) == (10, 6, 60)
    assert read_goodput(storage.normalise(line), OTHER_ID) is None
    # KFP's cache gave the training: the run that did it tells.
    assert read_goodput(storage.normalise(line), OTHER_ID, training="f") == ask(line)


def test_all_attempts_of_one_training_count(line: Path) -> None:
    write_attempt(line, "20261121-110000-0001", 50)
    write_attempt(line, ID, 100, step=4, number=2)
    write_attempt(line, "20261121-150000-0001", 500, fingerprint="another")
    assert ask(line).attempts == 2
    assert ask(line, None).attempts == 1, "the newest training is another one"


def test_machines_beside_the_first_are_in_the_hours_and_not_in_the_time(line: Path) -> None:
    # A run on Vertex AI has an attempt for each machine: only the first tells what training did.
    before = ask(line)
    write_attempt(line, f"{ID}.20261121-120001-0002", 101)
    path = line / "train" / "attempts" / f"{ID}.20261121-120001-0002" / "events.jsonl"
    events = [json.loads(text) for text in path.read_text().splitlines()[:2]]
    events.append({"time": 108, "event": "machine", "node_rank": 1, "nodes": 2})
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert ask(line) == before
