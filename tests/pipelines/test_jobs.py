"""Machines of a stage's job, and the end of a command that runs in the foreground."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pytest

from contracts.config import RunConfig
from inspection.trace import Event, StageTrace
from pipelines.jobs import Container, worker_pools
from pipelines.local import watch as watching
from pipelines.local.watch import end_group, find_interruption, watch
from tests.conftest import small_config

LIMIT_S = 60.0


def test_ending_a_command_ends_whatever_it_started(tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    child = f"import pathlib, time\nwhile True: pathlib.Path({str(beat)!r}).touch(); time.sleep(0.01)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", code], process_group=0)
    deadline = time.monotonic() + LIMIT_S
    while not beat.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    end_group(process)
    assert process.returncode
    beat.unlink()
    time.sleep(0.1)
    assert not beat.exists()
    # Again, and after its end, it does no harm.
    end_group(process)


# A command below which a training takes its time to save, as kfp's process waits for a stage.
COMMAND = """
import json, os, pathlib, signal, subprocess, sys, time
if len(sys.argv) == 3:
    sys.exit(subprocess.run([sys.executable, __file__, *sys.argv[1:], "stage"]).returncode)
folder, save_s = pathlib.Path(sys.argv[1]), float(sys.argv[2])
def save(number, frame):
    time.sleep(save_s)
    (folder / "saved").touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
event = {"time": 1.0, "event": "start", "launched_at": 1.0, "pid": os.getpid()}
(folder / "events.jsonl").write_text(json.dumps(event) + "\\n")
time.sleep(60)
"""


class Interrupting:
    """A user who presses Ctrl-C when the stage is up, and again when told that it saves."""

    def __init__(self, presses: int) -> None:
        self.shown: list[str] = []
        self._presses = presses

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def show(self, trace: StageTrace, event: Event) -> None:
        self.shown.append(event["event"])
        if event["event"] in ("start", "log") and self._presses:
            self._presses -= 1
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("presses", "save_s", "saves"), [(1, 0.5, True), (2, 30, False)])
def test_ctrl_c_lets_a_training_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, presses: int, save_s: float, saves: bool
) -> None:
    monkeypatch.setattr(watching, "_GRACE_S", 0.2)
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    trace, view = StageTrace("train", tmp_path), Interrupting(presses)
    command = [sys.executable, str(script), str(tmp_path), str(save_s)]
    ending = watch(command, os.environ, tmp_path / "log", traces=[trace], view=view, stop_budget_s=10)
    assert (tmp_path / "saved").exists() == saves
    error = find_interruption(ending)
    assert error is not None
    assert (error.exit_code, view.shown) == (130, ["start", "interrupted", "log"])
    assert ending.wall_s < 10


def test_training_has_the_machines_and_export_the_gpu_that_serves() -> None:
    resources = {
        "nodes": 3,
        "machine": {"type": "g2-standard-12", "boot_disk_gb": 200},
        "serving_machine": {"type": "n1-standard-4"},
        "env": {"NCCL_DEBUG": "INFO"},
    }
    config = RunConfig.model_validate(small_config(run={"name": "small"}, resources=resources))
    container = Container("host/image@sha256:1", ("python", "-m", "trainer.task"), {"A": "b"})
    first, others = worker_pools(config, "train", container, ("--run", "r"))
    assert (first["replica_count"], others["replica_count"]) == (1, 2)
    assert first["machine_spec"]["accelerator_type"] == "NVIDIA_L4"
    assert first["disk_spec"] == {"boot_disk_type": "pd-ssd", "boot_disk_size_gb": 200}
    assert first["container_spec"]["env"] == [{"name": "A", "value": "b"}]
    (alone,) = worker_pools(config, "export", container, ())
    assert alone["machine_spec"] == {"machine_type": "n1-standard-4"}
