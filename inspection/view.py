"""RunView: the data of a run in one document, for terminal, page and pipeline artifacts.

It contains the documents of the stages. Unreadable parts are None or empty, and `missing` has the reason.
Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from contracts.artifacts import (
    CheckpointManifest,
    Document,
    EvaluationReport,
    ExportManifest,
    GoodputRecord,
    ProfileReport,
    ShardManifest,
    TraceSummary,
    Verification,
)

State = Literal["running", "silent", "unknown", "unreadable", "stopped", "interrupted", "failed", "succeeded"]
"""silent: in a bucket, no record and no event for ten minutes; unknown: for a day; stopped: its process ended
without a record; interrupted: a user's signal ended it."""
StageState = Literal["waiting", "running", "done", "reused", "failed", "interrupted", "stopped", "not started"]
MarkKind = Literal["start", "checkpoint", "best", "preemption", "interruption", "kill", "crash", "resume", "end"]
LabelKind = Literal["good", "bad", "plain"]


class Missing(Document):
    """A part that could not be read."""

    what: str
    reason: str


class Progress(Document):
    """Progress of a stage, by its newest event."""

    done: float
    total: float
    unit: str
    message: str
    at: float


class Attempt(Document):
    """One start of a stage."""

    name: str
    started_at: float | None
    ended_at: float | None
    """Time of its last event."""
    exit_code: int | None
    """None: it runs, or its end is unknown."""
    error: str
    folder: str
    """URI of its events, log and error."""
    log: str | None
    last_messages: str = ""
    """Of the newest attempt, one per line, if its log is not local: in a bucket or Cloud Logging."""


class StageView(Document):
    """State and output of a stage in this run."""

    name: str
    state: StageState
    started_at: float | None = None
    wall_s: float | None = None
    start_s: float | None = None
    """Part of `wall_s` spent on process starts and imports."""
    made: str = ""
    """Summary of its output."""
    uri: str | None = None
    """Current folder of its manifest."""
    manifest_sha256: str | None = None
    """As the run's record has it."""
    error: str = ""
    progress: Progress | None = None
    attempts: list[Attempt] = Field(default=[])
    reused_from: str = ""
    """Id of the run that produced its output; empty if unknown or this run."""


class Picture(Document):
    """A small image."""

    jpeg: str
    """Base64."""
    width: int
    height: int


class SampleLabel(Document):
    """A label of a sample: the true one, or a predicted one."""

    what: str
    """label, predicted, missed, wrong."""
    name: str
    kind: LabelKind
    probability: float | None = None


class WorstSample(Document):
    """A sample with one of the worst predictions."""

    key: str
    picture: Picture | None = None
    """None: the sample has no image, or it could not be read."""
    text: str | None = None
    """Beginning of the sample's text; None: no text, or unreadable."""
    labels: list[SampleLabel] = Field(default=[])
    loss: float | None = None
    file: str = ""
    """Path of its file in the source; empty if unknown."""


class Curve(Document):
    """A scalar over training, without steps that a later attempt repeated."""

    name: str
    steps: list[int]
    times: list[float]
    values: list[float]
    rows: int
    """Before thinning."""
    not_finite: int = 0
    """Number of NaN and infinite values, which `values` does not contain."""
    first_not_finite: int | None = None
    """Step of the first of them."""

    def at(self, places: Sequence[int]) -> Curve:
        """Return the curve with the rows at these places only."""
        columns = {name: [getattr(self, name)[place] for place in places] for name in ("steps", "times", "values")}
        return self.model_copy(update=columns)


class Mark(Document):
    """An event of a training on its time axis."""

    kind: MarkKind
    time: float
    step: int | None
    """Optimizer step; None if unknown."""
    text: str


class Money(Document):
    """Estimated cost of a training's machines, by a dated table or by the configuration's price."""

    node_hours: float
    machine: str
    strategy: str
    cost_usd: float
    on_demand_usd: float | None
    """The same hours on demand; None: unknown."""
    source: str
    as_of: str
    assumptions: list[str]


class Change(Document):
    """A difference between two runs, as text; empty if a run does not have the value."""

    name: str
    """Key of the configuration, or: data."""
    before: str
    now: str


class PreviousRun(Document):
    """The previous run of the line, and the differences."""

    id: str
    changes: list[Change]
    data_known: bool
    """Whether both runs have shards to compare."""


def shows_samples(config: Mapping[str, Any]) -> bool:
    """Return whether pages show the contents of samples (inspect.samples); False for an unknown configuration."""
    section = config.get("inspect", {})
    return bool(config) and isinstance(section, dict) and section.get("samples", "show") == "show"


class RunView(Document):
    """Data of a run."""

    id: str
    name: str
    """Of the line."""
    line: str
    """Current URI of the line's folder."""
    folder: str
    place: Literal["local", "vertex"]
    """local: a command; vertex: a PipelineJob, also in a rehearsal."""
    state: State
    error: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    wall_s: float | None = None
    """So far, for a run in progress."""
    seen_at: float
    """Time of reading."""
    last_event_at: float | None = None
    """Newest event of any stage."""
    console: str | None = None
    """Page of the run in Google's console."""
    config: dict[str, Any]
    stages: list[StageView]
    shards: ShardManifest | None = None
    data_change: str = ""
    """Difference of the data from that of the run before, as reported by the shard stage; empty if not compared."""
    data_warnings: list[str] = Field(default=[])
    """Of that comparison; those of the shards themselves are in `shards`."""
    profile: ProfileReport | None = None
    trace_summaries: list[TraceSummary] = Field(default=[])
    """By rank."""
    checkpoint: CheckpointManifest | None = None
    evaluation: EvaluationReport | None = None
    worst: list[WorstSample] = Field(default=[])
    curves: list[Curve] = Field(default=[])
    marks: list[Mark] = Field(default=[])
    """In temporal order; many checkpoints are thinned evenly."""
    goodput: GoodputRecord | None = None
    money: Money | None = None
    export: ExportManifest | None = None
    verification: Verification | None = None
    """Later verification of the export's engine on a GPU."""
    registration: dict[str, Any] | None = None
    """Decision on production (components/gate.py)."""
    manifest_sha256: dict[str, str] = Field(default_factory=dict)
    """Current hash of each stage's manifest, by stage."""
    previous: PreviousRun | None = None
    missing: list[Missing] = Field(default=[])

    @property
    def task(self) -> str:
        """Name of the task."""
        if self.evaluation is not None:
            return self.evaluation.task
        section = self.config.get("task")
        return str(section.get("name")) if isinstance(section, dict) else ""

    def stage(self, name: str) -> StageView | None:
        """Return a stage by its name."""
        return next((stage for stage in self.stages if stage.name == name), None)
