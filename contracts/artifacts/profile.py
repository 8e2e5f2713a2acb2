"""Profile report and trace summaries: measurements, the chosen settings, and findings about the chosen settings.

None means "not measured" and is never shown as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from contracts.artifacts.document import Contract, Document, FileEntry
from contracts.config import RunConfig
from contracts.errors import DataError

SUMMARY_NAME = "trace-summary.json"
"""File beside the report: a JSON list of `TraceSummary`, one per rank."""
# Reasons of a choice without a rate.
DEFAULTS, OFF = "training has its defaults", "profile is off"

Outcome = Literal["measured", "not measured", "out of memory", "crashed", "timeout", "failed", "budget"]


class Settings(Document):
    """What the profile stage chooses."""

    slot_size: int
    """Samples per forward pass."""
    slots_per_rank: int = 1
    """Slots per rank and optimizer step: follows from slot size, global batch and ranks."""
    num_workers: int
    """Loader processes per rank."""

    def settings(self) -> Settings:
        """Return the settings of a subclass without its other fields."""
        return Settings(slot_size=self.slot_size, slots_per_rank=self.slots_per_rank, num_workers=self.num_workers)


class LoaderPoint(Document):
    """The input pipeline alone."""

    num_workers: int
    slot_size: int
    outcome: Outcome = "measured"
    reason: str = ""
    samples_per_s: float | None = None
    """Median over windows, of the slowest rank."""
    samples_per_s_min: float | None = None
    samples_per_s_max: float | None = None


class ComputePoint(Document):
    """Optimizer steps alone, on tensors that are on the device already."""

    slot_size: int
    outcome: Outcome = "measured"
    reason: str = ""
    slot_s: float | None = None
    """Forward and backward pass of a slot that is not the last of its step, in seconds."""
    last_slot_s: float | None = None
    """Last slot of a step, with gradient exchange and optimizer update, in seconds."""
    samples_per_s: float | None = None
    """Of one rank."""
    memory_bytes: int | None = None
    """Peak memory of a rank."""


class ProfilePoint(Settings):
    """Settings measured end to end: real loader, real steps, all ranks at once."""

    outcome: Outcome = "measured"
    reason: str = ""
    """Why there is no rate."""
    samples_per_s: float | None = None
    """Median over the windows, of the slowest rank."""
    samples_per_s_min: float | None = None
    samples_per_s_max: float | None = None
    windows: int = 0
    data_time_fraction: float | None = Field(default=None, ge=0, le=1)
    """Share of the step spent waiting for the loader."""
    units_per_s: dict[str, float] = Field(default={})
    """Rates of the task's other units, such as tokens, by name; of one rank."""
    usd_per_million_samples: float | None = None
    """Of all ranks together, at resources.price_usd_per_h."""


class ProfileChoice(Settings):
    """The settings that training follows."""

    reason: str
    measured: bool = True
    """False: the values that training has without a profile."""


class Indicators(Document):
    """Counters and trace shares of the chosen settings; fractions are of a step's time."""

    step_s: float | None = None
    """Mean time of an optimizer step without the profiler."""
    data_time_fraction: float | None = None
    """With a GPU, its idle time while the loader is waited for; without one, the host's wait for the loader."""
    gpu_busy_fraction: float | None = None
    """Union of the kernels' intervals."""
    mfu: float | None = None
    """Model FLOPs utilisation: FLOP/s of the model over the GPU's peak."""
    flops_per_sample: float | None = None
    peak_flops: float | None = None
    """FLOP/s of the GPU at this precision, by its data sheet."""
    communication_fraction: float | None = None
    """Exchange between ranks during which no kernel computes."""
    exposed_copy_fraction: float | None = None
    """Copies between host and device during which no kernel computes."""
    pageable_copies: int | None = None
    """Copies per step from host memory that is not page-locked."""
    copy_kernel_fraction: float | None = None
    """Share of kernel time (without a GPU: of operator time) in copies and layout changes."""
    tensor_core_fraction: float | None = None
    """Share of kernel time in kernels that use tensor cores, by their names."""
    kernels_per_step: float | None = None
    mean_kernel_us: float | None = None
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    """Memory that a rank may take."""


class Finding(Document):
    """A rule of the diagnosis that fired (docs/profiling.md)."""

    rule: str
    """R1, R2, R4, R5, R6 or R9."""
    title: str
    evidence: list[str]
    """Measured values with their targets."""
    why: str = ""
    """Why it matters."""
    change: str
    """What to do."""
    time_share: float | None = Field(default=None, ge=0, le=1)
    """Largest share of the step's time that the change could save; None: the rule is not about time."""


class TraceDocument(Document):
    """Part of a trace summary; keys of other releases are ignored, since summaries are only shown."""

    model_config = ConfigDict(extra="ignore")


class KernelRow(TraceDocument):
    """All runs of one GPU kernel in the traced steps."""

    name: str
    category: Literal["compute", "copy", "communication"]
    calls: int
    total_s: float


class OperatorRow(TraceDocument):
    """All calls of one PyTorch operator in the traced steps."""

    name: str
    calls: int
    self_s: float
    """CPU time without the operators that it calls."""
    device_s: float | None = None
    """Time of the kernels that it launched itself; None: no GPU."""


class MemorySample(TraceDocument):
    """Allocated memory of the device at a moment of the trace."""

    at_s: float
    """Seconds from the start of the trace."""
    allocated_bytes: int


class TraceSummary(TraceDocument):
    """Breakdown and tables of one rank's traced steps."""

    rank: int
    device: Literal["cpu", "gpu"]
    steps: int
    step_s: float
    """Mean duration of a traced step, in seconds."""
    breakdown_s: dict[str, float] = Field(default={})
    """Seconds of a mean step by disjoint parts that add up to it. With a GPU: kernels, communication (exposed), copies
    (exposed), loader (GPU idle), other. Without: loader, forward, backward, optimizer, communication, other."""
    gpu_busy_fraction: float | None = None
    exchanges_s: tuple[float, ...] = ()
    """Seconds of each step in which ranks exchange and nothing computes, waiting for other ranks included."""
    exposed_copy_fraction: float | None = None
    pageable_copies: int | None = None
    copy_kernel_fraction: float | None = None
    tensor_core_fraction: float | None = None
    kernels_per_step: float | None = None
    mean_kernel_us: float | None = None
    kernels: tuple[KernelRow, ...] = ()
    operators: tuple[OperatorRow, ...] = ()
    memory: tuple[MemorySample, ...] = ()


@cache
def summaries_type() -> TypeAdapter[list[TraceSummary]]:
    """Return the type of the file SUMMARY_NAME."""
    return TypeAdapter(list[TraceSummary])


def summaries_to_json(summaries: Sequence[TraceSummary]) -> bytes:
    """Return the content of the file SUMMARY_NAME."""
    return summaries_type().dump_json(list(summaries))


class TrainingEstimate(Document):
    """Time and cost of a whole training: steps only, no evaluation, checkpoints or start."""

    samples: int
    hours: float
    usd: float | None = None
    epoch_samples: int | None = None
    """Samples of the training split."""

    @classmethod
    def of(cls, config: RunConfig, *, epoch_samples: int, samples_per_s: float) -> TrainingEstimate:
        """Return the estimate of a training, at `resources.price_usd_per_h`.

        Args:
            config: The training.
            epoch_samples: Samples of its training split.
            samples_per_s: Of all ranks of all machines together.
        """
        samples = config.train.epochs * epoch_samples
        if config.train.max_steps is not None:
            samples = min(samples, config.train.max_steps * config.train.global_batch_size)
        hours, price = samples / samples_per_s / 3600, config.resources.price_usd_per_h
        usd = None if price is None else hours * price
        return cls(samples=samples, hours=hours, usd=usd, epoch_samples=epoch_samples)


class ProfileReport(Contract):
    """Result of the profile stage."""

    FORMAT_VERSION: ClassVar[int] = 3

    kind: Literal["profile"] = "profile"
    format_version: int = 3
    model_fingerprint: str
    """Hash of the measured model section."""
    shards_fingerprint: str
    hardware: dict[str, str]
    torch_version: str
    ranks: int
    threads_per_rank: int
    global_batch_size: int
    points: list[ProfilePoint]
    choice: ProfileChoice
    method: Literal["auto", "sweep", "off"] = "auto"
    wall_s: float | None = None
    """Seconds of the whole stage, process starts and traces included."""
    loader: list[LoaderPoint] = Field(default=[])
    compute: list[ComputePoint] = Field(default=[])
    indicators: Indicators = Indicators()
    findings: list[Finding] = Field(default=[])
    estimate: TrainingEstimate | None = None
    measured_nodes: int = 1
    """Machines that were measured together; the exchange between them is part of their rates."""
    warnings: list[str] = Field(default=[])
    files: list[FileEntry] = Field(default=[])
    """Traces, trace summaries, and TensorBoard's files."""

    def owned_files(self) -> list[FileEntry]:
        """Return the files beside the document."""
        return self.files

    def chosen_point(self) -> ProfilePoint:
        """Return the measurement of the choice; a point without a rate where the choice is the defaults.

        Raises:
            DataError: The choice is marked as measured and is none of the points.
        """
        settings = self.choice.settings()
        if (point := next((p for p in self.points if p.settings() == settings), None)) is not None:
            return point
        if not self.choice.measured:
            reason = OFF if self.method == "off" else DEFAULTS
            return ProfilePoint(**dict(settings), outcome="not measured", reason=reason)
        raise DataError(
            f"the profile report has no measurement of its chosen slot size {self.choice.slot_size} with "
            f"{self.choice.num_workers} workers",
            allowed="a choice that was measured",
            todo="run `shardline profile` again",
        )
