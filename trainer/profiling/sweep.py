"""The sweep: measure the parts, predict the whole, measure the best of it end to end, take the cheapest of the equal.

    parts.py     the loader alone, the steps alone, memory
    predict.py   the rate of a whole, with one joint run for what hides behind what
    pairs.py     the finalists against each other, window by window in turn
    grid.py      every combination end to end instead, for comparison

It knows nothing of torch or processes: what measures is a Probe (measure.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median

from contracts.artifacts import ProfileChoice, ProfilePoint, Settings
from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.profiling.grid import full_grid
from trainer.profiling.ledger import Ledger, Result, Tell, silent
from trainer.profiling.measure import Failed, Probe
from trainer.profiling.pairs import (
    TOLERANCE,
    Contender,
    choice_of,
    describe,
    expense,
    leader,
    point_of,
    undecided,
    within_tolerance,
)
from trainer.profiling.parts import Parts
from trainer.profiling.predict import Predictor
from trainer.profiling.space import Space

__all__ = ["Result", "full_grid", "sweep"]

# Windows of the joint run that the overlap is fitted to: the finalists are measured again anyway.
JOINT_WINDOWS = 2
# Finalists, and windows of each before they are compared: of two windows the interval spans a factor of two at 5 %
# noise, of three 12 % each way, which tells most finalists apart; what it does not is measured again.
FINALISTS = 3
ROUNDS = 3
# Times that finalists are measured: 9 windows tell apart what differs by noise of one window.
MOST_TURNS = 3
# Predictions that are as close as this may be the other way round: of those, the cheapest is a finalist too.
CLOSE = 0.06
# A finalist of another kind (with loader processes or without) may be predicted this much slower than the best:
# predictions err by 15 %, and all of one kind the same way.
OTHER_KIND = 0.25
# Others that are predicted slower than this are not worth measuring.
FILL_UP = 0.12
# Slot sizes closer than this factor are not worth two finalists.
DISTINCT_SLOTS = 1.4
# A leader that waits this share of its time for data may gain from more slots ahead.
WAITS = 0.05
# Configurations that are tried without a prediction, and after finalists that failed.
MOST_TRIES = 4


def sweep(
    space: Space, probe: Probe, *, budget_s: float, tell: Tell = silent, price_usd_per_h: float | None = None
) -> Result:
    """Find the cheapest configuration within TOLERANCE of the fastest.

    Args:
        space: What may be tried.
        probe: What measures.
        budget_s: Seconds that it may take, on the probe's clock; then the best that was found is taken, with a warning.
            One configuration is measured end to end even after it.
        tell: Is told (measurements done, about how many there will be, what came out).
        price_usd_per_h: What all machines cost in an hour, in US dollars.

    Raises:
        ConfigError: Nothing could be measured end to end.
    """
    ledger = Ledger(space, probe, budget_s=budget_s, tell=tell, price_usd_per_h=price_usd_per_h)
    predictor = Predictor(space)
    parts = Parts(space, ledger, predictor)
    ledger.expected = len(space.num_workers) + min(4, len(space.slot_sizes)) + len(space.threads) + 1 + FINALISTS
    parts.measure()
    final = _Final(space, ledger, predictor, parts)
    final.fit_overlap()
    final.measure()
    return final.result()


@dataclass
class _Final:
    """The end-to-end part of the sweep."""

    space: Space
    ledger: Ledger
    predictor: Predictor
    parts: Parts
    contenders: dict[str, Contender] = field(default_factory=dict)
    failed: dict[str, Failed] = field(default_factory=dict)
    fitted: str | None = None
    """The configuration that the overlap was fitted to."""
    joint: Contender | None = None
    """The same, with its rate."""
    rounds: int = 0
    warnings: list[str] = field(default_factory=list)

    def candidates(self) -> list[tuple[float, Settings]]:
        """Return what is predicted to fit and has not failed, the fastest first."""
        found = []
        for (flags, threads), slot_size, workers in product(
            self.predictor.compute, self.parts.slot_sizes, self.space.num_workers
        ):
            if flags not in self.space.flags or not self.parts.fits(slot_size, flags):
                continue
            settings = self._settings(slot_size, workers, threads=threads, flags=flags)
            rate = self.predictor.rate(settings)
            if rate is not None and _key(settings) not in self.failed:
                found.append((rate, settings))
        return sorted(found, key=lambda each: (-each[0], expense(each[1])))

    def fit_overlap(self) -> None:
        """Fit the predictor to one joint run, where loader processes may be worth it."""
        for _ in range(2):
            candidates = self.candidates()
            with_workers = [each for each in candidates if each[1].num_workers]
            if not with_workers or not self.ledger.allows("run"):
                return
            (predicted, settings), fastest = with_workers[0], candidates[0][0]
            without = max((rate for rate, each in candidates if not each.num_workers), default=0.0)
            if predicted < (1 - TOLERANCE) * fastest or (without and predicted < (1 + TOLERANCE) * without):
                # Even if all of the loader's time hid behind the steps, fewer processes would be chosen.
                return
            rate = self.ledger.run(settings, windows=JOINT_WINDOWS, predicted=predicted)
            if not isinstance(rate, Failed):
                self.predictor.fit(settings, rate)
                self.fitted = _key(settings)
                self.joint = Contender(settings, {-1: rate})
                return
            self._fail(settings, rate)

    def measure(self) -> None:
        """Measure finalists in turn until the leader is clear, or it is as good as equal, or the budget is out."""
        if not self.ledger.allows("turn"):
            self._last_resort()
            return
        for turn in range(MOST_TURNS):
            wanted = self._next(turn)
            if not wanted:
                return
            while len(wanted) > 1 and not self.ledger.allows("turn", parts=len(wanted)):
                wanted = wanted[:-1]
            # A second turn needs two, or it decides nothing.
            if turn and (len(wanted) < 2 or not self.ledger.allows("turn", parts=len(wanted))):
                return
            self._turn(wanted)
            tries = 0
            while not self.contenders and tries < MOST_TRIES and self.ledger.allows("turn"):
                tries += 1
                replacement = self._first_finalists()[:1]
                if not replacement:
                    break
                self._turn(replacement)

    def result(self) -> Result:
        """Return what was found.

        Raises:
            ConfigError: Nothing was.
        """
        contenders = list(self.contenders.values())
        if not contenders:
            raise self.ledger.nothing_measured()
        best = leader(contenders)
        equal = within_tolerance(best, contenders)
        chosen = min(equal, key=lambda each: expense(each.settings))
        open_ = undecided(best, contenders)
        recommendations = self.parts.recommend()
        reason = f"{chosen.rate:.0f} samples/s a rank at {self._waits(chosen):.0%} data time"
        if chosen is best:
            reason += f", the most of {len(contenders)} configurations measured end to end"
        else:
            reason += (
                f"; the fastest of {len(contenders)} measured end to end has {best.rate:.0f} "
                f"({describe(best.settings)}), and the cheapest within {TOLERANCE:.0%} of it is taken"
            )
        reason = "; ".join([reason, *self.parts.notes])
        if self.ledger.over():
            self.warnings.append(
                f"profile.budget_s {self.ledger.budget_s:g} ended the sweep: the best of "
                f"{len(contenders)} configurations is taken"
            )
        points = self.ledger.points()
        return Result(
            points=[*points, *self._predicted_only(points, chosen.settings)],
            loader=self.ledger.loader,
            compute=self.ledger.compute,
            memory=self.parts.memory(),
            overlap=self.predictor.overlap,
            predictor_error=self._error(points),
            choice=choice_of(chosen.settings, reason=reason, clear=not open_),
            recommendations=recommendations,
            warnings=[*self.space.ignored, *self.warnings],
        )

    # --- which to measure ---------------------------------------------------------------------------------------------

    def _next(self, turn: int) -> list[Settings]:
        """Return what to measure in a turn: the finalists, then the leader with what it is not clear of."""
        if turn == 0:
            return self._first_finalists()
        if not self.contenders:
            return []
        best = leader(list(self.contenders.values()))
        others = [each.settings for each in undecided(best, list(self.contenders.values()))]
        others += [each for each in self._challengers(best) if each not in others]
        return [best.settings, *others] if others else []

    def _first_finalists(self) -> list[Settings]:
        candidates = self.candidates()
        if not candidates:
            return self._unpredicted()[:FINALISTS]
        fastest_rate, fastest = candidates[0]
        close = [each for rate, each in candidates if rate >= (1 - CLOSE) * fastest_rate]
        chosen = [fastest]
        cheapest = min(close, key=expense)
        if cheapest != fastest:
            chosen.append(cheapest)
        other_kind = (
            each
            for rate, each in candidates
            if bool(each.num_workers) != bool(fastest.num_workers) and rate >= (1 - OTHER_KIND) * fastest_rate
        )
        # Its cheapest close one may be in already.
        if (other := next(other_kind, None)) and all(
            bool(each.num_workers) != bool(other.num_workers) for each in chosen
        ):
            chosen.append(other)
        for rate, each in candidates:
            if len(chosen) >= FINALISTS or rate < (1 - FILL_UP) * fastest_rate:
                break
            if all(_distinct(each, one) for one in chosen):
                chosen.append(each)
        return chosen

    def _challengers(self, best: Contender) -> list[Settings]:
        """Return what, after all, may be better than the leader: at most one."""
        kinds: dict[bool, list[float]] = {}
        for contender in self.contenders.values():
            predicted = self.predictor.rate(contender.settings)
            if predicted:
                kinds.setdefault(contender.settings.num_workers > 0, []).append(contender.rate / predicted)
        for rate, each in self.candidates():
            errors = kinds.get(each.num_workers > 0)
            if _key(each) in self.contenders or not errors:
                continue
            if rate * median(errors) > (1 + TOLERANCE) * best.rate:
                return [each]
        more = [each for each in self.space.prefetch_factors if each > best.settings.prefetch_factor]
        if best.settings.num_workers and more and self._waits(best) >= WAITS:
            ahead = best.settings.model_copy(update={"prefetch_factor": more[-1]})
            return [ahead] if _key(ahead) not in {*self.contenders, *self.failed} else []
        return []

    def _unpredicted(self) -> list[Settings]:
        """Return configurations that are the most likely to work, where nothing is predicted."""
        smallest, threads = self.parts.slot_sizes[0], self.space.usual_threads
        tries = [
            self._settings(smallest, workers, threads=threads, flags=flags)
            for flags in self.space.flags
            for workers in self.space.num_workers
        ]
        # First all worker counts with the flags of training, then other flags.
        return [each for each in tries if _key(each) not in self.failed][:MOST_TRIES]

    def _predicted_only(self, measured: Sequence[ProfilePoint], chosen: Settings) -> Iterator[ProfilePoint]:
        """Yield what was predicted with the flags and threads of the choice, and not measured: the sweep as a map."""
        known = {(point.slot_size, point.num_workers) for point in measured if _same_steps(point, chosen)}
        for rate, settings in self.candidates():
            if _same_steps(settings, chosen) and (settings.slot_size, settings.num_workers) not in known:
                yield point_of(settings, predicted_samples_per_s=rate, reason="predicted only: not among the finalists")

    # --- what came out ------------------------------------------------------------------------------------------------

    def _turn(self, wanted: list[Settings]) -> None:
        predicted = [self.predictor.rate(each) for each in wanted]
        found = self.ledger.in_turn(wanted, rounds=ROUNDS, predicted=predicted)
        for settings, rates in zip(wanted, found, strict=True):
            if isinstance(rates, Failed):
                self._fail(settings, rates)
                continue
            contender = self.contenders.setdefault(_key(settings), Contender(settings))
            contender.rates.update({self.rounds + number: rate for number, rate in enumerate(rates)})
        self.rounds += ROUNDS

    def _last_resort(self) -> None:
        """Take what the joint run measured; without one, measure one configuration after the budget."""
        if self.joint is not None:
            self.contenders[_key(self.joint.settings)] = self.joint
            return
        for settings in self._first_finalists()[:1]:
            rate = self.ledger.run(settings, windows=1, predicted=self.predictor.rate(settings))
            if isinstance(rate, Failed):
                self._fail(settings, rate)
            else:
                self.contenders[_key(settings)] = Contender(settings, {self.rounds: rate})

    def _fail(self, settings: Settings, failed: Failed) -> None:
        self.failed[_key(settings)] = failed
        self.contenders.pop(_key(settings), None)
        if failed.outcome == "out of memory":
            self.parts.too_large(settings.slot_size, settings.flags)

    def _waits(self, contender: Contender) -> float:
        return self.ledger.data_time_fraction(contender.settings)

    def _error(self, points: Sequence[ProfilePoint]) -> float | None:
        """Return the median error of predictions over what the predictor was not fitted to."""
        errors = [
            abs(point.predicted_samples_per_s / point.samples_per_s - 1)
            for point in points
            if point.predicted_samples_per_s and point.samples_per_s and self._point_key(point) != self.fitted
        ]
        return median(errors) if errors else None

    @staticmethod
    def _point_key(point: ProfilePoint) -> str:
        return _key(Settings.model_validate({name: getattr(point, name) for name in Settings.model_fields}))

    def _settings(self, slot_size: int, num_workers: int, **others: object) -> Settings:
        # The fewest slots ahead that may be chosen: more are tried where the loop waits for data all the same.
        return self.space.settings(
            slot_size,
            num_workers,
            prefetch_factor=self.space.prefetch_factors[0],
            **others,  # type: ignore[arg-type]
        )


def _key(settings: Settings) -> str:
    return settings.model_dump_json()


def _same_steps(first: Settings, second: Settings) -> bool:
    return (first.threads, first.flags) == (second.threads, second.flags)


def _distinct(first: Settings, second: Settings) -> bool:
    if first.num_workers != second.num_workers or not _same_steps(first, second):
        return True
    small, large = sorted([first.slot_size, second.slot_size])
    return large >= DISTINCT_SLOTS * small


# --- until trainer/profiling/task.py measures by the above -----------------------------------------------------------


def candidate_slot_sizes(config: RunConfig, ranks: int) -> list[int]:
    """Return the slot sizes to measure; a pinned parallel.slot_size is the only one.

    Raises:
        ConfigError: None of the given sizes leaves every rank a slot.
    """
    batch = config.train.global_batch_size
    if config.parallel.slot_size != "auto":
        return [config.parallel.slot_size]
    share = max(1, batch // ranks)
    if config.profile.slot_sizes == "auto":
        return sorted({max(1, share // part) for part in (1, 2, 4)})
    usable = sorted({size for size in config.profile.slot_sizes if -(-batch // size) >= ranks})
    if not usable:
        raise ConfigError(
            f"profile.slot_sizes {config.profile.slot_sizes}: none leaves each of {ranks} ranks a slot "
            f"of a global batch of {batch}",
            allowed=f"at least one size up to {share}",
            todo=f"add {share} to profile.slot_sizes",
        )
    return usable


def candidate_num_workers(config: RunConfig, cores_per_rank: int) -> list[int]:
    """Return the numbers of loader processes to measure; a pinned data.num_workers is the only one."""
    if config.data.num_workers != "auto":
        return [config.data.num_workers]
    if config.profile.num_workers != "auto":
        return sorted(set(config.profile.num_workers))
    numbers = [0]
    workers = 1
    while workers <= cores_per_rank:
        numbers.append(workers)
        workers *= 2
    return numbers


def choose(points: Sequence[ProfilePoint]) -> ProfileChoice:
    """Return the cheapest configuration within TOLERANCE of the fastest: fewest processes, then the smallest slot."""
    best = max(points, key=lambda point: point.samples_per_s or 0.0)
    good = [point for point in points if (point.samples_per_s or 0.0) >= (best.samples_per_s or 0.0) * (1 - TOLERANCE)]
    chosen = min(good, key=lambda point: (point.num_workers, point.slot_size))
    reason = (
        f"{chosen.samples_per_s:.0f} samples/s a rank at {chosen.data_time_fraction:.0%} data time; the fastest of "
        f"{len(points)} points has {best.samples_per_s:.0f} (slot size {best.slot_size}, {best.num_workers} workers), "
        f"and the cheapest within {TOLERANCE:.0%} of it is taken"
    )
    return ProfileChoice(slot_size=chosen.slot_size, num_workers=chosen.num_workers, reason=reason)
