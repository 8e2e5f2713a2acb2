"""Stages on this machine: a run up to a stage that fails, and signals; the whole line is tests/test_line.py's."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts.artifacts import RunRecord
from contracts.config import RunConfig
from contracts.errors import ConfigError, ForwardedError
from inspection.find import find_place
from inspection.read import read_run
from inspection.stages import StageTrace
from pipelines import local
from pipelines.cli import app
from pipelines.local import run_stage_alone
from pipelines.progress import PlainLines
from pipelines.rules import check_line

# Refused before the stage starts a process that loads torch.
REFUSED = ("data.num_workers=3", "profile.num_workers=[0, 1]", "resources.ranks=1")
# The command without the checks before the first stage, which import torch.
UNCHECKED = "from pipelines import cli, local; local.check_local = lambda *_: None; cli.main()"


def read_record(path: Path) -> RunRecord:
    return RunRecord.parse(path.read_bytes(), where=str(path))


def test_a_run_ends_with_the_error_of_its_stage(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tested in test_checks: it imports torch.
    monkeypatch.setattr(local, "check_local", lambda *_: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(project)
    failed = CliRunner().invoke(app, ["run", "tiny.yaml", *REFUSED], obj=time.time())
    assert failed.exit_code == 2, failed.output
    assert failed.stdout.splitlines()[-1] == "runs/tiny"
    assert "error: stage profile: " in failed.stderr and "data.num_workers" in failed.stderr
    assert "to do:" in failed.stderr and "Traceback" not in failed.stderr
    lines = failed.stderr.splitlines()
    assert lines[0] == "shard    starts" and "profile  failed" in lines
    assert any(text.startswith("shard    done: ") for text in lines)
    line = project / "runs" / "tiny"
    assert len(list(line.glob("shard/*/manifest.json"))) == 1
    assert list(line.glob("profile/*/manifest.json")) == []
    assert list(tmp_path.iterdir()) == []

    record = read_record(line / "run.json")
    assert record.state == "failed" and "data.num_workers" in record.error
    assert [stage.state for stage in record.stages] == ["done", "failed", "not started", "not started"]
    shard = record.stages[0]
    assert shard.uri is not None and shard.manifest_sha256 is not None
    assert 0 < shard.start_s < shard.wall_s < record.wall_s
    assert sum(record.results["data"]["samples"].values()) == 48
    assert record.config["run"]["root"] == str(line.parent)
    (start_path,) = line.glob("runs/*/run-start.json")
    assert json.loads(start_path.read_text())["id"] == start_path.parent.name == record.id
    assert (start_path.parent / "run.json").read_bytes() == (line / "run.json").read_bytes()


def list_descendants(pid: int) -> Iterator[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return
    for child in map(int, children):
        yield child
        yield from list_descendants(child)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("command", "number", "exit_code"), [("run", signal.SIGINT, 130), ("shard", signal.SIGKILL, -9)]
)
def test_a_signal_ends_every_process(
    project: Path, environment: dict[str, str], command: str, number: signal.Signals, exit_code: int
) -> None:
    root = project / f"interrupted {number.name}"
    process = subprocess.Popen(
        [sys.executable, "-c", UNCHECKED, command, "tiny.yaml", f"run.root={root.name}"],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As a terminal does for Ctrl-C: the signal goes to the command's own group only.
        start_new_session=True,
    )
    wait_for(lambda: list(root.rglob("events.jsonl")), "no stage started")
    pids = list(list_descendants(process.pid))
    assert pids
    os.killpg(process.pid, number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == exit_code, stderr
    wait_for(lambda: not any(map(is_alive, pids)), "a process lives on")
    assert list(root.rglob("manifest.json")) == []
    if number != signal.SIGKILL:
        assert f"interrupted by {number.name}" in stderr
        assert "Traceback" not in stderr
        assert stdout.splitlines()[-1] == f"{root.name}/tiny"
        record = read_record(root / "tiny" / "run.json")
        assert (record.state, record.stages[0].state) == ("interrupted", "interrupted")
        assert record.stages[1].state == "not started"
        view = read_run(find_place(str(root / "tiny")))
        assert (view.state, view.stages[0].state) == ("interrupted", "interrupted")
        assert "the same command again continues" in view.error


# A stage that takes its time to save, and has a child that outlives a request to end.
TRAINING = """
import json, os, pathlib, signal, subprocess, sys, time
folder, save_s = pathlib.Path(sys.argv[1]), float(sys.argv[2])
def save(number, frame):
    time.sleep(save_s)
    (folder / "saved").touch()
    sys.exit(75)
beat = f"import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\nwhile True:\\n" \
    f" pathlib.Path({str(folder / 'beat')!r}).touch(); time.sleep(0.01)"
subprocess.Popen([sys.executable, "-c", beat])
while not (folder / "beat").exists():
    time.sleep(0.01)
signal.signal(signal.SIGTERM, save)
event = {"time": 1.0, "event": "start", "launched_at": 1.0, "pid": os.getpid()}
(folder / "events.jsonl").write_text(json.dumps(event) + "\\n")
time.sleep(60)
"""


@pytest.mark.parametrize(("presses", "save_s", "saves"), [(1, 0.5, True), (2, 30, False)])
def test_ctrl_c_lets_a_training_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, presses: int, save_s: float, saves: bool
) -> None:
    monkeypatch.setattr(local, "_GRACE_S", 0.2)
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    received: list[int] = []
    shown: list[str] = []

    class Pressing(PlainLines):
        """A user who presses Ctrl-C when the stage is up, and again when told that it saves."""

        def show(self, trace: StageTrace, event: Any) -> None:
            shown.append(event["event"])
            if event["event"] in ("start", "log") and len(received) < presses:
                received.append(signal.SIGINT)

    command = [sys.executable, str(script), str(tmp_path), str(save_s)]
    with pytest.raises(ForwardedError) as caught:
        local._run_command(command, StageTrace("train", tmp_path), received, Pressing(["train"]), 10)
    assert (tmp_path / "saved").exists() == saves
    assert (caught.value.exit_code, shown) == (130, ["start", "interrupted", "log", "exit"])
    (tmp_path / "beat").unlink()
    time.sleep(0.1)
    assert not (tmp_path / "beat").exists(), "what the stage started lives on"


def test_a_signal_ends_the_comparison_with_production(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_GRACE_S", 0.2)
    (tmp_path / "judge.py").write_text(TRAINING)
    monkeypatch.setattr(
        "pipelines.promote.decide_here",
        lambda *_, run, **__: run([sys.executable, str(tmp_path / "judge.py"), str(tmp_path), "30"]),
    )

    def end() -> None:
        wait_for((tmp_path / "beat").exists, "no comparison started")
        os.kill(os.getpid(), signal.SIGTERM)

    with local._caught_signals() as received, pytest.raises(ForwardedError) as caught:
        threading.Thread(target=end, daemon=True).start()
        local._decide(RunConfig(), "file:///line", "run", {"export": "", "shard": ""}, received)
    assert caught.value.exit_code == 143 and "SIGTERM" in str(caught.value)
    (tmp_path / "beat").unlink()
    time.sleep(0.1)
    assert not (tmp_path / "beat").exists(), "what the comparison started lives on"


@pytest.mark.parametrize(
    ("sections", "given"),
    [
        ({"train": {"global_batch_size": 2}, "resources": {"ranks": 4}}, "global_batch_size = 2 on 4 ranks"),
        ({"sharding": {"splits": {"train": 0.9, "validation": 0.1, "test": 0}}}, "sharding.splits.test = 0"),
        ({"resources": {"max_cost_usd": 5, "machine": {"type": "n1-standard-4"}}}, "resources.max_cost_usd = 5"),
    ],
)
def test_what_cannot_succeed_is_found_before_the_first_stage(sections: dict[str, Any], given: str) -> None:
    config = RunConfig.model_validate(sections)
    with pytest.raises(ConfigError) as caught:
        check_line(config)
    assert given in caught.value.given
    if "resources.max_cost_usd" in given:
        with pytest.raises(ConfigError, match=r"resources\.max_cost_usd = 5 without resources\.price_usd_per_h"):
            run_stage_alone("train", config, to=None, fresh=False)


def test_the_checks_come_before_any_document(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    done = CliRunner().invoke(app, ["run", "tiny.yaml", "run.root=refused", "sharding.source=no"], obj=0.0)
    assert done.exit_code == 2 and done.stdout == ""
    assert "no does not exist" in done.stderr and not (project / "refused").exists()
