"""What the rules of the diagnosis look at, and the gains that follow from what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from contracts.artifacts import (
    ComputePoint,
    Indicators,
    LoaderPoint,
    MemoryModel,
    ProfileChoice,
    ProfilePoint,
    Recommendation,
)
from contracts.artifacts.profile import Severity
from contracts.artifacts.trace import TraceSummary
from contracts.config import RunConfig
from trainer.profiling.indicators import last_to_arrive

# Less than this is within the noise of a measurement, and no gain to speak of.
WORTH_SAYING = 1.02


class Gain(NamedTuple):
    """A predicted factor on samples per second, and what it follows from; None and "" where nothing says."""

    factor: float | None
    source: str


UNKNOWN = Gain(None, "")


class Seen(NamedTuple):
    """What a rule has found."""

    title: str
    severity: Severity
    evidence: list[str]
    change: str
    gain: Gain = UNKNOWN
    overrides: Sequence[str] = ()
    """Of the configuration: they try the change, as far as settings can."""


@dataclass(frozen=True)
class Case:
    """A configuration that was chosen, with all that was measured around it, and which settings mean anything to it."""

    indicators: Indicators
    choice: ProfileChoice
    config: RunConfig
    """What is pinned there is named as what to change."""
    loader: Sequence[LoaderPoint] = ()
    points: Sequence[ProfilePoint] = ()
    compute: Sequence[ComputePoint] = ()
    memory: Sequence[MemoryModel] = ()
    recommendations: Sequence[Recommendation] = ()
    summaries: Sequence[TraceSummary] = ()
    """Of the traces of all ranks."""
    compiles: bool = True
    """Whether train.compile does: sizes of the network's inputs do not vary."""
    has_layout: bool = True
    """Whether train.channels_last does: an input or a weight of the network has four dimensions."""
    has_images: bool = True
    """Whether those do that are about images, in section `data` and of what is changed in them while sharding."""

    @property
    def samples_per_s(self) -> float | None:
        """The rate of a rank that was measured end to end at the choice."""
        return next((p.samples_per_s for p in self.points if p.settings() == self.choice.settings()), None)

    @property
    def summary(self) -> TraceSummary | None:
        """The trace of the rank that the indicators are of, for evidence that agrees with them."""
        return last_to_arrive(self.summaries)

    @property
    def steps_alone(self) -> ComputePoint | None:
        """What was measured of the steps at the choice, with nothing to wait for."""
        chosen = (self.choice.slot_size, self.choice.threads, self.choice.flags)
        fits = (p for p in self.compute if (p.slot_size, p.threads, p.flags) == chosen and p.samples_per_s)
        return next(fits, None)

    @property
    def best_loader(self) -> LoaderPoint | None:
        """The fastest input pipeline that was measured, of equally fast ones that of fewest processes."""
        known = [point for point in self.loader if point.samples_per_s]
        return max(known, key=lambda p: (p.samples_per_s or 0.0, -p.num_workers), default=None)

    @property
    def may_compile(self) -> bool:
        """Whether train.compile=on would be taken, and is not chosen already."""
        flags = self.choice.flags
        return self.compiles and not flags.compile and flags.activation_checkpointing == "none"

    @property
    def may_change_layout(self) -> bool:
        """Whether train.channels_last=true would change anything."""
        return self.has_layout and not self.choice.flags.channels_last

    # --- gains --------------------------------------------------------------------------------------------------------

    def without_data_time(self) -> Gain:
        """Return what is gained if no step waits for data."""
        alone, rate = self.steps_alone, self.samples_per_s
        if alone is not None and alone.samples_per_s and rate:
            source = f"at most: steps alone reach {alone.samples_per_s:.4g} samples/s, with the loader {rate:.4g}"
            return Gain(max(1.0, alone.samples_per_s / rate), source)
        return at_most(self.indicators.data_time_fraction, "the time spent waiting for data")

    def with_loader(self, point: LoaderPoint) -> Gain:
        """Return what is gained with the loader as it was measured at other settings: the slower of both decides."""
        alone, rate = self.steps_alone, self.samples_per_s
        if alone is None or not alone.samples_per_s or not rate or not point.samples_per_s:
            return UNKNOWN
        one_after_the_other = 1 / (1 / alone.samples_per_s + 1 / point.samples_per_s)
        reached = min(alone.samples_per_s, point.samples_per_s) if point.num_workers else one_after_the_other
        source = (
            f"at most: the slower of steps alone ({alone.samples_per_s:.4g} samples/s) and the loader alone with "
            f"{point.num_workers} processes ({point.samples_per_s:.4g}), over {rate:.4g} measured now"
        )
        return Gain(reached / rate, source)

    def larger_slot(self) -> tuple[ComputePoint, Gain] | None:
        """Return the larger slot size at which steps alone were fastest, if they were faster than at the choice."""
        alone = self.steps_alone
        if alone is None or not alone.samples_per_s:
            return None
        larger = [
            point
            for point in self.compute
            if (point.threads, point.flags) == (alone.threads, alone.flags)
            and point.slot_size > alone.slot_size
            and (point.samples_per_s or 0.0) > WORTH_SAYING * alone.samples_per_s
        ]
        if not larger:
            return None
        best = max(larger, key=lambda point: point.samples_per_s or 0.0)
        assert best.samples_per_s is not None
        source = (
            f"measured: steps alone at slot size {best.slot_size} reach {best.samples_per_s:.4g} samples/s, "
            f"at {alone.slot_size} {alone.samples_per_s:.4g}"
        )
        return best, Gain(best.samples_per_s / alone.samples_per_s, source)

    def flag(self, *settings: str) -> tuple[Recommendation, Gain] | None:
        """Return the best of the measured recommendations for some settings, if any brings a gain."""
        fits = [r for r in self.recommendations if r.setting.split("=")[0] in settings and r.gain > WORTH_SAYING]
        if not fits:
            return None
        best = max(fits, key=lambda recommendation: recommendation.gain)
        return best, Gain(best.gain, f"measured: {best.evidence}" if best.evidence else "measured: steps alone")


def at_most(fraction: float | None, what: str) -> Gain:
    """Return what is gained if a share of the step's time falls away wholly."""
    if fraction is None or fraction >= 1:
        return UNKNOWN
    return Gain(1 / (1 - fraction), f"at most: without {what}, {fraction:.0%} of the step")
