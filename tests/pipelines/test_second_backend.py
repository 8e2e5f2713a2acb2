"""A place that the project does not have, written here: it trains the digits by the functions of the command line.

How long this class is measures the interface (pipelines/jobs.py): under 150 lines.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import CheckpointManifest
from contracts.config import RunConfig
from contracts.resolve import load_config
from pipelines.jobs import JobSpec, JobState, Phase
from pipelines.local.stages import run_stage_alone

ROOT = Path(__file__).parents[2]
SETTINGS = (
    "train.epochs=2",
    "checkpoint.every_steps=4",
    "parallel.slot_size=16",
    "data.num_workers=0",
    "resources.threads=1",
)


@dataclass
class Machines:
    """Machines of a cluster, played by processes: one that is taken away makes all of them start again."""

    folder: Path
    is_due: Callable[[], bool] = lambda: False
    """Whether to take the last machine of a job away, once."""
    restarts: int = 3
    specs: dict[str, JobSpec] = field(default_factory=dict)
    running: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)

    def submit(self, spec: JobSpec) -> str:
        job = f"{spec.name}-{len(self.specs)}"
        self.specs[job] = spec
        self._start(job)
        return job

    def state(self, job: str) -> JobState:
        codes = [machine.poll() for machine in self.running[job]]
        if job in self.cancelled:
            return JobState(Phase.CANCELLED)
        if job not in self.taken and self.is_due():
            self.taken.append(job)
            os.killpg(self.running[job][-1].pid, signal.SIGKILL)
            self.running[job][-1].wait()
            return JobState(Phase.WAITING)
        if any(code is not None and code < 0 for code in codes) and self.restarts:
            self.restarts -= 1
            self._end(job)
            self._start(job)
            return JobState(Phase.WAITING)
        failed = next((code for code in codes if code), None)
        if failed is not None:
            self._end(job)
            return JobState(Phase.FAILED, failed, "a machine ended with an error")
        return JobState(Phase.RUNNING) if None in codes else JobState(Phase.SUCCEEDED, 0)

    def cancel(self, job: str) -> None:
        if not self.state(job).ended:
            self.cancelled.add(job)
        self._end(job)

    def logs(self, job: str) -> Iterator[str]:
        for path in sorted(self.folder.glob(f"{job}-*.log")):
            yield from path.read_text().splitlines()

    def _start(self, job: str) -> None:
        spec = self.specs[job]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        pools = {"workerpool0": [f"127.0.0.1:{port}"]}
        if spec.nodes > 1:
            pools["workerpool1"] = ["127.0.0.1:1"] * (spec.nodes - 1)
        self.running[job] = []
        for node in range(spec.nodes):
            task = {"type": "workerpool1", "index": node - 1} if node else {"type": "workerpool0", "index": 0}
            cluster = {"CLUSTER_SPEC": json.dumps({"cluster": pools, "task": task})}
            with (self.folder / f"{job}-{node}.log").open("ab") as log:
                command = [*spec.command, *spec.args]
                env = {**spec.env, **cluster}
                self.running[job].append(subprocess.Popen(command, env=env, stdout=log, stderr=log, process_group=0))

    def _end(self, job: str) -> None:
        for machine in self.running[job]:
            if machine.poll() is None:
                os.killpg(machine.pid, signal.SIGKILL)
                machine.wait()


def digits(folder: Path, *overrides: str) -> RunConfig:
    given = (f"run.root={folder / 'runs'}", f"sharding.source={folder / 'raw'}", *SETTINGS, *overrides)
    return load_config(ROOT / "configs/digits.yaml", given)


def run(stage: str, config: RunConfig, folder: Path, backend: Machines | None = None) -> str:
    made = run_stage_alone(stage, config, output=str(folder), given={}, fresh=False, debug=False, backend=backend)
    return made.uri


def test_the_backend_is_short() -> None:
    assert len(inspect.getsource(Machines).splitlines()) < 150


@pytest.mark.line
def test_it_trains_the_digits_and_loses_a_machine(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "examples/digits.py", tmp_path / "raw"], check=True)
    shards = run_stage_alone("shard", digits(tmp_path), output=None, given={}, fresh=False, debug=False)
    assert not shards.reused
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    backend = Machines(tmp_path, is_due=lambda: any(cut.glob("checkpoints/step-*/manifest.json")))
    uri = run("train", digits(tmp_path, "resources.nodes=2", "resources.ranks=1"), cut, backend)
    assert backend.taken == ["digits-train-0"] and backend.restarts == 2
    assert any("continues from" in line for line in backend.logs("digits-train-0"))
    # By this machine's own backend: one machine, two ranks, undisturbed.
    expected = run("train", digits(tmp_path, "resources.ranks=2"), whole)
    found, wanted = CheckpointManifest.load(uri), CheckpointManifest.load(expected)
    assert found.parameters_sha256 == wanted.parameters_sha256 and storage.exists(uri)
