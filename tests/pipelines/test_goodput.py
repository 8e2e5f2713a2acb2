"""`shardline goodput` on folders as stages leave them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import inspection.goodput
from pipelines.cli import app

ID, OTHER_ID = "20261121-120000-0001", "20261121-130000-0001"


def write_attempt(
    line: Path, name: str, launched_at: float, *, fingerprint: str = "f", tail: str = "", step: int = 0
) -> None:
    folder = line / "train" / "attempts" / name
    folder.mkdir(parents=True, exist_ok=True)
    at = launched_at
    events: list[dict[str, Any]] = [
        {"time": at, "event": "start", "launched_at": at},
        {"time": at + 1, "event": "folder", "uri": "file:///u", "fingerprint": fingerprint},
        {"time": at + 2, "event": "life", "life": "0", "started_at": at + 2},
        {"time": at + 4, "event": "resume", "life": "0", "step": step, "ranks": 2, "nodes": 1},
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


def ask(*arguments: str) -> dict[str, Any]:
    answer = CliRunner().invoke(app, ["goodput", *arguments, "-o", "json"])
    assert answer.exit_code == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize(
    "name", [lambda line: str(line), lambda line: str(line / "runs" / ID), lambda line: ID, lambda line: line.as_uri()]
)
def test_a_run_is_a_folder_or_an_id(line: Path, name: Callable[[Path], str]) -> None:
    found = ask(name(line))
    assert (found["wall_s"], found["productive_s"], found["goodput_percent"]) == (10, 6, 60)


def test_all_attempts_of_one_training_count(line: Path) -> None:
    write_attempt(line, "20261121-110000-0001", 50)
    write_attempt(line, ID, 100, step=4)
    write_attempt(line, "20261121-150000-0001", 500, fingerprint="another")
    assert ask(ID)["attempts"] == 2
    assert ask(str(line))["attempts"] == 1, "the newest training is another one"


def test_only_a_training_that_goes_on_is_told_by_other_runs(line: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_attempt(line, "20261121-110000-0001", 50)
    read: list[str] = []
    real = inspection.goodput.read_events_of
    monkeypatch.setattr(
        inspection.goodput,
        "read_events_of",
        lambda line, stage, names: read.extend(names) or real(line, stage, names),
    )
    assert ask(ID)["attempts"] == 1
    assert read == [ID]


def test_machines_beside_the_first_are_in_the_hours_and_not_in_the_time(line: Path) -> None:
    # A run on Vertex AI has an attempt for each machine: only the first tells what training did.
    before = ask(ID)
    write_attempt(line, f"{ID}.20261121-120001-0002", 101)
    path = line / "train" / "attempts" / f"{ID}.20261121-120001-0002" / "events.jsonl"
    told = [json.loads(text) for text in path.read_text().splitlines()[:2]]
    told.append({"time": 108, "event": "machine", "node_rank": 1, "nodes": 2})
    path.write_text("".join(json.dumps(event) + "\n" for event in told))
    assert ask(ID) == before


def test_a_machine_that_was_told_and_then_taken_is_one_preemption(line: Path) -> None:
    path = line / "train" / "attempts" / ID / "events.jsonl"
    stop = {"time": 111, "event": "stop", "life": "0", "step": 8, "cause": "SIGTERM", "preempted": True}
    path.write_text(path.read_text().removesuffix('{"time": 1'))
    with path.open("a") as stream:
        stream.write(json.dumps(stop) + "\n")
    write_attempt(line, f"{ID}.2", 200, step=8)
    assert (ask(ID)["attempts"], ask(ID)["preemptions"]) == (2, 1)


def test_a_damaged_line_is_left_out(line: Path) -> None:
    path = line / "train" / "attempts" / ID / "events.jsonl"
    path.write_bytes(b'\x00\x00{"ti\n[1]\n{"time": 1}\n' + path.read_bytes())
    assert ask(ID)["productive_s"] == 6


def test_the_table_names_every_class(line: Path) -> None:
    answer = CliRunner().invoke(app, ["goodput", str(line)])
    assert answer.exit_code == 0
    for words in ("productive                  6.0 s   60.0 %", "60.0 % goodput", "lost and repeated", "0 preemptions"):
        assert words in answer.stdout


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nowhere", "nowhere is no run"),
        (OTHER_ID, "no training was started"),
        ("20261121-999999-0001", "is no run"),
        ("s3://bucket/line", "s3://"),
    ],
)
def test_what_is_no_run_is_said(line: Path, given: str, words: str) -> None:
    answer = CliRunner().invoke(app, ["goodput", given])
    assert answer.exit_code == 2
    assert words in answer.stderr
    assert "to do:" in answer.stderr
