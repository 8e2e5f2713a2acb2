"""What is known of a run, in one document: what every page, the terminal and the server show.

A part that could not be read is None or empty, and `missing` says why. Times are seconds since the epoch.
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
    Rejected,
    TraceSummary,
    Verification,
)

State = Literal["running", "silent", "unknown", "unreadable", "stopped", "interrupted", "failed", "succeeded"]
"""silent: in a bucket, no record and no event for ten minutes; unknown: for a day, so that it was cancelled or
lost; stopped: its process is gone and has left no record;
interrupted: a user's signal ended it."""
StageState = Literal["waiting", "running", "done", "reused", "failed", "interrupted", "stopped", "not started"]
MarkKind = Literal["start", "checkpoint", "best", "preemption", "interruption", "kill", "crash", "resume", "end"]


class Missing(Document):
    """Something that could not be read."""

    what: str
    """What would be there, in words: learning curves, shards, the log of stage train."""
    reason: str


class ProgressView(Document):
    """How far a stage is, by its newest word."""

    done: float
    total: float
    unit: str
    message: str
    at: float


class AttemptView(Document):
    """One start of a stage."""

    name: str
    started_at: float | None
    ended_at: float | None
    """Its last word, where its end was not seen."""
    exit_code: int | None
    """None: it runs, or ended without a word."""
    error: str
    folder: str
    """URI of its events, log and error."""
    log: str | None
    """URI of its log; None: there is none."""
    said: str = ""
    """Of the last attempt: its last messages, a line each, where its log is not here: in a bucket, in Cloud Logging."""


class StageView(Document):
    """What a stage did for this run."""

    name: str
    state: StageState
    started_at: float | None = None
    wall_s: float | None = None
    start_s: float | None = None
    """Part of it spent on process starts and imports."""
    made: str = ""
    """What it made, in words."""
    uri: str | None = None
    """Folder of its document, where it can be read now."""
    manifest_sha256: str | None = None
    error: str = ""
    progress: ProgressView | None = None
    attempts: list[AttemptView] = Field(default=[])


class SplitView(Document):
    """One split of the data."""

    name: str
    samples: int
    source_bytes: int
    by_class: list[int]
    """Samples of each class of `DataView.classes`."""


class ShardView(Document):
    """The sizes of the shards of a split."""

    split: str
    shards: int
    samples: int
    bytes: int
    sizes: list[int]
    """Bytes of each shard, in order; of very many, evenly chosen ones."""


class PictureView(Document):
    """An image, small."""

    jpeg: str
    """Base64."""
    width: int
    height: int
    label: str
    """Name of its class."""
    key: str
    split: str


class DataView(Document):
    """What the shards hold."""

    uri: str
    format: str
    is_increment: bool
    """Whether shards of an earlier manifest are reused."""
    classes: list[str]
    num_classes: int
    """More than `classes` has, where there are very many: those with most samples are listed."""
    splits: list[SplitView]
    shards: list[ShardView]
    num_rejected: int
    rejected: list[Rejected]
    """The first of them."""
    rejected_by_reason: dict[str, int]
    """The most frequent reasons, with the number of files; of all that were rejected."""
    num_ignored: int
    formats: dict[str, int]
    width: list[int] | None
    height: list[int] | None
    duplicate_groups: int | None
    """Groups of samples with the same content; None: none was found."""
    duplicate_copies: int | None
    leaking_groups: int | None
    """Groups with samples in more than one split."""
    duplicates_searched: bool = True
    """Whether copies were looked for at all."""
    mean: list[float] | None
    std: list[float] | None
    compared: str = ""
    """How the data differs from that of the run before; empty: it was not compared."""
    warnings: list[str] = Field(default=[])
    """What was remarked about the source; the first of them."""
    has_images: bool = True
    """Whether samples have a field of kind image."""


class Curve(Document):
    """A scalar over training."""

    name: str
    """Of the scalar, as TensorBoard has it."""
    steps: list[int]
    times: list[float]
    values: list[float]
    rows: int
    """Before down-sampling."""
    not_finite: int = 0
    """Values that are NaN or infinite: they are in no other field."""
    first_not_finite: int | None = None
    """Step of the first of them."""

    def at(self, places: Sequence[int]) -> Curve:
        """Return the curve with the rows at these places alone."""
        columns = {name: [getattr(self, name)[place] for place in places] for name in ("steps", "times", "values")}
        return self.model_copy(update=columns)


class Curves(Document):
    """The scalars of a training."""

    curves: list[Curve]
    rows: int
    """All that were read."""
    missing: list[str] = Field(default=[])
    """What could not be read, in words."""


class Mark(Document):
    """Something that happened to a training, on its time axis."""

    kind: MarkKind
    time: float
    step: int | None
    """Optimizer step; None: not known."""
    text: str


class Marks(Document):
    """What happened to a training."""

    marks: list[Mark]
    """In the order of time; of very many checkpoints, evenly chosen ones."""
    counts: dict[str, int]
    """Of all of them, by kind."""


class MoneyView(Document):
    """What the machines of a run cost. An estimate: prices come from a dated table, or from the configuration."""

    node_hours: float
    """Of the training's machines."""
    machine: str
    strategy: str
    cost_usd: float
    on_demand_usd: float | None
    """The same hours on demand; None: unknown."""
    source: str
    as_of: str
    assumptions: list[str]


class ChangeView(Document):
    """What two runs have of something, as text; empty: the run has it not."""

    name: str
    """Key of the configuration, or: data."""
    before: str
    now: str


class BeforeView(Document):
    """The run before this one in its line, and what it has other than this one."""

    id: str
    changes: list[ChangeView]
    """The first of very many."""
    data_known: bool
    """Whether both runs have shards, so that they could be compared."""


class LineageView(Document):
    """One document of the way from the source's listing to the engine."""

    name: str
    """listing, shards, profile, checkpoint, export, engine."""
    stage: str
    uri: str | None
    fingerprint: str
    """Hash of what decided it; empty: not known."""
    sha256: str
    """Hash of its content; empty: not known."""
    made_from: dict[str, str]
    """Hashes of what went into it, by name."""


def shows_samples(config: Mapping[str, Any]) -> bool:
    """Whether the pages of a run show what samples hold (inspect.samples).

    Args:
        config: The run's configuration; where it cannot be read, nothing is shown.
    """
    section = config.get("inspect", {})
    return bool(config) and isinstance(section, dict) and section.get("samples", "show") == "show"


class RunView(Document):
    """Everything that is known of a run."""

    id: str
    name: str
    """Of the line."""
    line: str
    """URI of the line's folder, where it is now."""
    folder: str
    """URI of the run's own documents."""
    place: Literal["local", "vertex"]
    """Where it ran: as a command, or as a PipelineJob (a rehearsed one too)."""
    state: State
    error: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    wall_s: float | None = None
    """So far, where it runs."""
    seen_at: float
    """When this was read."""
    last_word_at: float | None = None
    """Newest event of any stage."""
    console: str | None = None
    """Page of the run in Google's console."""
    config: dict[str, Any]
    stages: list[StageView]
    data: DataView | None = None
    pictures: list[PictureView] = Field(default=[])
    first_slot: PictureView | None = None
    """The first samples of the training as its network got them: one picture of up to 16."""
    profile: ProfileReport | None = None
    trace_summaries: list[TraceSummary] = Field(default=[])
    """Of the profile's traces, by rank."""
    curves: Curves | None = None
    marks: Marks | None = None
    goodput: GoodputRecord | None = None
    money: MoneyView | None = None
    checkpoint: CheckpointManifest | None = None
    evaluation: EvaluationReport | None = None
    task_parts: dict[str, Any] = Field(default_factory=dict)
    """What the task's own page shows besides (inspection/tasks/)."""
    export: ExportManifest | None = None
    verification: Verification | None = None
    """Of the export's engine, on a GPU since it was made."""
    registration: dict[str, Any] | None = None
    """Decision on production (components/gate.py)."""
    lineage: list[LineageView] = Field(default=[])
    before: BeforeView | None = None
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
