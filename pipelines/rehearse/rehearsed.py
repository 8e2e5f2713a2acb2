"""What a rehearsal has found: taken down from the local cloud, and what speaks against it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from contracts import storage
from contracts.artifacts import CheckpointManifest, ExportManifest, GoodputRecord
from contracts.config import RunConfig
from contracts.proof import read_verification, verdict
from inspection.goodput import read_goodput
from inspection.run.events import find_output
from pipelines.rehearse.config import Prepared

if TYPE_CHECKING:
    from rehearsal.cloud import LocalCloud
    from rehearsal.jobs.market import Preempted

# Google's libraries ask it whether they run on a machine of Google's; here there is none to answer.
_ASKED_FOR = {"metadata.google.internal", "metadata.google.internal."}
# Name of the second training's job and run; its line is beside the first, in the same bucket.
UNDISTURBED = "undisturbed"


@dataclass
class Comparison:
    """What was made under disturbances beside what is made without."""

    shards: bool | None = None
    """Whether the shards are the same; None: nothing could have disturbed them."""
    parameters: str | None = None
    """Hash of the undisturbed training's parameters; None: it did not end well."""
    reason: str = ""
    """Why there is nothing to compare; empty: there is."""


@dataclass
class Rehearsed:
    """What happened."""

    run_id: str
    line: str
    exit_code: int
    """Of the command that submitted."""
    config: RunConfig
    """As it was submitted."""
    stand_ins: list[str]
    variables: dict[str, str]
    """Of the runner: how machines were played that this one cannot hold."""
    wall_s: float = 0.0
    tasks: list[tuple[str, str, float]] = field(default_factory=list)
    """Name, state and seconds."""
    jobs: list[tuple[str, str, float, int]] = field(default_factory=list)
    """Custom jobs: display name, state, seconds and machines."""
    preempted: list[Preempted] = field(default_factory=list)
    missing_preemptions: int = 0
    refused_hosts: list[str] = field(default_factory=list)
    unused_rules: list[int] = field(default_factory=list)
    """Places in --faults of rules that struck nothing."""
    faults: int = 0
    """Requests to the bucket that a rule has struck."""
    hash: str = ""
    """Of the specification that the local Vertex received."""
    parameters: str | None = None
    """Hash of the training's parameters; None: it did not end."""
    goodput: GoodputRecord | None = None
    comparison: Comparison | None = None
    """None: nothing was to disturb the run."""
    due: int = 0
    """Times at which the schedule was to fire."""
    fired: list[tuple[str, str]] = field(default_factory=list)
    """Runs of the schedule: when each was created, and its state."""
    struck: list[str] = field(default_factory=list)
    """What disturbed the run beside preemptions and rules, in words."""
    idle: list[str] = field(default_factory=list)
    """Options of disturbances that struck nothing."""
    artefact: str = ""
    """Folder of the export, what ships and its verdict; empty: there is none."""
    ended_by: str = ""
    """Likely cause of the run's failure; empty: it succeeded."""

    @property
    def complaints(self) -> list[str]:
        """What speaks against the rehearsal; empty: nothing."""
        return list(self._complaints())

    def _complaints(self) -> Iterator[str]:
        if self.exit_code:
            yield f"the run failed (exit code {self.exit_code})" + (f", {self.ended_by}" if self.ended_by else "")
        if self.missing_preemptions:
            yield f"{self.missing_preemptions} of the preemptions asked for did not happen"
        for number in self.unused_rules:
            yield f"rule {number} of --faults struck nothing"
        for option in self.idle:
            yield f"{option} struck nothing"
        if self.refused_hosts:
            yield f"hosts outside were called: {', '.join(self.refused_hosts)}"
        if self.due != len(self.fired):
            yield f"the schedule was due {self.due} times and started {len(self.fired)} runs"
        for when, state in self.fired:
            if not state.endswith("SUCCEEDED"):
                yield f"the scheduled run of {when} ended as {state}"
        if self.comparison is not None:
            yield from self._differences(self.comparison)

    def _differences(self, comparison: Comparison) -> Iterator[str]:
        if comparison.reason:
            yield f"nothing to compare with: {comparison.reason}"
        elif self.parameters is None or comparison.parameters != self.parameters:
            yield "the disturbed training ended in other parameters than the undisturbed one"
        if comparison.shards is False:
            yield "sharding under faults made other shards than without"


def look(cloud: LocalCloud, prepared: Prepared, run_id: str, exit_code: int, *, num_rules: int = 0) -> Rehearsed:
    """Take down what a run has left in the local cloud.

    Args:
        cloud: The local cloud.
        prepared: What was submitted.
        run_id: Of the run; empty: there are those of a schedule.
        exit_code: Of the command that submitted.
        num_rules: Rules of --faults.
    """
    from contracts.canonical import canonical_hash

    line = storage.join(prepared.config.run.root, prepared.config.run.name)
    found = Rehearsed(run_id, line, exit_code, prepared.config, prepared.stand_ins, dict(cloud.scale.variables))
    for job in cloud.store.list("projects/"):
        kind = type(job).__name__
        # The newest first: the last region in which it was tried.
        if kind == "PipelineJob" and not found.hash and run_id and job.name.rpartition("/")[2] == run_id:
            found.hash = canonical_hash(to_dict(job)["pipelineSpec"])
            found.tasks = [
                (task.task_name, task.state.name, _seconds(task.start_time, task.end_time))
                for task in job.job_detail.task_details
            ]
        elif kind == "CustomJob" and job.display_name != UNDISTURBED:
            machines = sum(pool.replica_count for pool in job.job_spec.worker_pool_specs)
            found.jobs.append((job.display_name, job.state.name, _seconds(job.start_time, job.end_time), machines))
    found.jobs.reverse()
    found.preempted = list(cloud.market.preempted)
    found.missing_preemptions = cloud.market.missing
    found.refused_hosts = sorted(set(cloud.vertex.refused) - _ASKED_FOR)
    hits = cloud.buckets.faults.hits()
    found.faults = sum(hits)
    found.unused_rules = [number for number, count in enumerate(hits[:num_rules], start=1) if not count]
    trained = find_output(line, found.run_id, "train") if run_id else None
    if trained is not None:
        found.parameters = CheckpointManifest.load(trained).parameters_sha256
        found.goodput = read_goodput(line, found.run_id)
    exported = find_output(line, found.run_id, "export") if run_id else None
    if exported is not None:
        made = ExportManifest.load(exported)
        found.artefact = f"{exported}: {made.precision}; {verdict(made, read_verification(exported, made))}"
    return found


def leave_evidence(cloud: LocalCloud) -> None:
    """Write beside the buckets what the local cloud was asked for, and what it made of it."""
    resources: dict[str, list[dict[str, Any]]] = {}
    for message in cloud.store.list("projects/"):
        resources.setdefault(type(message).__name__, []).append(to_dict(message))
    for kind, messages in resources.items():
        content = json.dumps(messages[::-1], indent=1, sort_keys=True) + "\n"
        (cloud.folder / f"{kind}.json").write_text(content)
    lines = [json.dumps(dataclasses.asdict(entry)) + "\n" for entry in cloud.vertex.access_log.entries()]
    (cloud.folder / "vertex-requests.jsonl").write_text("".join(lines))


def to_dict(message: Any) -> dict[str, Any]:
    """Return a message of Google's as JSON values."""
    from google.protobuf import json_format

    # Operations are protobuf's own messages, all else is wrapped by proto-plus.
    inner = type(message).pb(message) if hasattr(type(message), "pb") else message
    found: dict[str, Any] = json_format.MessageToDict(inner)
    return found


def _seconds(start: Any, end: Any) -> float:
    return (end - start).total_seconds() if start and end else 0.0
