"""`shardline rehearse`: a submission without a cloud, by the real clients, against a Google Cloud on this machine.

The command that a user would submit with (`shardline submit --wait`, or `schedule create`) runs as a process of its
own, led to rehearsal.cloud by variables alone. Then what happened is compared with what was asked for: as many
preemptions, nobody called but the local cloud, and the same parameters as from the training job undisturbed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from contracts import storage
from contracts.artifacts import CheckpointManifest, GoodputRecord
from contracts.config import RunConfig
from contracts.errors import CheckFailed
from contracts.result import find_result
from contracts.stage import new_attempt_id
from inspection.goodput import read_goodput
from pipelines.rehearsal_config import Prepared, prepare

if TYPE_CHECKING:
    from rehearsal.cloud import LocalCloud
    from rehearsal.execution.market import Preempted
    from rehearsal.gcs import Rule

PROJECT_NUMBER = "123456789012"
# The training is started again without disturbances below this name: beside the line, in the same bucket.
UNDISTURBED = "undisturbed"
_FINAL_STATES = (4, 5, 7)  # SUCCEEDED, FAILED, CANCELLED of google.cloud.aiplatform_v1.JobState
_POLL_S = 0.5


@dataclass(frozen=True)
class Wanted:
    """What a rehearsal is asked for."""

    preemptions: int = 0
    rate_per_h: float = 0.0
    """Preemptions for each machine and hour of its running."""
    rules: tuple[Rule, ...] = ()
    schedule_days: float = 0.0
    time_scale: float = 0.1
    """Seconds here for one of the platform's where nothing is computed: the 30 s of a notice take three."""
    seed: int = 0
    processes_per_node: int | None = None


@dataclass
class Rehearsed:
    """What happened."""

    run_id: str
    line: str
    exit_code: int
    """Of the command that submitted."""
    wall_s: float
    config: RunConfig
    """As it was submitted."""
    stand_ins: list[str]
    variables: dict[str, str]
    """Of the runner: how machines were played that this one cannot hold."""
    tasks: list[tuple[str, str, float]] = field(default_factory=list)
    """Name, state and seconds."""
    jobs: list[tuple[str, str, float, int]] = field(default_factory=list)
    """Custom jobs: display name, state, seconds and machines."""
    preempted: list[Preempted] = field(default_factory=list)
    missing_preemptions: int = 0
    refused_hosts: list[str] = field(default_factory=list)
    faults: int = 0
    """Requests to the bucket that a rule has struck."""
    hash: str = ""
    """Of the specification that the local Vertex received."""
    parameters: str | None = None
    goodput: GoodputRecord | None = None
    undisturbed_parameters: str | None = None
    fired: list[tuple[str, str]] = field(default_factory=list)
    """Runs of the schedule: when each was due, and its state."""
    skipped: int = 0
    """Times of the schedule that found a run still active."""

    @property
    def complaints(self) -> list[str]:
        """What speaks against the rehearsal; empty: nothing."""
        found = []
        if self.exit_code:
            found.append(f"the run failed (exit code {self.exit_code})")
        if self.missing_preemptions:
            found.append(f"{self.missing_preemptions} of the preemptions asked for did not happen")
        if self.refused_hosts:
            found.append(f"hosts outside were called: {', '.join(self.refused_hosts)}")
        if self.undisturbed_parameters is not None and self.undisturbed_parameters != self.parameters:
            found.append("the disturbed training ended in other parameters than the undisturbed one")
        return found


def rehearse(config: RunConfig, *, source: Path | None, folder: Path, wanted: Wanted) -> Rehearsed:
    """Rehearse a submission.

    Args:
        config: The resolved configuration, with absolute paths.
        source: A local folder or manifest that stands for the source.
        folder: For everything that is written.
        wanted: What is to happen.

    Raises:
        ConfigError: The configuration cannot be submitted, or there is nothing local to copy.
    """
    from pipelines.plan import require_plan
    from pipelines.workers import num_nodes
    from rehearsal.cloud import BUCKETS_FOLDER, LocalCloud
    from rehearsal.execution.machines import Scale
    from rehearsal.execution.market import Market, spread

    prepared = prepare(config, source)
    require_plan(prepared.config)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(prepared.config.model_dump(mode="json"), sort_keys=False))
    prepared.copy_source(folder / BUCKETS_FOLDER)
    nodes = num_nodes(prepared.config)
    training = f"{prepared.config.run.name}-train"
    cloud = LocalCloud(
        folder,
        projects={prepared.config.vertex.project: PROJECT_NUMBER},
        buckets=sorted(prepared.buckets),
        market=Market(
            seed=wanted.seed,
            preemptions=spread(wanted.preemptions, seed=wanted.seed, nodes=nodes, job=training),
            rate=wanted.rate_per_h,
        ),
        scale=Scale(processes_per_node=_processes(prepared.config, wanted, nodes), time_scale=wanted.time_scale),
        rules=wanted.rules,
    )
    began = time.monotonic()
    run_id = f"rehearsal-{new_attempt_id()}"
    with cloud, _led_to(cloud.environment):
        if wanted.schedule_days:
            found = _rehearse_schedule(cloud, prepared, path, wanted)
        else:
            code = _command("submit", path, f"--run-id={run_id}", "--wait")
            found = _look(cloud, prepared, run_id, code)
            disturbed = wanted.preemptions or wanted.rate_per_h or wanted.rules
            if code == 0 and disturbed:
                found.undisturbed_parameters = _train_undisturbed(cloud, training, found)
        found.wall_s = time.monotonic() - began
        _leave_evidence(cloud)
    return found


def check(found: Rehearsed) -> None:
    """Raise CheckFailed when something speaks against a rehearsal."""
    if found.complaints:
        raise CheckFailed("\n  ".join(["the rehearsal found:", *found.complaints]))


def _processes(config: RunConfig, wanted: Wanted, nodes: int) -> int | None:
    """Return how many training processes play each machine: as configured where this one can hold them."""
    from contracts.machines import find_machine
    from contracts.process import available_cores

    if wanted.processes_per_node is not None:
        return wanted.processes_per_node
    gpus = find_machine(config.resources.machine).accelerator_count
    asked = config.resources.ranks if config.resources.ranks != "auto" else (gpus or 2)
    most = max(1, 2 * available_cores() // nodes)
    return None if asked <= most and not gpus else min(asked, most)


@contextlib.contextmanager
def _led_to(environment: Mapping[str, str]) -> Iterator[None]:
    """Let this process's own clients use the local cloud while the block runs."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _command(*words: str | Path) -> int:
    """Run a command of ours as its user would; what it prints goes where this one prints."""
    return subprocess.run([sys.executable, "-m", "pipelines.cli", *map(str, words)], check=False).returncode


def _look(cloud: LocalCloud, prepared: Prepared, run_id: str, exit_code: int) -> Rehearsed:
    """Take down what a run has left in the local cloud."""
    from contracts.canonical import canonical_hash

    line = storage.join(prepared.config.run.root, prepared.config.run.name)
    found = Rehearsed(run_id, line, exit_code, 0.0, prepared.config, prepared.stand_ins, dict(cloud.scale.variables))
    for job in cloud.store.list("projects/"):
        kind = type(job).__name__
        if kind == "PipelineJob" and job.name.endswith(f"/{run_id}"):
            found.hash = canonical_hash(_to_dict(job)["pipelineSpec"])
            found.tasks = [
                (task.task_name, task.state.name, _seconds(task.start_time, task.end_time))
                for task in job.job_detail.task_details
            ]
        elif kind == "CustomJob":
            machines = sum(pool.replica_count for pool in job.job_spec.worker_pool_specs)
            found.jobs.append((job.display_name, job.state.name, _seconds(job.start_time, job.end_time), machines))
    found.jobs.reverse()
    found.preempted = list(cloud.market.preempted)
    found.missing_preemptions = cloud.market.missing
    found.refused_hosts = sorted({passage.target for passage in cloud.vertex.passages if not passage.allowed})
    found.faults = sum(cloud.buckets.faults.hits())
    trained = find_result(line, run_id, "train")
    if trained is not None:
        found.parameters = CheckpointManifest.load(trained.uri).parameters_sha256
        found.goodput = read_goodput(line, run_id)
    return found


def _train_undisturbed(cloud: LocalCloud, training: str, found: Rehearsed) -> str | None:
    """Run the training job again, to another folder, on machines that stay; return the hash of its parameters."""
    cloud.buckets.faults.set()
    job = next(
        job
        for job in cloud.store.list("projects/")
        if type(job).__name__ == "CustomJob" and job.display_name == training
    )
    line = f"{found.line}-{UNDISTURBED}"
    parent = job.name.rpartition("/")[0]
    fresh = type(job)(name=f"{parent}/{cloud.store.new_id()}", display_name=UNDISTURBED, job_spec=job.job_spec)
    for pool in fresh.job_spec.worker_pool_specs:
        words = list(pool.container_spec.args)
        words[words.index("--line") + 1] = line
        words[words.index("--run") + 1] = UNDISTURBED
        pool.container_spec.args = words
    fresh.state = type(fresh.state).JOB_STATE_PENDING
    cloud.store.add(fresh.name, fresh)
    cloud.custom_jobs.start(fresh.name)
    cloud.store.wait(fresh.name, lambda message: int(message.state) in _FINAL_STATES, 3600)
    trained = find_result(line, UNDISTURBED, "train")
    return None if trained is None else CheckpointManifest.load(trained.uri).parameters_sha256


def _rehearse_schedule(cloud: LocalCloud, prepared: Prepared, path: Path, wanted: Wanted) -> Rehearsed:
    """Create the schedule and let days pass; the clock runs ahead only while no run is active."""
    code = _command("schedule", "create", path)
    found = _look(cloud, prepared, "", code)
    if code:
        return found
    end = cloud.clock.now() + 86400 * wanted.schedule_days
    while cloud.clock.now() < end or _active(cloud):
        cloud.clock.rate = 1.0 if _active(cloud) else 86400.0
        time.sleep(_POLL_S)
    cloud.clock.rate = 1.0
    found = _look(cloud, prepared, "", code)
    runs = [job for job in cloud.store.list("projects/") if type(job).__name__ == "PipelineJob"]
    found.fired = [(job.create_time.isoformat(), job.state.name) for job in reversed(runs)]
    found.exit_code = next((1 for _, state in found.fired if not state.endswith("SUCCEEDED")), 0)
    return found


def _active(cloud: LocalCloud) -> bool:
    return any(
        type(job).__name__ == "PipelineJob" and int(job.state) not in _FINAL_STATES
        for job in cloud.store.list("projects/")
    )


def _leave_evidence(cloud: LocalCloud) -> None:
    """Write beside the buckets what the local cloud was asked for, and what it made of it."""
    resources: dict[str, list[dict[str, Any]]] = {}
    for message in cloud.store.list("projects/"):
        resources.setdefault(type(message).__name__, []).append(_to_dict(message))
    for kind, messages in resources.items():
        content = json.dumps(messages[::-1], indent=1, sort_keys=True) + "\n"
        (cloud.folder / f"{kind}.json").write_text(content)
    lines = [json.dumps(dataclasses.asdict(entry)) + "\n" for entry in cloud.vertex.access_log.entries()]
    (cloud.folder / "vertex-requests.jsonl").write_text("".join(lines))


def _seconds(start: Any, end: Any) -> float:
    return (end - start).total_seconds() if start and end else 0.0


def _to_dict(message: Any) -> dict[str, Any]:
    from google.protobuf import json_format

    # Operations are protobuf's own messages, all else is wrapped by proto-plus.
    inner = type(message).pb(message) if hasattr(type(message), "pb") else message
    found: dict[str, Any] = json_format.MessageToDict(inner)
    return found
