"""Exit codes on Vertex AI and elsewhere: of a real stage that is told to stop, and of each kind of end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.errors import (
    EXIT_TRY_AGAIN,
    ConfigError,
    ErrorDocument,
    PeerPreempted,
    Preempted,
    ShardlineError,
    TryAgain,
)
from contracts.process import JOB_ID_VARIABLE, final_exit_code

LIMIT_S = 60.0
# A stage that stops in agreement when it is told to, one that does not heed it, and one that was not written for it.
STAGE = """
import signal, sys, time
from pathlib import Path
from contracts.errors import Preempted
from contracts.process import run_process
from contracts.stage import run_stage

def work(stage):
    def stop(*_):
        raise Preempted("told to stop")
    if sys.argv[1] == "stops":
        signal.signal(signal.SIGTERM, stop)
    print("begun", file=sys.stderr, flush=True)
    while not Path(sys.argv[2], "go").exists():
        time.sleep(0.01)
    return "gs://done"

run_process(lambda: run_stage("profile", work, ["--root", sys.argv[2], "--config-json", "{}"]))
"""


class Process:
    """A stage of a process of its own, read line by line."""

    def __init__(self, kind: str, folder: Path, environment: dict[str, str]) -> None:
        command = [sys.executable, "-c", STAGE, kind, str(folder)]
        clean = {name: value for name, value in os.environ.items() if name != JOB_ID_VARIABLE}
        self.process = subprocess.Popen(
            command, env={**clean, **environment}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self.wait_for("begun")

    def wait_for(self, text: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text in line:
                return line
        raise AssertionError(f"{text!r} was not said; exit code {self.process.wait()}")


@pytest.fixture
def started() -> Iterator[list[Process]]:
    found: list[Process] = []
    yield found
    for one in found:
        one.process.kill()
        one.process.wait()
        assert one.process.stderr is not None
        one.process.stderr.close()


def test_on_vertex_who_was_told_to_stop_waits_to_be_killed(tmp_path: Path, started: list[Process]) -> None:
    one = Process("stops", tmp_path, {JOB_ID_VARIABLE: "7"})
    started.append(one)
    one.process.send_signal(signal.SIGTERM)
    one.wait_for("waiting up to 180 s to be killed")
    # What it leaves is there, and its folder is free, while it waits.
    (error,) = tmp_path.rglob("error.json")
    assert ErrorDocument.model_validate_json(error.read_bytes()).exit_code == EXIT_TRY_AGAIN
    # A second notice changes nothing, and Ctrl-C ends the wait.
    one.process.send_signal(signal.SIGTERM)
    one.process.send_signal(signal.SIGINT)
    assert one.process.stderr is not None
    assert one.process.stderr.read() == ""
    assert one.process.wait(LIMIT_S) == 130


def test_on_vertex_a_stage_without_a_handler_goes_on(tmp_path: Path, started: list[Process]) -> None:
    one = Process("", tmp_path, {JOB_ID_VARIABLE: "7"})
    started.append(one)
    one.process.send_signal(signal.SIGTERM)
    one.wait_for("going on until it is killed")
    (tmp_path / "go").touch()
    assert one.process.wait(LIMIT_S) == 0


def test_elsewhere_it_ends_at_once(tmp_path: Path, started: list[Process]) -> None:
    one = Process("stops", tmp_path, {})
    started.append(one)
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(LIMIT_S) == EXIT_TRY_AGAIN


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (ConfigError("this", allowed="that", todo="change it"), 2),
        (ShardlineError("ours"), 70),
        (KeyboardInterrupt(), 130),
        (TryAgain("busy"), 134),
        (PeerPreempted("another machine"), 134),
        # Nobody killed it in time.
        (Preempted("told"), 134),
    ],
)
def test_codes_on_vertex(monkeypatch: pytest.MonkeyPatch, error: BaseException | None, code: int) -> None:
    document = None if error is None else ErrorDocument.of(error)
    elsewhere = 0 if document is None else document.exit_code
    said: list[str] = []
    monkeypatch.delenv(JOB_ID_VARIABLE, raising=False)
    assert final_exit_code(elsewhere, document, said.append, limit_s=0.01) == elsewhere
    assert not said
    monkeypatch.setenv(JOB_ID_VARIABLE, "7")
    before = signal.getsignal(signal.SIGTERM)
    assert final_exit_code(elsewhere, document, said.append, limit_s=0.01) == code
    signal.signal(signal.SIGTERM, before)
    assert any("to be killed" in line for line in said) == (type(error) is Preempted)
