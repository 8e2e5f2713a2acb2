"""Result of a rehearsal: collected from the local cloud, complaints, and the report."""

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

# Google's libraries probe this host to detect their platform; a rehearsal does not serve it.
_METADATA_HOSTS = {"metadata.google.internal", "metadata.google.internal."}
UNDISTURBED = "undisturbed"
"""Name of the second training's job and run, and suffix of its line, in the same bucket."""


@dataclass
class Comparison:
    """Comparison of the disturbed run with an undisturbed one."""

    shards: bool | None = None
    """Whether the shards are equal; None: they were not disturbed."""
    parameters: str | None = None
    """Hash of the undisturbed training's parameters; None: it failed."""
    reason: str = ""
    """Why nothing was compared; empty: it was."""


@dataclass
class Result:
    """Result of a rehearsal."""

    run_id: str
    line: str
    exit_code: int
    """Exit code of the submitting command."""
    config: RunConfig
    """The submitted configuration."""
    stand_ins: list[str]
    variables: dict[str, str]
    """How machines and data were scaled down to this machine."""
    wall_s: float = 0.0
    tasks: list[tuple[str, str, float]] = field(default_factory=list)
    """Name, state and seconds."""
    jobs: list[tuple[str, str, float, int]] = field(default_factory=list)
    """Custom jobs: display name, state, seconds and machines."""
    preempted: list[Preempted] = field(default_factory=list)
    refused_hosts: list[str] = field(default_factory=list)
    faults: int = 0
    """Number of bucket requests that failed by a rule."""
    hash: str = ""
    """Hash of the specification that the local Vertex AI received."""
    parameters: str | None = None
    """Hash of the training's parameters; None: it did not finish."""
    goodput: GoodputRecord | None = None
    comparison: Comparison | None = None
    """None: no disturbances were requested."""
    due: int = 0
    """Number of times at which the schedule was due."""
    fired: list[tuple[str, str]] = field(default_factory=list)
    """Runs of the schedule: creation time and state."""
    effects: list[str] = field(default_factory=list)
    """Messages about the effects of options."""
    shortfalls: list[str] = field(default_factory=list)
    """Messages about options without their full effect."""
    artefact: str = ""
    """Folder, precision and verdict of the export; empty: there is none."""
    ended_by: str = ""
    """Likely cause of the run's failure; empty: it succeeded."""

    @property
    def complaints(self) -> list[str]:
        """Messages about failures of the rehearsal; empty: it succeeded."""
        return list(self._complaints())

    def _complaints(self) -> Iterator[str]:
        if self.exit_code:
            yield f"the run failed (exit code {self.exit_code})" + (f": {self.ended_by}" if self.ended_by else "")
        yield from self.shortfalls
        if self.refused_hosts:
            yield f"hosts outside were called: {', '.join(self.refused_hosts)}"
        if self.due != len(self.fired):
            yield f"the schedule was due {self.due} times and started {len(self.fired)} runs"
        for created_at, state in self.fired:
            if not state.endswith("SUCCEEDED"):
                yield f"the scheduled run of {created_at} ended as {state}"
        if self.comparison is None:
            return
        if self.comparison.reason:
            yield f"nothing was compared: {self.comparison.reason}"
        elif self.parameters is None or self.comparison.parameters != self.parameters:
            yield "the parameters of the disturbed training differ from those of the undisturbed one"
        if self.comparison.shards is False:
            yield "the shards written under faults differ from those written without"


def collect_result(
    cloud: LocalCloud, prepared: RehearsalConfig, options: RehearsalOptions, run_id: str, exit_code: int
) -> Result:
    """Collect the result of a run, or of a schedule's runs if `run_id` is empty, and stop the disturbances."""
    from contracts.canonical import canonical_hash

    line = storage.join(prepared.config.run.root, prepared.config.run.name)
    variables = {**cloud.scale.variables, "time scale": f"{options.time_scale:g}"}
    result = Result(run_id, line, exit_code, prepared.config, prepared.stand_ins, variables)
    for job in cloud.store.list("projects/"):
        kind = type(job).__name__
        # The newest job is that of the last region.
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
    result.refused_hosts = sorted(set(cloud.vertex.refused) - _METADATA_HOSTS)
    result.faults = sum(cloud.buckets.faults.hits())
    for effect, shortfall in find_effects(cloud, options):
        result.effects += [effect] if effect else []
        result.shortfalls += [shortfall] if shortfall else []
    cloud.stop_disturbances()
    if not run_id:
        return result
    if (trained := find_output(line, run_id, "train")) is not None:
        result.parameters = CheckpointManifest.load(trained).parameters_sha256
        result.goodput = read_goodput(line, run_id)
    if (exported := find_output(line, run_id, "export")) is not None:
        export = ExportManifest.load(exported)
        result.artefact = f"{exported}: {export.precision}; {verdict(export, read_verification(exported, export))}"
    return result


def find_effects(cloud: LocalCloud, options: RehearsalOptions) -> Iterator[tuple[str, str]]:
    """Yield effect and shortfall of each requested disturbance, as messages; either may be empty."""

    def describe_effect(option: str, effect: str) -> tuple[str, str]:
        return effect, "" if effect else f"{option} had no effect"

    if options.preemptions:
        option, kinds = f"--preempt {options.preemptions}", [preemption.kind for preemption in cloud.market.preempted]
        by_kind = ", ".join(f"{kinds.count(kind)} by {kind}" for kind in ("sigterm", "sigkill"))
        effect, shortfall = describe_effect(option, f"{len(kinds)} machines taken away ({by_kind})" if kinds else "")
        if kinds and cloud.market.missing:
            shortfall = f"{option}: only {len(kinds)} machines were taken away"
        yield effect, shortfall
    for region in options.stockouts:
        jobs = ", ".join(dict.fromkeys(cloud.market.without_machines.get(region, [])))
        yield describe_effect(f"--stockout {region}", jobs and f"no machines in {region}: {jobs}")
    hits = list(cloud.buckets.faults.hits())
    if options.storage_fault_rate:
        # Its rule is the last, after those of --faults.
        count = hits.pop()
        effect = f"{count} requests to buckets were answered with 503" if count else ""
        yield describe_effect(f"--storage-faults {options.storage_fault_rate:g}", effect)
    for number, count in enumerate(hits, start=1):
        option = f"rule {number} of --faults"
        yield describe_effect(option, f"{count} requests to buckets by {option}" if count else "")


def leave_evidence(cloud: LocalCloud) -> None:
    """Write the requests to the local cloud, and its resources, to files beside the buckets."""
    resources: dict[str, list[dict[str, Any]]] = {}
    for message in cloud.store.list("projects/"):
        resources.setdefault(type(message).__name__, []).append(_to_dict(message))
    for kind, messages in resources.items():
        content = json.dumps(messages[::-1], indent=1, sort_keys=True) + "\n"
        (cloud.folder / f"{kind}.json").write_text(content)
    lines = [json.dumps(dataclasses.asdict(entry)) + "\n" for entry in cloud.vertex.access_log.entries()]
    (cloud.folder / "vertex-requests.jsonl").write_text("".join(lines))


def print_result(result: Result, stream: TextIO, *, kept_folder: Path | None = None) -> None:
    """Print the report; `kept_folder` is the folder of --keep."""
    print(f"rehearsal of {result.line}, {result.wall_s:.0f} s", file=stream)
    for name, text in rows(result):
        print(f"  {name:<14} {text}", file=stream)
    if kept_folder is not None:
        # Objects are plain files there: reading them needs no server.
        line = kept_folder / "buckets" / result.line.removeprefix("gs://")
        print(f"  {'look':<14} shardline report {line}; shardline runs {line.parent}", file=stream)


def rows(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the rows of the report: title and text."""
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
    for created_at, state in result.fired:
        yield "scheduled", f"{created_at} {state.removeprefix('PIPELINE_STATE_')}"
    for event in result.preempted:
        yield "preempted", f"machine {event.node} of {event.display_name} by {event.kind} at step {event.step}"
    if (goodput := result.goodput) is not None:
        steps = f"{goodput.steps} steps, {goodput.lost_steps} lost"
        counts = f"attempts: {goodput.attempts}, preemptions: {goodput.preemptions}"
        yield "goodput", f"{goodput.goodput_percent:.1f} % of {goodput.wall_s:.0f} s; {steps}; {counts}"
    if result.artefact:
        yield "artefact", result.artefact
    if (compared := result.comparison) is not None and not compared.reason:
        judgement = "the same" if compared.parameters == result.parameters is not None else "NOT the same"
        yield "result", f"{judgement} parameters as undisturbed: sha256 {result.parameters}"
        if compared.shards is not None:
            yield "result", f"{'the same' if compared.shards else 'NOT the same'} shards as without faults"
    if result.due:
        yield "schedule", f"fired {len(result.fired)} times"
    for effect in result.effects:
        yield "happened" if result.complaints else "survived", effect
    if not result.effects and not result.shortfalls:
        yield "disturbed", "no disturbances were requested"
    if result.exit_code:
        yield "ended by", f"{result.ended_by or 'see above'} (exit code {result.exit_code})"
    for shortfall in result.shortfalls:
        yield "not proven", shortfall
    if result.comparison is None or result.comparison.reason:
        yield "not proven", "whether the parameters are those of an undisturbed training: nothing was compared"
    yield "not proven", "permissions, quotas, images, networks and machines of the real project (docs/rehearsal.md)"


def to_json(result: Result) -> str:
    """Return a result as JSON."""
    values = {**dataclasses.asdict(result), "complaints": result.complaints}
    return json.dumps(values, indent=1, default=lambda document: document.model_dump(mode="json"))


def _to_dict(message: Any) -> dict[str, Any]:
    from google.protobuf import json_format

    # Operations are plain protobuf messages, all others are wrapped by proto-plus.
    inner = type(message).pb(message) if hasattr(type(message), "pb") else message
    values: dict[str, Any] = json_format.MessageToDict(inner)
    return values


def _seconds(start: Any, end: Any) -> float:
    return (end - start).total_seconds() if start and end else 0.0
