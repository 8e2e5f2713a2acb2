"""What a page is about: the report, what its traces say, and why something is not in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from contracts.artifacts import ProfilePoint, ProfileReport
from contracts.artifacts.trace import TraceSummary
from pages.heat_map import is_chosen
from pages.markup import NOT_MEASURED
from pages.parts import Fold, Part
from pages.quantities import several

NO_GPU = f"{NOT_MEASURED}: no GPU"

# Indicators that only a GPU has.
OF_A_GPU = frozenset(
    {
        "copy_wait_fraction",
        "gpu_busy_fraction",
        "occupancy_fraction",
        "mfu",
        "peak_flops",
        "exposed_copy_fraction",
        "pageable_copies",
        "sync_fraction",
        "sync_calls",
        "kernels_per_step",
        "mean_kernel_us",
        "top10_kernel_fraction",
        "tensor_core_fraction",
        "memory_reserved_bytes",
        "fragmentation_fraction",
        "allocation_retries",
        "nvml_utilisation_fraction",
        "device_s",
    }
)
# Indicators that compare ranks, or come from their exchange.
OF_SEVERAL_RANKS = frozenset({"communication_fraction", "slowest_rank_ratio"})


@dataclass(frozen=True)
class Limits:
    """How much of what was recorded a page shows; it says what it leaves out."""

    ranks: int = 4
    """Ranks whose traces are shown."""
    lanes: int = 12
    """Rows of the timeline, of one rank."""
    spans: int = 2000
    """Boxes of the timeline, over all ranks."""
    blocks: int = 400
    """Boxes for runs of short spans, over all ranks."""
    rows: int = 80
    """Kernels, and operators, over all ranks and each a table."""
    points: int = 150
    """Configurations in a table."""
    cells: int = 24
    """Rows and columns of the heat map."""
    samples: int = 1600
    """Points of a curve."""
    name: int = 240
    """Characters of a name that comes from a trace."""
    reason: int = 600
    """Characters of a message."""

    def halved(self) -> Limits:
        """Return limits half as wide."""
        return Limits(**{name: max(1, value // 2) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Subject:
    """What a page is about."""

    report: ProfileReport
    summaries: Sequence[TraceSummary]
    limits: Limits = Limits()
    unread: str = ""
    """Why the summaries of traces that were recorded cannot be read."""

    @property
    def no_trace(self) -> str:
        """Why there are no summaries."""
        if self.unread:
            return f"the summary of the traces cannot be read: {self.unread}"
        return f"{NOT_MEASURED}: no trace was recorded"

    @property
    def has_gpu(self) -> bool:
        """Whether there was a GPU to measure."""
        return any(summary.device == "gpu" for summary in self.summaries) or (
            self.report.hardware.get("gpus", "none") != "none"
        )

    @property
    def shown(self) -> Sequence[TraceSummary]:
        """The traces that the page shows."""
        return self.summaries[: self.limits.ranks]

    def share(self, limit: int) -> int:
        """Return what one rank of those shown gets of a limit that is over all of them."""
        return max(1, limit // max(1, len(self.shown)))

    def folds(self, show: Callable[[TraceSummary], Sequence[Part]]) -> list[Part]:
        """Return what is shown of each rank that has something to show, the first one unfolded."""
        shown = [(summary, parts) for summary in self.shown if (parts := show(summary))]
        return [
            Fold(
                f"rank {summary.rank}, {summary.gpu_name or summary.device}",
                parts,
                opened=place == 0,
                data={"rank": str(summary.rank)},
            )
            for place, (summary, parts) in enumerate(shown)
        ]

    def missing(self, indicator: str) -> str:
        """Return why an indicator has no value."""
        if indicator in OF_A_GPU and not self.has_gpu:
            return NO_GPU
        if indicator in OF_SEVERAL_RANKS and self.report.ranks == 1:
            return f"{NOT_MEASURED}: one rank"
        if indicator == "mfu" and self.report.indicators.peak_flops is None:
            return f"{NOT_MEASURED}: the peak of this GPU is not known"
        return NOT_MEASURED

    def chosen_point(self) -> ProfilePoint | None:
        """Return what was measured of the choice; None where the report holds no such point."""
        return next((point for point in self.report.points if self.is_chosen(point)), None)

    def is_chosen(self, point: ProfilePoint) -> bool:
        """Whether a point is the configuration that was chosen."""
        return is_chosen(self.report, point)


def workers(num_workers: int, prefetch_factor: int) -> str:
    """Return a loader's processes in words; without any, nothing is prepared ahead."""
    return several(num_workers, "worker") + (f" \u00d7 {prefetch_factor} ahead" if num_workers else "")
