"""Jobs, and the two places that run them: what a spec becomes, and how far a job is told to be."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from google.cloud.aiplatform_v1 import JobState as VertexState

from contracts.config import MachineSection, RunConfig
from contracts.errors import TryAgain
from pipelines.backends.local import Local
from pipelines.backends.vertex import _PHASES, worker_pools
from pipelines.jobs import Backend, Container, JobSpec, JobState, Phase, stage_job, wait
from tests.conftest import small_config

LIMIT_S = 60.0


def job(code: str) -> JobSpec:
    return JobSpec(name="test", command=(sys.executable, "-c"), args=(code,), env={"WORD": "heard"})


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", JobState(Phase.SUCCEEDED, 0)),
        ("raise SystemExit(75)", JobState(Phase.FAILED, 75)),
        ("import os; os.kill(os.getpid(), 9)", JobState(Phase.FAILED, -9)),
    ],
)
def test_a_process_ends_as_its_command_does(tmp_path: Path, code: str, expected: JobState) -> None:
    backend: Backend = Local(tmp_path / "log.txt")
    assert wait(backend, backend.submit(job(code)), limit_s=LIMIT_S, poll_s=0.01) == expected


def test_its_words_are_kept(tmp_path: Path) -> None:
    backend = Local(tmp_path / "log.txt")
    wait(backend, backend.submit(job("import os; print(os.environ['WORD'])")), limit_s=LIMIT_S, poll_s=0.01)
    assert list(backend.logs("")) == ["heard"]


def test_cancelling_ends_whatever_it_started(tmp_path: Path) -> None:
    backend, beat = Local(tmp_path / "log.txt"), tmp_path / "beat"
    child = f"import pathlib, time\nwhile True: pathlib.Path({str(beat)!r}).touch(); time.sleep(0.01)"
    name = backend.submit(job(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"))
    deadline = time.monotonic() + LIMIT_S
    while not beat.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert backend.state(name) == JobState(Phase.RUNNING)
    backend.cancel(name)
    assert backend.state(name).phase is Phase.CANCELLED
    beat.unlink()
    time.sleep(0.1)
    assert not beat.exists()
    # Again, and after its end, it does no harm.
    backend.cancel(name)


def test_what_does_not_end_is_cancelled(tmp_path: Path) -> None:
    backend = Local(tmp_path / "log.txt")
    name = backend.submit(job("import time; time.sleep(600)"))
    with pytest.raises(TryAgain, match="was cancelled"):
        wait(backend, name, limit_s=0.0, poll_s=0.01)
    assert backend.state(name).phase is Phase.CANCELLED


def test_the_code_of_a_place_that_tells_none() -> None:
    assert [JobState(phase).code for phase in (Phase.SUCCEEDED, Phase.FAILED)] == [0, 70]
    assert JobState(Phase.FAILED, 75).code == 75


def test_every_state_of_vertex_ai_is_a_phase() -> None:
    names = {str(state.name).removeprefix("JOB_STATE_") for state in VertexState}
    assert set(_PHASES) == names - {"UNSPECIFIED"}


def test_training_has_the_machines_and_export_the_gpu_that_serves() -> None:
    resources = {
        "nodes": 3,
        "machine": {"type": "g2-standard-12", "boot_disk_gb": 200},
        "serving_machine": {"type": "a2-highgpu-1g"},
        "env": {"NCCL_DEBUG": "INFO"},
    }
    config = RunConfig.model_validate(small_config(run={"name": "small"}, resources=resources))
    container = Container("host/image@sha256:1", ("python", "-m", "trainer.task"), {"A": "b"})
    train, export = (stage_job(config, stage, container, ("--run", "r")) for stage in ("train", "export"))
    assert (train.name, train.nodes, export.nodes, export.machine.type) == ("small-train", 3, 1, "a2-highgpu-1g")
    first, others = worker_pools(train)
    assert (first["replica_count"], others["replica_count"]) == (1, 2)
    assert first["machine_spec"]["accelerator_type"] == "NVIDIA_L4"
    assert first["disk_spec"] == {"boot_disk_type": "pd-ssd", "boot_disk_size_gb": 200}
    assert first["container_spec"]["env"] == [{"name": "A", "value": "b"}]
    (alone,) = worker_pools(replace(train, nodes=1, machine=MachineSection(type="n1-standard-4")))
    assert alone["machine_spec"] == {"machine_type": "n1-standard-4"}
