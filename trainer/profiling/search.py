"""The search for slot size and loader workers: order of measurements, and choice.

It imports no torch and starts no processes: a Probe measures (worker.py on real ranks, a simulator in the tests). The
search is deterministic in the probe's answers, so that a restarted profiling run can replay them. All rates are samples
per second of the slowest rank, for which the others wait in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from operator import truediv
from statistics import fmean, median
from typing import Literal, Protocol

from pydantic import Field

from contracts.artifacts import ComputePoint, LoaderPoint, ProfileChoice, ProfilePoint, Settings
from contracts.artifacts.document import Document
from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.launch.choices import BatchLayout, choose_batch_layout, even_share

TOLERANCE = 0.03
"""Rates within this relative difference are equal: windows on an idle machine vary by about as much."""
LOADER_GAIN = 0.05
"""Smallest gain of the loader by more workers at which still more are tried."""
LOADER_MARGIN = 1.5
"""Rate of the loader divided by that of the steps, both alone, at which no more workers are tried."""
ROUNDS = 3
"""Windows per finalist: the median of three ignores one disturbed window."""
FINALISTS = 4
CLEAR = 1.1
"""Speed-up over the default from which three windows are enough: their median is accurate to a few per cent."""
TURNS = 5
"""Maximum turns end to end; the leader moves by one neighbour per turn."""
# Without a list in the configuration, the even share is halved at least this often, and down to SMALL_SLOT.
HALVINGS = 4
SMALL_SLOT = 8
MIN_BATCH_NORM_SLOT = 16
"""Smallest slot size tried for a network with BatchNorm, which computes statistics per slot."""
MOST_REASONS = 3
"""Failures in a message, the first ones."""
BUDGET = "profile.budget_s ended"
Key = tuple[int, int]
"""Slot size and number of workers."""
FailedOutcome = Literal["out of memory", "crashed", "timeout", "failed", "budget"]
ReportProgress = Callable[[int, int, str], None]
"""Receives the number of measurements done, the most that there can be, and what begins or has ended as text."""


@dataclass(frozen=True)
class Failed:
    """A measurement without a result."""

    outcome: FailedOutcome
    """`budget`: the budget ended before the answer, so nothing is known about the settings."""
    reason: str


@dataclass(frozen=True)
class LoaderRate:
    """The input pipeline alone."""

    windows: tuple[float, ...]
    """Samples per second of the slowest rank, window by window."""


@dataclass(frozen=True)
class ComputeTime:
    """Steps alone, on resident tensors."""

    slot_s: float
    """Forward and backward pass of a slot that is not the last of its step, in seconds; median, of the slowest rank."""
    last_slot_s: float
    """The last slot of a step, with the exchange of gradients and the update, in seconds; median."""
    memory_bytes: int | None = None
    """Peak memory of the rank that takes most; None: not measured."""


@dataclass(frozen=True)
class JointRate:
    """Loader and steps together, as in training."""

    windows: tuple[float, ...]
    """Samples per second of the slowest rank, window by window."""
    data_time_fraction: float
    """Share of the step spent waiting for the loader."""
    units_per_sample: Mapping[str, float] = field(default_factory=dict)
    """Mean of the task's further units, such as tokens, by name."""


class Probe(Protocol):
    """Interface of measurements. Settings that do not work are answers (Failed), not exceptions."""

    def now(self) -> float:
        """Return seconds since the stage began. During a replay: the recorded time of the last answer."""
        ...

    def load(self, settings: Settings) -> LoaderRate | Failed:
        """Measure the input pipeline alone, on all ranks at once."""
        ...

    def compute(self, slot_size: int) -> ComputeTime | Failed:
        """Measure steps alone, on all ranks at once, after each rank has tried the size alone."""
        ...

    def run(self, settings: Sequence[Settings], *, rounds: int) -> list[JointRate | Failed]:
        """Measure loader and steps together: the settings in turn, a window each, `rounds` times.

        The windows of a round are measured one after the other, so that other load on the machine affects all settings.
        If the budget ends, the windows so far are returned, or Failed("budget") for settings without any.
        """
        ...


@dataclass(frozen=True)
class Space:
    """Search space. Tuples ascend."""

    global_batch_size: int
    ranks: int
    """Training processes of all machines."""
    slot_sizes: tuple[int, ...]
    num_workers: tuple[int, ...]
    default: Settings
    """Settings of a training without a profile."""
    warnings: tuple[str, ...] = ()
    """Listed settings that are not tried, with the reason."""
    network: str = "the network"
    """The network with its size, for messages."""

    def slots_per_rank(self, slot_size: int) -> int:
        """Return the largest number of slots that a rank processes in a full batch."""
        return BatchLayout(slot_size, 0, "").slots_per_rank(self.global_batch_size, self.ranks)

    def settings(self, slot_size: int, num_workers: int) -> Settings:
        """Return settings; slots per rank follow from the slot size."""
        slots = self.slots_per_rank(slot_size)
        return Settings(slot_size=slot_size, slots_per_rank=slots, num_workers=num_workers)


class Result(Document):
    """Outcome of a search."""

    choice: ProfileChoice
    points: list[ProfilePoint] = Field(default=[])
    """The fastest first, then those that failed."""
    loader: list[LoaderPoint] = Field(default=[])
    compute: list[ComputePoint] = Field(default=[])
    warnings: list[str] = Field(default=[])


def make_space(
    config: RunConfig, *, ranks: int, cores_per_rank: int, on_gpu: bool, has_batch_norm: bool = False
) -> Space:
    """Return the search space.

    Args:
        config: The configuration.
        ranks: Training processes of all machines.
        cores_per_rank: CPU cores of a rank, its loader workers included.
        on_gpu: Whether steps run on GPUs, so that the loader can use the rank's other cores.
        has_batch_norm: Whether a BatchNorm of the network trains: small slots cost accuracy.

    Raises:
        ConfigError: A pinned value is not in its list in `profile`, or no slot size gives each rank a slot.
    """
    batch, cores = config.train.global_batch_size, max(1, cores_per_rank)
    default = default_settings(config, ranks=ranks, cores_per_rank=cores, on_gpu=on_gpu)
    share, smallest = even_share(batch, ranks), 1
    if has_batch_norm:
        # SyncBatchNorm's statistics are those of one slot of every rank.
        together = ranks if config.parallel.sync_batch_norm else 1
        smallest = min(share, -(-MIN_BATCH_NORM_SLOT // together))
    cuts = [-(-share // 2**power) for power in range(share.bit_length() + 1)]
    tried = [size for power, size in enumerate(cuts) if size >= max(smallest, SMALL_SLOT) or power <= HALVINGS]
    sizes = _values(config, "parallel.slot_size", "slot_sizes", [size for size in tried if size >= smallest])
    usable = [size for size in sizes if size <= batch and -(-batch // size) >= ranks]
    if not usable:
        raise ConfigError(
            f"profile.slot_sizes {sizes}: none gives each of {ranks} ranks a slot of a global batch of {batch}",
            allowed=f"at least one size up to {share}",
            todo=f"add {share} to profile.slot_sizes",
        )
    warnings = []
    if excluded := sorted({*sizes} - {*usable}):
        warnings.append(f"profile.slot_sizes {excluded}: not tried, some of {ranks} ranks would have no slot")
    if usable[0] < smallest:
        warnings.append(
            f"slot size {usable[0]} is below {smallest}: BatchNorm's statistics over few samples lower accuracy"
        )
    most = max(1, cores - 1) if on_gpu else cores
    workers = _values(
        config, "data.num_workers", "num_workers", [0, *(min(1 << n, most) for n in range(most.bit_length() + 1))]
    )
    return Space(batch, ranks, tuple(usable), tuple(workers), default, tuple(warnings))


def _values(config: RunConfig, setting: str, listing: str, tried: Sequence[int]) -> list[int]:
    """Return the values of a setting, ascending: the pinned one, those listed in `profile`, or else `tried`."""
    section, _, name = setting.partition(".")
    pinned, listed = getattr(getattr(config, section), name), getattr(config.profile, listing)
    if pinned == "auto":
        return sorted({*(tried if listed == "auto" else listed)})
    if listed != "auto" and pinned not in listed:
        raise ConfigError(
            f"{setting} is {pinned}, which is not in profile.{listing} {listed}",
            allowed=f"a value of profile.{listing}, or {setting}=auto",
            todo=f"set {setting}=auto to choose from profile.{listing}, or add {pinned} to it",
        )
    return [pinned]


def default_settings(config: RunConfig, *, ranks: int, cores_per_rank: int, on_gpu: bool) -> Settings:
    """Return the settings of a training without a profile (trainer/launch/choices.py)."""
    spare_cores = max(1, cores_per_rank) - 1 if on_gpu else 0
    layout = choose_batch_layout(config, ranks=ranks, profile=None, recorded=None, spare_cores=spare_cores)
    slots = layout.slots_per_rank(config.train.global_batch_size, ranks)
    return Settings(slot_size=layout.slot_size, slots_per_rank=slots, num_workers=layout.num_workers)


def search(
    space: Space,
    probe: Probe,
    *,
    budget_s: float,
    method: Literal["auto", "sweep"] = "sweep",
    training_samples: int | None = None,
    price_usd_per_h: float | None = None,
    report_progress: ReportProgress = lambda done, total, message: None,
) -> Result:
    """Measure and choose.

    1. Steps alone, with increasing slot size, until memory is exhausted or two sizes in a row gain nothing.
    2. The loader alone, with increasing workers, until more gain nothing or it is 1.5 times as fast as the steps.
    3. End to end, in turn: the default, and the fastest settings by the parts with their neighbours.
    4. End to end: the default, the leader and its neighbours that may be faster, until the leader does not change.
    5. Choice: the cheapest within 3 % of the fastest, if it is more than 3 % faster than the default; else the default.

    Args:
        space: Search space.
        probe: Makes the measurements.
        budget_s: End of the search on the probe's clock, in seconds.
        method: `auto` stops when measuring would take longer than the whole training at the measured rate.
        training_samples: Samples of the whole training, all epochs and ranks; for `auto`.
        price_usd_per_h: Price of all machines.
        report_progress: Receives the progress.

    Raises:
        ConfigError: The default does not fit into memory, and nothing that does was measured end to end.
    """
    run = _Search(space, probe, budget_s, training_samples if method == "auto" else None, report_progress)
    run.measure_steps()
    run.measure_loader()
    run.compare()
    return Result(
        choice=run.choice(),
        points=run.points(price_usd_per_h),
        loader=run.loader,
        compute=run.compute,
        warnings=[*space.warnings, *run.warnings],
    )


@dataclass
class _Contender:
    """Settings measured end to end."""

    key: Key
    ratios: list[float] = field(default_factory=list)
    """Rate divided by that of the first reference (the default, if it works), per interleaved window."""
    windows: list[float] = field(default_factory=list)
    data_time_fractions: list[float] = field(default_factory=list)
    units_per_sample: Mapping[str, float] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        return median(self.ratios)

    @property
    def rate(self) -> float:
        return median(self.windows)

    @property
    def data_time_fraction(self) -> float:
        return min(1.0, max(0.0, fmean(self.data_time_fractions)))


class _Search:
    """State of one search."""

    def __init__(
        self,
        space: Space,
        probe: Probe,
        budget_s: float,
        training_samples: int | None,
        report_progress: ReportProgress,
    ) -> None:
        self.space, self.probe, self.budget_s = space, probe, budget_s
        self.training_samples, self.report_progress = training_samples, report_progress
        self.loader: list[LoaderPoint] = []
        self.compute: list[ComputePoint] = []
        self.warnings: list[str] = []
        self._default = (space.default.slot_size, space.default.num_workers)
        self._reference = self._default
        """Settings of each turn that ratios are relative to."""
        self._contenders: dict[Key, _Contender] = {}
        self._failures: dict[Key, Failed] = {}
        """End to end."""
        self._reasons: list[str] = []
        """All failures as text."""
        self._end = ""
        """Why the search ended early."""
        self._is_over = False
        """Whether the budget ended, or the ranks cannot restart."""
        self._slot_sizes, self._num_workers = list(space.slot_sizes), list(space.num_workers)
        """Values that have not failed."""
        self._step_rates: dict[int, float] = {}
        self._loader_rates: dict[int, float] = {}
        self._part_s = self._window_s = 0.0
        """The longest measurement of a part, the mean window of the last turn."""
        self._parts_left = len(space.slot_sizes) + len(space.num_workers)
        self._done, self._most = 0, self._parts_left + 2 * FINALISTS

    # --- parts --------------------------------------------------------------------------------------------------------

    def measure_steps(self) -> None:
        """Measure steps alone, from the smallest slot size up."""
        without_gain = failed = 0
        for slot_size in self.space.slot_sizes:
            if 2 in (without_gain, failed) or slot_size not in self._slot_sizes or self._ends():
                break
            label = f"steps alone, slots of {slot_size}"
            began = self._begin(label)
            answer = self.probe.compute(slot_size)
            if isinstance(answer, Failed):
                if self._fail(label, answer):
                    failed += 1
                    self._exclude_slot_size(slot_size, answer)
                    self.compute.append(ComputePoint(slot_size=slot_size, **vars(answer)))
                continue
            step_s = (self.space.slots_per_rank(slot_size) - 1) * answer.slot_s + answer.last_slot_s
            rate = self.space.global_batch_size / self.space.ranks / step_s
            without_gain, failed = 0 if rate > self._best_step_rate() * (1 + TOLERANCE) else without_gain + 1, 0
            self._step_rates[slot_size] = rate
            self.compute.append(ComputePoint(slot_size=slot_size, samples_per_s=rate, **vars(answer)))
            self._count(f"{label}: {rate:.0f} samples/s", part_since=began)

    def measure_loader(self) -> None:
        """Measure the loader alone, from no workers up, at the smallest slot size within 3 % of the fastest."""
        self._parts_left = len(self.space.num_workers)
        least, last = self._best_step_rate() * (1 - TOLERANCE), 0.0
        slot_size = next((size for size, rate in self._step_rates.items() if rate >= least), self.space.slot_sizes[0])
        for workers in self.space.num_workers:
            is_enough = self._step_rates and last >= LOADER_MARGIN * self._best_step_rate()
            if is_enough or workers not in self._num_workers or self._ends():
                break
            label, point = f"loader alone, workers: {workers}", LoaderPoint(num_workers=workers, slot_size=slot_size)
            began = self._begin(label)
            answer = self.probe.load(self.space.settings(slot_size, workers))
            if isinstance(answer, Failed):
                if self._fail(label, answer):
                    # More workers would fail the same way; loading without workers runs other code.
                    self._num_workers = [each for each in self._num_workers if (each < workers if workers else each)]
                    self.loader.append(point.model_copy(update=vars(answer)))
                continue
            rate, least, most = median(answer.windows), min(answer.windows), max(answer.windows)
            rates = {"samples_per_s": rate, "samples_per_s_min": least, "samples_per_s_max": most}
            self.loader.append(point.model_copy(update=rates))
            self._loader_rates[workers] = rate
            self._count(f"{label}: {rate:.0f} samples/s", part_since=began)
            # A single worker alone is no faster than none, but runs in parallel with the steps.
            if workers > 1 and rate < last * (1 + LOADER_GAIN):
                break
            last = rate
        self._parts_left = 0

    def _best_step_rate(self) -> float:
        return max(self._step_rates.values(), default=0.0)

    # --- end to end ---------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Compare the finalists, then the leader with its neighbours, in each turn beside the reference."""
        candidates = self._finalists()
        for _ in range(TURNS):
            if not candidates or not self._turn(candidates):
                break
            candidates = self._challengers()
        for _ in range(TURNS):
            chosen = self._choose()
            if chosen is None or chosen.key == self._reference:
                break
            if chosen.gain > CLEAR or len(chosen.ratios) > 2 * ROUNDS or not self._turn([self._reference, chosen.key]):
                break

    def _finalists(self) -> list[Key]:
        """Return the default, then the fastest by the parts and its neighbours; at least two if possible."""
        limits = {key: self._limit(*key) for key in self._candidates()}
        if not limits:
            return []
        best = min((key for key in limits if limits[key] >= max(limits.values()) * (1 - TOLERANCE)), key=_expense)
        # The overlap of loading and steps is unknown; without workers there is none.
        serial = max(limits, key=lambda key: (key[1] == 0, limits[key]))
        neighbours = sorted(self._neighbours(best), key=lambda key: -limits[key])
        finalists = [self._default] * (self._default in limits) + [best, serial, *neighbours]
        return list(dict.fromkeys(finalists))[:FINALISTS]

    def _challengers(self) -> list[Key]:
        """Return the reference, the leader and its neighbours that may be faster; empty if there are none."""
        if not self._contenders:
            # All have failed: the smallest slot without workers is the most likely to work.
            return sorted(self._candidates(), key=_expense)[:1]
        leader = self._leader()
        challengers = [
            key
            for key in self._neighbours(leader.key)
            if key not in self._contenders
            and (key[1] <= leader.key[1] or leader.data_time_fraction > TOLERANCE)
            # The rate cannot exceed that of the slower part, which is accurate to a few per cent.
            and self._limit(*key) >= (1 - 2 * TOLERANCE) * leader.rate
        ]
        return list(dict.fromkeys([self._reference, leader.key, *challengers])) if challengers else []

    def _candidates(self) -> list[Key]:
        """Return the settings that have not failed, end to end or in a part."""
        return [key for key in product(self._slot_sizes, self._num_workers) if key not in self._failures]

    def _neighbours(self, key: Key) -> list[Key]:
        """Return the candidates that differ by one slot size or one number of workers."""
        sizes, workers = self.space.slot_sizes.index, self.space.num_workers.index
        return [
            near
            for near in self._candidates()
            if abs(sizes(near[0]) - sizes(key[0])) + abs(workers(near[1]) - workers(key[1])) == 1
        ]

    def _limit(self, slot_size: int, num_workers: int) -> float:
        """Return the upper bound of the rate by the parts; an unmeasured part has the rate of the next smaller one."""
        steps = [rate for size, rate in self._step_rates.items() if size <= slot_size]
        loads = [rate for workers, rate in self._loader_rates.items() if workers <= num_workers]
        if not steps or not loads:
            return 0.0
        return min(steps[-1], loads[-1]) if num_workers else 1 / (1 / steps[-1] + 1 / loads[-1])

    def _turn(self, candidates: list[Key]) -> bool:
        """Measure settings in interleaved windows, the first is the reference; return whether the search continues."""
        began, round_s = self.probe.now(), ROUNDS * (self._window_s or self._part_s / 2)
        keys = candidates[: int((self.budget_s - began) / round_s)] if round_s else candidates
        if self._ends(ROUNDS * len(keys)):
            return False
        if len(keys) < len(candidates):
            self._end, self._is_over = self._end or BUDGET, True
            if len(keys) < min(2, len(candidates)):
                return False
        self._begin(f"loader and steps together: {'; '.join(map(_describe, keys))}")
        answers = self.probe.run([self.space.settings(*key) for key in keys], rounds=ROUNDS)
        rates: dict[Key, JointRate] = {}
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, JointRate):
                rates[key] = answer
            elif self._fail(_describe(key), answer):
                self._failures[key] = answer
                if answer.outcome == "out of memory":
                    self._exclude_slot_size(key[0], answer)
        alive = self._candidates()
        self._contenders = {key: each for key, each in self._contenders.items() if key in alive}
        if rates and self._reference not in rates:
            self._reference = next((key for key in rates if key in self._contenders), next(iter(rates)))
            if self._reference not in self._contenders:
                # Nothing was measured in an earlier turn too: ratios cannot be compared.
                self._contenders.clear()
        gain = self._contenders[self._reference].gain if self._reference in self._contenders else 1.0
        for key, answer in rates.items():
            contender = self._contenders.setdefault(key, _Contender(key))
            ratios = map(truediv, answer.windows, rates[self._reference].windows)
            contender.ratios += [gain * ratio for ratio in ratios]
            contender.windows += answer.windows
            contender.data_time_fractions.append(answer.data_time_fraction)
            contender.units_per_sample = answer.units_per_sample
            self._count(f"{_describe(key)}: {median(answer.windows):.0f} samples/s")
        if len(rates) == len(keys):
            # With a failure the time includes a timeout or a restart of the ranks.
            self._window_s = (self.probe.now() - began) / (ROUNDS * len(rates))
        return not self._end

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _ends(self, windows: int = 0) -> bool:
        """Return whether the search ends before a part or some windows: by the budget, or without benefit (`auto`)."""
        if self.probe.now() + (0.0 if windows else self._part_s) >= self.budget_s:
            self._end, self._is_over = self._end or BUDGET, True
        # `auto` needs rates of both parts, and a default that has not failed.
        rate = self._leader().rate if self._contenders else self._limit(*self._default)
        if self.training_samples is not None and rate and self._default in self._candidates():
            training_s = self.training_samples / (rate * self.space.ranks)
            ahead = windows or FINALISTS * ROUNDS
            remaining_s = self._parts_left * self._part_s + ahead * (self._window_s or self._part_s / 2)
            if training_s < remaining_s:
                self._end = self._end or (
                    f"the whole training takes {training_s:.1f} s at {rate:.0f} samples/s per rank, less than the "
                    f"{remaining_s:.1f} s that were left to measure"
                )
        return bool(self._end)

    def _begin(self, label: str) -> float:
        """Report that a measurement begins, and return the time."""
        self.report_progress(self._done, self._most, f"measuring {label}")
        return self.probe.now()

    def _count(self, message: str, *, part_since: float | None = None) -> None:
        """Count a measurement, and report it."""
        if part_since is not None:
            self._part_s = max(self._part_s, self.probe.now() - part_since)
        self._done = min(self._done + 1, self._most)
        self._parts_left = max(0, self._parts_left - 1)
        self.report_progress(self._done, self._most, message)

    def _fail(self, label: str, failed: Failed) -> bool:
        """Record a failure; return whether the settings caused it."""
        if failed.outcome == "budget":
            self._end, self._is_over = failed.reason, True
            return False
        self._reasons.append(f"{label}: {failed.outcome}: {failed.reason}")
        self._count(self._reasons[-1])
        return True

    def _exclude_slot_size(self, slot_size: int, failed: Failed) -> None:
        """Exclude a slot size, and all larger ones if memory was exhausted."""
        larger = [] if failed.outcome == "out of memory" else [each for each in self._slot_sizes if each > slot_size]
        self._slot_sizes = [each for each in self._slot_sizes if each < slot_size] + larger

    # --- choice -------------------------------------------------------------------------------------------------------

    def _leader(self) -> _Contender:
        return max(self._contenders.values(), key=lambda each: each.gain)

    def _choose(self) -> _Contender | None:
        """Return the cheapest within 3 % of the fastest that beat the default, or else the default; None: neither."""
        default = self._contenders.get(self._default)
        if not self._contenders or (default is None and self._default in self._candidates()):
            return None
        rivals = [each for each in self._contenders.values() if each is not default]
        least = max((each.gain for each in rivals), default=0.0) * (1 - TOLERANCE)
        if default is not None:
            least = max(least, default.gain * (1 + TOLERANCE))
        better = [each for each in rivals if each.gain >= least]
        return min(better, key=lambda each: _expense(each.key)) if better else default

    def choice(self) -> ProfileChoice:
        """Return the choice and its reason; add to the warnings.

        Raises:
            ConfigError: The default does not fit into memory, and nothing that does was measured end to end.
        """
        chosen, default, number = self._choose(), self._contenders.get(self._default), len(self._contenders)
        if chosen is None:
            return self._defaults()
        if number == 1:
            place = "the only one"
        elif chosen is default:
            place = f"the default, which none beats by more than {TOLERANCE:.0%}, of {number}"
        elif chosen is self._leader():
            place = f"the fastest of {number}"
        else:
            place = f"the cheapest within {TOLERANCE:.0%} of the fastest, of {number}"
        reason = f"{chosen.rate:.0f} samples/s per rank at {chosen.data_time_fraction:.0%} data time; {place} measured"
        if self._reference == self._default != chosen.key:
            reason += f", {chosen.gain:.2f} times the default"
        if self._is_over:
            self.warnings.append(f"{self._end}: the best of {number} measured end to end is taken")
        elif self._end:
            reason += f"; the search ended early: {self._end}"
        return ProfileChoice(**dict(self.space.settings(*chosen.key)), reason=reason)

    def _defaults(self) -> ProfileChoice:
        reason = self._end or "no configuration could be measured end to end"
        if self._is_over or not self._end:
            reason += f" ({'; '.join(self._reasons[:MOST_REASONS])})" if self._reasons else ""
            self.warnings.append(f"training uses the defaults: {reason}; to do: fix the cause, or set profile: off")
        too_large = [key[0] for key, failed in self._failures.items() if failed.outcome == "out of memory"]
        too_large += [point.slot_size for point in self.compute if point.outcome == "out of memory"]
        if min(too_large, default=self.space.default.slot_size + 1) <= self.space.default.slot_size:
            fitting = max(self._step_rates, default=1)
            raise ConfigError(
                f"the default slot size {self.space.default.slot_size} is out of memory with {self.space.network} on "
                f"{self.space.ranks} rank(s), and {reason}",
                allowed="a slot size that fits into memory and is measured within profile.budget_s",
                todo="take a smaller model (model.arguments) or shorter samples (task.arguments.max_length of texts); "
                f"or set profile=off and parallel.slot_size={fitting}; or raise profile.budget_s",
            )
        return ProfileChoice(**dict(self.space.default), reason=f"the defaults: {reason}", measured=False)

    def points(self, price_usd_per_h: float | None) -> list[ProfilePoint]:
        """Return the settings measured end to end: the fastest first, failed ones last."""
        points = []
        for each in sorted(self._contenders.values(), key=lambda each: -each.rate):
            usd = None if price_usd_per_h is None else price_usd_per_h / 3600 / (each.rate * self.space.ranks) * 1e6
            points.append(
                ProfilePoint(
                    **dict(self.space.settings(*each.key)),
                    samples_per_s=each.rate,
                    samples_per_s_min=min(each.windows),
                    samples_per_s_max=max(each.windows),
                    windows=len(each.windows),
                    data_time_fraction=each.data_time_fraction,
                    units_per_s={unit: each.rate * mean for unit, mean in each.units_per_sample.items()},
                    usd_per_million_samples=usd,
                )
            )
        failures = self._failures.items()
        return points + [ProfilePoint(**dict(self.space.settings(*key)), **vars(failed)) for key, failed in failures]


def _expense(key: Key) -> Key:
    """Sort key of equally fast settings: fewer workers (cores), then smaller slots (memory)."""
    return key[1], key[0]


def _describe(key: Key) -> str:
    return f"slot size {key[0]}, {key[1]} {'worker' if key[1] == 1 else 'workers'}"
