"""What the profile stage leaves: what was measured, what was chosen and why, and what is slow.

A value that this machine could not measure is None, which is shown as "not measured", and never 0.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from contracts.artifacts.document import Contract, Document, FileEntry
from contracts.config import RunConfig
from contracts.errors import DataError

# Why a choice has no rate: nothing was measured for it, or was to be.
DEFAULTS, OFF = "training has its defaults", "profile is off"
# The page of the report, in the folder of a run or an attempt.
PAGE_NAME = "profile.html"

Outcome = Literal["measured", "predicted", "out of memory", "crashed", "hung", "failed"]
Severity = Literal["bad", "warning", "note"]


class Flags(Document):
    """What a step computes in."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    channels_last: bool = False
    compile: bool = False
    activation_checkpointing: Literal["none", "whole"] = "none"

    def in_words(self) -> str:
        """Return the precision, and what is not as it is by default."""
        words: list[str] = [self.precision]
        words += [name for name in ("channels_last", "compile") if getattr(self, name)]
        if self.activation_checkpointing != "none":
            words.append(f"activation_checkpointing {self.activation_checkpointing}")
        return ", ".join(words)


class Settings(Document):
    """Everything that the profiling run may choose."""

    slot_size: int
    """Samples per forward pass."""
    slots_per_rank: int = 1
    """Slots that a rank processes in an optimizer step: a consequence of slot size, global batch and ranks."""
    num_workers: int
    """Loader processes of a rank."""
    prefetch_factor: int = 4
    """Slots that each loader process prepares ahead."""
    threads: int = 1
    """Intra-op threads of a rank."""
    flags: Flags = Flags()

    def settings(self) -> Settings:
        """Return the settings alone, of what has more."""
        return Settings(**{name: getattr(self, name) for name in Settings.model_fields})


class LoaderPoint(Document):
    """The input pipeline alone, at a number of loader processes."""

    num_workers: int
    prefetch_factor: int
    slot_size: int
    outcome: Outcome = "measured"
    reason: str = ""
    samples_per_s: float | None = None
    """Median over windows, of the slowest rank."""
    samples_per_s_min: float | None = None
    samples_per_s_max: float | None = None
    cpu_s_per_sample: float | None = None
    """Processor time of the loader for a sample, in seconds, over all its processes."""


class ComputePoint(Document):
    """The steps alone, on tensors that are on the device already."""

    slot_size: int
    threads: int
    flags: Flags = Flags()
    outcome: Outcome = "measured"
    reason: str = ""
    slot_s: float | None = None
    """Forward and backward pass of a slot that is not the last of its step, in seconds."""
    last_slot_s: float | None = None
    """The last slot of a step, with the exchange of gradients and the optimizer's update, in seconds."""
    samples_per_s: float | None = None
    """Of one rank, at the slots a step has with this slot size."""
    memory_bytes: int | None = None
    """Peak of a rank's memory."""
    cpu_s_per_sample: float | None = None
    """Processor time of the rank for a sample, in seconds."""


class MemoryModel(Document):
    """Memory of a rank as a line: base_bytes + bytes_per_sample x slot size, through two measured points."""

    flags: Flags = Flags()
    base_bytes: int
    bytes_per_sample: float
    limit_bytes: int | None = None
    """What a rank may take; None: unknown."""
    largest_slot_size: int | None = None
    """The largest slot that the line lets fit."""


class ProfilePoint(Settings):
    """One configuration, end to end: real loader, real steps, all ranks of a machine at once."""

    outcome: Outcome = "measured"
    reason: str = ""
    """Why there is no rate."""
    predicted_samples_per_s: float | None = None
    """What was predicted before it was measured; of one rank."""
    samples_per_s: float | None = None
    """Median over the windows, of the slowest rank; None: not measured."""
    samples_per_s_min: float | None = None
    samples_per_s_max: float | None = None
    windows: int = 0
    """Windows that the median is over."""
    data_time_fraction: float | None = Field(default=None, ge=0, le=1)
    """Share of the step spent waiting for the loader."""
    units_per_s: dict[str, float] = Field(default={})
    """Of what the task counts besides samples, such as tokens, by its name; of one rank."""
    usd_per_million_samples: float | None = None
    """Of all ranks together, at resources.price_usd_per_h."""


class ProfileChoice(Settings):
    """How to cut the global batch, how to load, and the flags that are `auto`."""

    reason: str
    measured: bool = True
    """False: nothing could be measured, or was to be, and these are the values that training has without a profile."""
    clear: bool = True
    """Whether each of the others measured end to end was shown to be slower than the fastest by more than 3 %: by the
    95 % confidence interval of the ratio of windows measured side by side, corrected for all comparisons made."""
    equals: int | None = None
    """Others of which that was not shown: the choice is one between equals. None: not counted (grid)."""

    def describe_certainty(self) -> str:
        """Return a sentence that says how sure the choice is."""
        if not self.measured:
            return "No configurations were compared: these are the values that training has by default."
        if self.equals:
            others = "1 other configuration is" if self.equals == 1 else f"{self.equals} other configurations are"
            return (
                f"A choice between equals: {others} not shown to be slower than the fastest by more than 3 % (95 % "
                "confidence intervals, corrected for repeated comparison). The cheapest within 3 % by the "
                "median is taken."
            )
        if self.clear:
            return (
                "Each of the others measured end to end is slower than the fastest by more than 3 % (95 % confidence "
                "intervals, corrected for repeated comparison)."
            )
        return "The fastest was not told apart from the others: another may be as good."


class Recommendation(Document):
    """A flag that is set in the configuration, and would do better otherwise."""

    setting: str
    """As the configuration has it, e.g. train.precision=bf16."""
    gain: float
    """Measured rate end to end with it, over that without; median of windows side by side."""
    evidence: str


class Indicators(Document):
    """What traces and counters say about the choice; None: not measured. Fractions are of a step's time."""

    step_s: float | None = None
    """Median time of an optimizer step, outside of the profiler."""
    data_time_fraction: float | None = None
    """With a GPU what it is idle for waiting for data; without one the host waiting in next() of the loader."""
    copy_wait_fraction: float | None = None
    """The part of it that is the copy to the device, by CUDA events."""
    gpu_busy_fraction: float | None = None
    """Union of the kernels' intervals."""
    occupancy_fraction: float | None = None
    """Achieved occupancy as kineto estimates it, weighted by the kernels' time."""
    mfu: float | None = None
    """Model FLOPs utilisation: floating point operations of the model per second over the GPU's peak."""
    flops_per_sample: float | None = None
    peak_flops: float | None = None
    """Of the GPU at this precision, by its data sheet."""
    communication_fraction: float | None = None
    """Exchange between ranks during which no kernel computes."""
    exposed_copy_fraction: float | None = None
    """Copies between host and device during which no kernel computes."""
    pageable_copies: int | None = None
    """Copies from host memory that is not page-locked, in a step."""
    sync_fraction: float | None = None
    """The host waiting for the device."""
    sync_calls: float | None = None
    """Of them in a step."""
    kernels_per_step: float | None = None
    mean_kernel_us: float | None = None
    top10_kernel_fraction: float | None = None
    """Share of kernel time in the ten kernels that take most."""
    copy_kernel_fraction: float | None = None
    """Share of kernel time (without a GPU: of operators' own time) in copies and changes of layout."""
    memory_bound_fraction: float | None = None
    """Share of kernel time in operators that move at least half of what the GPU's memory can, estimated from shapes."""
    memory_peak_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_limit_bytes: int | None = None
    """What a rank may take: its limit, or the device's memory less what others held when steps were counted."""
    fragmentation_fraction: float | None = None
    """1 - allocated / reserved, at the peak."""
    allocation_retries: int | None = None
    slowest_rank_ratio: float | None = None
    """Median step time of the slowest rank over that of all."""
    checkpoint_stall_fraction: float | None = None
    """Steps standing still for checkpoints."""
    nvml_utilisation_fraction: float | None = None
    """What nvidia-smi shows: any kernel at all, however small. Not the same as busy, nor as MFU."""
    profiler_ratio: float | None = None
    """Step time while the profiler records, over that without."""


class Finding(Document):
    """A rule of the diagnosis that fired (docs/profiling.md)."""

    rule: str
    """R1 to R11."""
    severity: Severity
    title: str
    evidence: list[str]
    """What it fired on, with its values."""
    why: str = ""
    """Why it matters."""
    change: str
    """What to do."""
    command: str = ""
    """Command line that profiles the configuration with the change; "": it is a change of code, of machines, or of
    nothing that a setting says."""
    gain: float | None = None
    """Predicted factor on samples per second; None: not predicted."""
    gain_from: str = ""
    """Where the prediction comes from."""


class TrainingEstimate(Document):
    """Time and cost of a whole training: steps only, no evaluation, checkpoint or start."""

    samples: int
    hours: float
    usd: float | None = None
    epoch_samples: int | None = None
    """Samples of the training split; None: unknown."""

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
    """What the profiling run measured and chose."""

    kind: Literal["profile"] = "profile"
    model_fingerprint: str
    """Hash of the model section that was measured."""
    shards_fingerprint: str
    hardware: dict[str, str]
    torch_version: str
    ranks: int
    threads_per_rank: int
    global_batch_size: int
    points: list[ProfilePoint]
    choice: ProfileChoice
    method: Literal["sweep", "grid", "off"] = "grid"
    wall_s: float | None = None
    """Seconds that it took, the start of the processes and traces within."""
    loader: list[LoaderPoint] = Field(default=[])
    compute: list[ComputePoint] = Field(default=[])
    memory: list[MemoryModel] = Field(default=[])
    overlap: float | None = None
    """Share of the shorter of loading and computing that hides behind the longer, from one joint run."""
    predictor_error: float | None = None
    """Median of |predicted / measured - 1| over points that were predicted before they were measured."""
    recommendations: list[Recommendation] = Field(default=[])
    indicators: Indicators = Indicators()
    findings: list[Finding] = Field(default=[])
    estimate: TrainingEstimate | None = None
    measured_nodes: int = 1
    """Machines that were measured together: where those are all that train, rates have their exchange in them."""
    warnings: list[str] = Field(default=[])
    files: list[FileEntry] = Field(default=[])
    """Traces, what was read out of them (contracts/artifacts/trace.py), and what TensorBoard reads."""

    def owned_files(self) -> list[FileEntry]:
        """Return the files beside the document."""
        return self.files

    def chosen_point(self) -> ProfilePoint:
        """Return what was measured of the choice; a point without a rate where the choice is the defaults.

        Raises:
            DataError: The choice is said to be measured and is none of the points: another program has written this.
        """
        settings = self.choice.settings()
        if (point := next((p for p in self.points if p.settings() == settings), None)) is None:
            if not self.choice.measured:
                return ProfilePoint(
                    **dict(settings), outcome="predicted", reason=OFF if self.method == "off" else DEFAULTS
                )
            raise DataError(
                f"a profile report whose choice (slot size {self.choice.slot_size}, {self.choice.num_workers} workers) "
                "is none of its points",
                allowed="a choice that was measured",
                todo="run `shardline profile` again",
            )
        return point
