"""What can be measured, and what comes back: the words between the sweep, which decides, and the probe, which measures.

The sweep (sweep.py) knows nothing of torch; what answers it may be real processes (probe.py) or a simulator (tests).
All rates are of one rank, the slowest one: a step waits for it. Nothing here raises when a configuration does not work:
that is an answer too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal, Protocol, TypeVar

from contracts.artifacts import Settings

Value = TypeVar("Value", int, float)


@dataclass(frozen=True)
class Failed:
    """A measurement that did not come about."""

    outcome: Literal["out of memory", "crashed", "hung", "failed", "budget"]
    """`budget`: the budget ended before the answer came, which says nothing of what was asked."""
    reason: str

    @property
    def is_cut_off(self) -> bool:
        """Whether the budget alone kept it from an answer."""
        return self.outcome == "budget"


@dataclass(frozen=True)
class LoaderRate:
    """The input pipeline alone."""

    windows: tuple[float, ...]
    """Samples per second, window by window."""
    cpu_s_per_sample: float | None = None
    """Processor time for a sample over all loader processes, in seconds."""


@dataclass(frozen=True)
class ComputeTime:
    """Steps alone, on tensors that are on the device already."""

    slot_s: float
    """Forward and backward pass of a slot that is not the last of its step, in seconds; median."""
    last_slot_s: float
    """The last slot of a step, with the exchange of gradients and the update, in seconds; median."""
    memory_bytes: int | None = None
    """Peak of the rank's memory that counts against `Probe.memory_limit_bytes`; of the fullest rank."""
    cpu_s_per_sample: float | None = None
    """Processor time of the rank for a sample, in seconds."""

    def step_s(self, slots: int) -> float:
        """Return the time of an optimizer step of a number of slots, in seconds."""
        return (slots - 1) * self.slot_s + self.last_slot_s


@dataclass(frozen=True)
class JointRate:
    """Loader and steps together, as in training."""

    windows: tuple[float, ...]
    """Samples per second, window by window."""
    data_time_fraction: float
    units_per_sample: Mapping[str, float] = field(default_factory=dict)
    """Mean of what the task counts besides samples, by its name; of all ranks."""


class Probe(Protocol):
    """Measures. Each call takes time on `now`, and may return Failed."""

    @property
    def memory_limit_bytes(self) -> int | None:
        """Most that `ComputeTime.memory_bytes` may be; None: unknown."""
        ...

    def now(self) -> float:
        """Return the clock of the budget, in seconds."""
        ...

    def load(self, settings: Settings) -> LoaderRate | Failed:
        """Measure the input pipeline alone, on all ranks of the machine at once."""
        ...

    def compute(self, settings: Settings) -> ComputeTime | Failed:
        """Measure steps alone, on all ranks of the machine at once."""
        ...

    def run(self, settings: Sequence[Settings], *, rounds: int) -> list[JointRate | Failed]:
        """Measure both together, each from a fresh loader on: configurations in turn, a window each, `rounds` times.

        The windows of one round were measured side by side, so that what else the machine does falls on all of them.
        Where the budget ends meanwhile, those that were measured by then are returned.
        """
        ...


@dataclass(frozen=True)
class Device:
    """What steps are computed on, and what of the network on it decides what may be tried."""

    kind: Literal["cpu", "cuda"]
    name: str
    has_bf16: bool
    """Whether it computes in bf16 in hardware, and does not emulate it."""
    compiles: bool = True
    """Whether torch.compile may be tried: where sizes of the network's inputs vary it is refused."""
    has_layout: bool = True
    """Whether train.channels_last changes anything: an input or a weight of the network has four dimensions."""
    has_batch_norm: bool = False
    """Whether a BatchNorm of the network trains, so that small slots cost accuracy."""


@dataclass(frozen=True)
class Hello(Device):
    """What a rank of the probe says first."""

    memory_limit_bytes: int | None = None
    """Of this rank; None: unknown."""
    samples: int = 0
    """Of the training split."""
    has_images: bool = True
    """Whether samples are made from images of the shards."""


# --- what several ranks found, as one ---------------------------------------------------------------------------------


def slowest(windows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the rates of the slowest rank, window by window."""
    return tuple(min(rates) for rates in zip(*windows, strict=True))


def highest(values: Sequence[Value | None]) -> Value | None:
    """Return the largest of what is known; None: nothing is."""
    return max((value for value in values if value is not None), default=None)


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of what is known; None: nothing is."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def of_ranks(found: list[JointRate]) -> JointRate:
    """Return what ranks found together."""
    return JointRate(slowest([one.windows for one in found]), *_means(found))


def join(rates: list[JointRate]) -> JointRate:
    """Return what was found one after the other."""
    return JointRate(tuple(rate for one in rates for rate in one.windows), *_means(rates))


def _means(found: list[JointRate]) -> tuple[float, dict[str, float]]:
    units = found[0].units_per_sample
    waited = fmean(one.data_time_fraction for one in found)
    return waited, {name: fmean(one.units_per_sample[name] for one in found) for name in units}
