import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from components.launch import STAGE_MODULES, last_line, stage_command
from contracts.pinned import pin
from contracts.process import JOB_ID_VARIABLE

JOB = {JOB_ID_VARIABLE: "7"}

# A stage of a few lines: what launch_stage does around a process does not depend on what the process does.
STAND_IN = """
import argparse, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--config")
parser.add_argument("--config-sha256")
known, rest = parser.parse_known_args()
print("chatter")
print(known.config, *rest, file=sys.stderr, flush=True)
{action}
print("file:///the/folder\\n")
"""

LAUNCH = """
from components import launch
launch.STAGE_MODULES["train"] = "stand_in"
print("got", launch.launch_stage("train", config={config!r}, line={line!r}, run_id="run-1", flags="fresh", shards="s"))
"""


def start_launcher(tmp_path: Path, action: str, **environment: str) -> subprocess.Popen[str]:
    (tmp_path / "stand_in.py").write_text(STAND_IN.format(action=action))
    code = LAUNCH.format(config=pin("file:///a%20b@c/train.json", "12ab"), line=(tmp_path / "my line").as_uri())
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path), **environment},
    )


def read_events(tmp_path: Path) -> list[dict[str, object]]:
    path = tmp_path / "my line" / "train" / "attempts" / "run-1" / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    stat = Path(f"/proc/{pid}/stat")
    # A zombie has ended; whether somebody collects it is not this test's matter.
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.05)


def test_the_last_line_that_a_stage_prints_is_the_answer(tmp_path: Path) -> None:
    process = start_launcher(tmp_path, "pass")
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (0, "got file:///the/folder\n", "")
    log = (tmp_path / "my line" / "train" / "attempts" / "run-1" / "log.txt").read_text()
    assert log.startswith("file:///a%20b@c/train.json@sha256:12ab --end-with-parent --launched-at=")
    assert f"--line={(tmp_path / 'my line').as_uri()} --run=run-1 --shards=s --attempt=run-1 --fresh" in log
    (event,) = read_events(tmp_path)
    assert event["event"] == "exit"
    assert event["exit_code"] == 0
    assert isinstance(event["wall_s"], float)


@pytest.mark.parametrize(
    ("action", "exit_code", "in_event"),
    [("sys.exit(2)", 2, 2), ("sys.exit(75)", 75, 75), ("import os; os.kill(os.getpid(), 9)", 137, -9)],
)
def test_the_exit_code_of_a_stage_is_kept(tmp_path: Path, action: str, exit_code: int, in_event: int) -> None:
    process = start_launcher(tmp_path, action)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (exit_code, "", "")
    assert read_events(tmp_path)[-1]["exit_code"] == in_event


def test_a_stage_is_in_no_job_of_vertex_ai(tmp_path: Path) -> None:
    """Its exit code is read here: in one it would wait to be killed before it ends."""
    process = start_launcher(tmp_path, f"import os; sys.exit(3 if {JOB_ID_VARIABLE!r} in os.environ else 4)", **JOB)
    process.communicate(timeout=60)
    assert process.returncode == 4


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd (Linux)")
def test_a_stage_ends_with_the_orchestrator(tmp_path: Path) -> None:
    action = "import os, pathlib; pathlib.Path({!r}).write_text(str(os.getpid())); time.sleep(120)"
    pid_path = tmp_path / "pid"
    with subprocess.Popen(["sleep", "120"]) as orchestrator:
        process = start_launcher(
            tmp_path, action.format(str(pid_path)), SHARDLINE_ORCHESTRATOR_PID=str(orchestrator.pid)
        )
        deadline = time.monotonic() + 60
        while not (pid_path.exists() and pid_path.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert process.poll() is None
        orchestrator.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    assert process.returncode == 75
    wait_until_gone(int(pid_path.read_text()))


def test_every_stage_has_a_command() -> None:
    command = stage_command("profile", place={"root": "r"}, config={"config-json": "{}"}, inputs={"shards": ""})
    assert command[:3] == [sys.executable, "-m", STAGE_MODULES["profile"]]
    assert "--config-json={}" in command
    assert not any(word.startswith(("--shards", "--attempt", "--fresh")) for word in command)


def test_last_line_of_nothing_is_empty() -> None:
    assert last_line(b"\n \n") == ""
