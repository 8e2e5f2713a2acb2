"""Result of a rehearsal: read from the local cloud, what speaks against it, and the report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from contracts import storage
from contracts.artifacts import CheckpointManifest, ExportManifest, GoodputRecord
from contracts.config import RunConfig
from contracts.proof import read_verification, verdict
from inspection.stages import find_output
from inspection.training import read_goodput
from pipelines.rehearse.config import RehearsalConfig
from pipelines.rehearse.options import RehearsalOptions

if TYPE_CHECKING:
    from rehearsal.cloud import LocalCloud
    from rehearsal.jobs.market import Preempted

# Google's libraries ask it whether they run on a machine of Google's; here there is none to answer.
_ASKED_FOR = {"metadata.google.internal", "metadata.google.internal."}
UNDISTURBED = "undisturbed"
"""Name of the second training's job and run; its line is beside the first, in the same bucket."""


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
class Result:
    """What happened."""

    run_id: str
    line: str
    exit_code: int
    """Of the command that submitted."""
    config: RunConfig
    """As it was submitted."""
    stand_ins: list[str]
    variables: dict[str, str]
    """How machines and data were scaled that this machine cannot hold."""
    wall_s: float = 0.0
    tasks: list[tuple[str, str, float]] = field(default_factory=list)
    """Name, state and seconds."""
    jobs: list[tuple[str, str, float, int]] = field(default_factory=list)
    """Custom jobs: display name, state, seconds and machines."""
    preempted: list[Preempted] = field(default_factory=list)
    refused_hosts: list[str] = field(default_factory=list)
    faults: int = 0
    """Requests to the bucket that failed by a rule."""
    hash: str = ""
    """Of the specification that the local Vertex AI received."""
    parameters: str | None = None
    """Hash of the training's parameters; None: it did not end."""
    goodput: GoodputRecord | None = None
    comparison: Comparison | None = None
    """None: nothing was to disturb the run."""
    due: int = 0
    """Times at which the schedule was to fire."""
    fired: list[tuple[str, str]] = field(default_factory=list)
    """Runs of the schedule: when each was created, and its state."""
    effects: list[str] = field(default_factory=list)
    """What each option has disturbed, in words."""
    shortfalls: list[str] = field(default_factory=list)
    """Options that have not, or not fully, had their effect, in words."""
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
            yield f"the run failed (exit code {self.exit_code})" + (f": {self.ended_by}" if self.ended_by else "")
        yield from self.shortfalls
        if self.refused_hosts:
            yield f"hosts outside were called: {', '.join(self.refused_hosts)}"
        if self.due != len(self.fired):
            yield f"the schedule was due {self.due} times and started {len(self.fired)} runs"
        for when, state in self.fired:
            if not state.endswith("SUCCEEDED"):
                yield f"the scheduled run of {when} ended as {state}"
        if self.comparison is None:
            return
        if self.comparison.reason:
            yield f"nothing to compare with: {self.comparison.reason}"
        elif self.parameters is None or self.comparison.parameters != self.parameters:
            yield "the disturbed training ended in other parameters than the undisturbed one"
        if self.comparison.shards is False:
            yield "sharding under faults made other shards than without"


def collect_result(
    cloud: LocalCloud, prepared: RehearsalConfig, options: RehearsalOptions, run_id: str, exit_code: int
) -> Result:
    """Read what a run has left in the local cloud, or the runs of a schedule where `run_id` is empty.

    Nothing is disturbed from then on.
    """
    from contracts.canonical import canonical_hash

    line = storage.join(prepared.config.run.root, prepared.config.run.name)
    variables = {**cloud.scale.variables, "time scale": f"{options.time_scale:g}"}
    result = Result(run_id, line, exit_code, prepared.config, prepared.stand_ins, variables)
    for job in cloud.store.list("projects/"):
        kind = type(job).__name__
        # The newest first: the last region in which it was tried.
        if kind == "PipelineJob" and not result.hash and job.name.rpartition("/")[2] == run_id:
            result.hash = canonical_hash(_to_dict(job)["pipelineSpec"])
            result.tasks = [
                (task.task_name, task.state.name, _seconds(task.start_time, task.end_time))
                for task in job.job_detail.task_details
            ]
        elif kind == "PipelineJob" and not run_id:
            result.fired.insert(0, (job.create_time.isoformat(), job.state.name))
        elif kind == "CustomJob" and job.display_name != UNDISTURBED:
            machines = sum(pool.replica_count for pool in job.job_spec.worker_pool_specs)
            row = (job.display_name, job.state.name, _seconds(job.start_time, job.end_time), machines)
            result.jobs.insert(0, row)
    result.preempted = list(cloud.market.preempted)
    result.refused_hosts = sorted(set(cloud.vertex.refused) - _ASKED_FOR)
    result.faults = sum(cloud.buckets.faults.hits())
    for effect, shortfall in find_effects(cloud, options):
        result.effects += [effect] if effect else []
        result.shortfalls += [shortfall] if shortfall else []
    # What is read from here on is read from the buckets.
    cloud.stop_disturbances()
    if not run_id:
        return result
    if (trained := find_output(line, run_id, "train")) is not None:
        result.parameters = CheckpointManifest.load(trained).parameters_sha256
        result.goodput = read_goodput(line, run_id)
    if (exported := find_output(line, run_id, "export")) is not None:
        made = ExportManifest.load(exported)
        result.artefact = f"{exported}: {made.precision}; {verdict(made, read_verification(exported, made))}"
    return result


def find_effects(cloud: LocalCloud, options: RehearsalOptions) -> Iterator[tuple[str, str]]:
    """Yield of each disturbance that was asked for what it has done and what it has not, in words; one may be empty."""

    def of(option: str, effect: str) -> tuple[str, str]:
        return effect, "" if effect else f"{option} had no effect"

    if options.preemptions:
        option, kinds = f"--preempt {options.preemptions}", [gone.kind for gone in cloud.market.preempted]
        by_kind = ", ".join(f"{kinds.count(kind)} by {kind}" for kind in ("sigterm", "sigkill"))
        effect, shortfall = of(option, f"{len(kinds)} machines taken away ({by_kind})" if kinds else "")
        if kinds and cloud.market.missing:
            shortfall = f"{option}: only {len(kinds)} machines were taken away"
        yield effect, shortfall
    for region in options.stockouts:
        jobs = ", ".join(dict.fromkeys(cloud.market.without_machines.get(region, [])))
        yield of(f"--stockout {region}", jobs and f"no machines in {region}: {jobs}")
    hits = list(cloud.buckets.faults.hits())
    if options.storage_fault_rate:
        # The last of the rules, behind those of --faults.
        count = hits.pop()
        effect = f"{count} requests to buckets were answered with 503" if count else ""
        yield of(f"--storage-faults {options.storage_fault_rate:g}", effect)
    for number, count in enumerate(hits, start=1):
        option = f"rule {number} of --faults"
        yield of(option, f"{count} requests to buckets by {option}" if count else "")


def leave_evidence(cloud: LocalCloud) -> None:
    """Write beside the buckets what the local cloud was asked for, and its resources."""
    resources: dict[str, list[dict[str, Any]]] = {}
    for message in cloud.store.list("projects/"):
        resources.setdefault(type(message).__name__, []).append(_to_dict(message))
    for kind, messages in resources.items():
        content = json.dumps(messages[::-1], indent=1, sort_keys=True) + "\n"
        (cloud.folder / f"{kind}.json").write_text(content)
    lines = [json.dumps(dataclasses.asdict(entry)) + "\n" for entry in cloud.vertex.access_log.entries()]
    (cloud.folder / "vertex-requests.jsonl").write_text("".join(lines))


def print_result(result: Result, stream: TextIO, *, kept: Path | None = None) -> None:
    """Print the report; `kept` is the folder that holds what the rehearsal left, if it stays."""
    print(f"rehearsal of {result.line}, {result.wall_s:.0f} s", file=stream)
    for name, text in rows(result):
        print(f"  {name:<14} {text}", file=stream)
    if kept is not None:
        # The objects of its buckets are files there, so that no server is needed to look at them.
        line = kept / "buckets" / result.line.removeprefix("gs://")
        print(f"  {'look':<14} shardline report {line}; shardline runs {line.parent}", file=stream)


def rows(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the rows of the report: a word and a text."""
    for stand_in in result.stand_ins:
        yield "stand-in", stand_in
    for name, value in sorted(result.variables.items()):
        yield "scaled", f"{name} = {value} (the specification is unchanged)"
    if result.hash:
        yield "specification", f"sha256:{result.hash}"
    for name, state, seconds in result.tasks:
        yield "task", f"{name:<32} {state:<14} {seconds:>7.1f} s"
    for name, state, seconds, machines in result.jobs:
        yield "custom job", f"{name:<32} {state.removeprefix('JOB_STATE_'):<14} {seconds:>7.1f} s, machines: {machines}"
    for when, state in result.fired:
        yield "scheduled", f"{when} {state.removeprefix('PIPELINE_STATE_')}"
    for gone in result.preempted:
        yield "preempted", f"machine {gone.node} of {gone.display_name} by {gone.kind} at step {gone.step}"
    if (goodput := result.goodput) is not None:
        steps = f"{goodput.steps} steps, {goodput.lost_steps} lost"
        counts = f"attempts: {goodput.attempts}, preemptions: {goodput.preemptions}"
        yield "goodput", f"{goodput.goodput_percent:.1f} % of {goodput.wall_s:.0f} s; {steps}; {counts}"
    if result.artefact:
        yield "artefact", result.artefact
    if (compared := result.comparison) is not None and not compared.reason:
        same = "the same" if compared.parameters == result.parameters is not None else "NOT the same"
        yield "result", f"{same} parameters as undisturbed: sha256 {result.parameters}"
        if compared.shards is not None:
            yield "result", f"{'the same' if compared.shards else 'NOT the same'} shards as without faults"
    if result.due:
        yield "schedule", f"fired {len(result.fired)} times"
    for effect in result.effects:
        yield "happened" if result.complaints else "survived", effect
    if not result.effects and not result.shortfalls:
        yield "disturbed", "no disturbance was asked for"
    if result.exit_code:
        yield "ended by", f"{result.ended_by or 'see above'} (exit code {result.exit_code})"
    for shortfall in result.shortfalls:
        yield "not proven", shortfall
    if result.comparison is None or result.comparison.reason:
        yield "not proven", "whether the parameters are those of an undisturbed training: nothing was compared"
    yield "not proven", "permissions, quotas, images, networks and machines of the real project (docs/rehearsal.md)"


def to_json(result: Result) -> str:
    """Return the same as JSON."""
    values = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    values |= {"config": result.config.model_dump(mode="json"), "complaints": result.complaints}
    values["preempted"] = [dataclasses.asdict(gone) for gone in result.preempted]
    values["comparison"] = dataclasses.asdict(result.comparison) if result.comparison else None
    values["goodput"] = result.goodput.model_dump(mode="json") if result.goodput else None
    return json.dumps(values, indent=1, default=str)


def _to_dict(message: Any) -> dict[str, Any]:
    from google.protobuf import json_format

    # Operations are protobuf's own messages, all else is wrapped by proto-plus.
    inner = type(message).pb(message) if hasattr(type(message), "pb") else message
    values: dict[str, Any] = json_format.MessageToDict(inner)
    return values


def _seconds(start: Any, end: Any) -> float:
    return (end - start).total_seconds() if start and end else 0.0
