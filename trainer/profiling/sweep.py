"""The sweep: measure the parts, predict the whole, measure the best of it end to end, take the cheapest of the equal.

    parts.py     the loader alone, the steps alone, memory
    predict.py   the rate of a whole, with one joint run for what hides behind what
    pairs.py     the finalists in turn, window by window, pair by pair

The default is one of the finalists, and nothing is taken that has not beaten it: by its rate, or, where they are
equal, by what it takes of the machine.
It knows nothing of torch or processes: what measures is a Probe (measure.py), behind a ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median

from contracts.artifacts import ProfileChoice, ProfilePoint, Recommendation, Settings
from trainer.profiling.ledger import ROUNDS, Ledger, Result
from trainer.profiling.measure import Failed
from trainer.profiling.pairs import (
    FINALISTS,
    MOST_TURNS,
    TOLERANCE,
    Contender,
    choice_of,
    describe,
    differ,
    equals,
    expense,
    is_hopeless,
    leader,
    point_of,
    ratio,
    same_steps,
    undecided,
    within_tolerance,
)
from trainer.profiling.parts import Parts
from trainer.profiling.predict import Predictor
from trainer.profiling.recommend import recommend
from trainer.profiling.space import Space

# Windows of the joint run that the overlap is fitted to: the finalists are measured again anyway.
JOINT_WINDOWS = 2
# The whole sweep is to take less than this share of the grid's time: what is not clear by then stays so. Of a small
# space, less than so many of its points.
GRID_SHARE = 0.3
GRID_POINTS = 8
# Predictions that are as close as this may be the other way round: of those, the cheapest is a finalist too.
CLOSE = 0.06
# A finalist with another number of loader processes may be predicted this much slower than the best: predictions err by
# 15 %, and all of one number the same way.
OTHER_WORKERS = 0.25
# Others that are predicted slower than this are not worth measuring.
FILL_UP = 0.12
# A leader that waits this share of its time for data may gain from more slots ahead.
WAITS = 0.05
# Configurations that are tried without a prediction, and after finalists that failed.
MOST_TRIES = 4


def sweep(ledger: Ledger) -> Result:
    """Find the cheapest configuration within TOLERANCE of the fastest.

    Where the budget ends before the defaults were compared with another configuration, it is they, with a warning.

    Args:
        ledger: What measures, within a budget.

    Raises:
        ConfigError: Nothing could be measured end to end.
    """
    space = ledger.space
    predictor = Predictor(space)
    parts = Parts(ledger, predictor)
    ledger.expected = len(space.num_workers) + min(4, len(space.slot_sizes)) + len(space.threads) + 1 + FINALISTS
    parts.measure()
    final = _Finals(space, ledger, predictor, parts)
    final.fit_overlap()
    final.measure()
    return final.result()


@dataclass
class _Finals:
    """The end-to-end part of the sweep."""

    space: Space
    ledger: Ledger
    predictor: Predictor
    parts: Parts
    contenders: dict[str, Contender] = field(default_factory=dict)
    failed: dict[str, Settings] = field(default_factory=dict)
    joint: Contender | None = None
    """The configuration that the overlap was fitted to, with its rate."""
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
            settings = self.space.settings(slot_size, workers, threads=threads, flags=flags)
            rate = self.predictor.rate(settings)
            if rate is not None and not self._is_hopeless(settings):
                found.append((rate, settings))
        return sorted(found, key=lambda each: (-each[0], expense(each[1])))

    def fit_overlap(self) -> None:
        """Fit the predictor to one joint run, where loader processes may be worth it."""
        for _ in range(2):
            candidates = self.candidates()
            # What was measured apart: an error of what was not would pass for missing overlap.
            with_workers = [each for each in candidates if each[1].num_workers and self.predictor.is_measured(each[1])]
            if not with_workers or not self.ledger.allows("run"):
                return
            predicted, settings = with_workers[0]
            without = max((rate for rate, each in candidates if not each.num_workers), default=0.0)
            at_most = max(self.predictor.rate(each, overlap=1.0) or 0.0 for _, each in candidates if each.num_workers)
            if at_most < (1 + TOLERANCE) * without:
                # Even if all that can hide did hide, the configuration without processes would be chosen.
                return
            (rates,) = self.ledger.run([settings], rounds=JOINT_WINDOWS, predicted=[predicted])
            if not isinstance(rates, Failed):
                self.joint = Contender(settings, {-1: median(rates)})
                self.predictor.fit(settings, self.joint.rate)
                self.parts.more_workers()
                return
            self._fail(settings, rates)

    def measure(self) -> None:
        """Measure finalists in turn until the leader is clear, or it is as good as equal, or the budget is out."""
        compared = 2 if self.space.has_alternatives() else 1
        if not self.ledger.allows("turn", parts=compared):
            if not (self.space.has_alternatives() and self._can_take_defaults()):
                self._last_resort()
            return
        for turn in range(MOST_TURNS):
            wanted = self._next(turn)
            if not wanted:
                return
            while len(wanted) > 1 and not self.ledger.allows("turn", parts=len(wanted)):
                wanted = self._shortened(wanted)
            # A second turn needs two, or it decides nothing.
            if turn and (len(wanted) < 2 or not self._is_worth(len(wanted))):
                return
            self._turn(wanted)
            tries = 0
            while not self.contenders and tries < MOST_TRIES and self.ledger.allows("turn"):
                tries += 1
                replacement = self._replacement(tries)
                if replacement is None:
                    break
                self._turn([replacement])

    def _shortened(self, wanted: list[Settings]) -> list[Settings]:
        """Leave out the last one that is not the default: what is taken is to have beaten that."""
        reference = self.space.reference
        default = None if reference is None else _key(reference)
        last = next((at for at in range(len(wanted) - 1, 0, -1) if _key(wanted[at]) != default), len(wanted) - 1)
        return [*wanted[:last], *wanted[last + 1 :]]

    def result(self) -> Result:
        """Return what was found.

        Raises:
            ConfigError: Nothing was.
        """
        contenders, default = list(self.contenders.values()), self._default()
        compared = len(contenders) >= (2 if self.space.has_alternatives() else 1)
        compared &= default is not None or self.space.reference is None
        if self.ledger.over() and not compared and self._can_take_defaults():
            # One configuration that was measured is no comparison, nor are several without the defaults.
            points = self.ledger.points()
            choice, warning = self.ledger.defaults(sum(point.samples_per_s is not None for point in points))
            self.warnings.append(warning)
            return self._result(points, choice, [])
        if not contenders:
            raise self.ledger.nothing_measured()
        best = leader(contenders)
        equal = within_tolerance(best, contenders)
        if default is not None:
            equal = [each for each in equal if _beats(each, default, best)] or [default]
        chosen = min(equal, key=lambda each: expense(each.settings))
        beside, alike = len(contenders) - 1, len(equals(best, contenders))
        cut_short = self.ledger.over()
        recommendations = recommend(chosen.settings, self.parts, self.ledger)
        points = self.ledger.points()
        # What the table says: a leader by pairs need not have the highest median of its own.
        shown = next((one.samples_per_s for one in points if _key(one) == _key(chosen.settings)), None)
        waits = self.ledger.data_time_fraction(chosen.settings)
        reason = f"{shown or chosen.rate:.0f} samples/s per rank at {waits:.0%} data time"
        if chosen is best:
            others = "the other was not" if beside == 1 else f"none of the {beside} others was"
            alone = ", the only one measured" if sum(one.samples_per_s is not None for one in points) == 1 else ""
            reason += f"; window by window {others} faster" if beside else alone
        elif (paired := ratio(chosen, best)) is not None:
            reason += (
                f"; window by window {paired.middle:.2f} of the fastest of {len(contenders)} "
                f"({describe(best.settings)}), and "
                + (
                    f"the cheapest within {TOLERANCE:.0%} of it is taken"
                    if paired.middle >= 1 - TOLERANCE
                    else "the default is taken, which none has beaten"
                )
            )
        reason = "; ".join([reason, *self.parts.notes])
        budget = f"profile.budget_s {self.ledger.budget_s:g}"
        if cut_short:
            self.warnings.append(f"{budget} ended the sweep: the best of {len(contenders)} configurations is taken")
        elif self.ledger.over():
            self.warnings.append(f"{budget} left no time to measure every flag that might be recommended")
        clear = not alike and (beside > 0 or not self.space.has_alternatives())
        choice = choice_of(chosen.settings, reason=reason, clear=clear, equals=alike)
        return self._result(points, choice, recommendations)

    def _default(self) -> Contender | None:
        """Return what was measured of the default; None: it was not, or failed."""
        reference = self.space.reference
        return None if reference is None else self.contenders.get(_key(reference))

    def _can_take_defaults(self) -> bool:
        """Whether nothing says that the defaults do not work."""
        default = self.space.default
        return (
            self.ledger.anything_worked()
            and self.parts.fits(default.slot_size, default.flags)
            and not self._is_hopeless(default)
        )

    def _result(
        self, points: list[ProfilePoint], choice: ProfileChoice, recommendations: list[Recommendation]
    ) -> Result:
        return Result(
            points=[*points, *self._predicted_only(points, choice)],
            loader=self.ledger.loader,
            compute=self.ledger.compute,
            memory=self.parts.memory(),
            overlap=self.predictor.overlap,
            predictor_error=self._error(points),
            choice=choice,
            recommendations=recommendations,
            warnings=[*self.space.ignored, *self.warnings],
        )

    def _next(self, turn: int) -> list[Settings]:
        """Return what to measure in a turn: the finalists, then the leader with what it is not clear of."""
        if turn == 0:
            return self._first_finalists()
        if not self.contenders:
            return []
        best = leader(list(self.contenders.values()))
        others = [each.settings for each in undecided(best, list(self.contenders.values()))]
        # What would be taken instead of the leader has to be as good, not only look so.
        cheapest = min(within_tolerance(best, list(self.contenders.values())), key=lambda each: expense(each.settings))
        found = None if cheapest is best else ratio(best, cheapest)
        if found is not None and found.high > 1 + 2 * TOLERANCE and cheapest.settings not in others:
            others.append(cheapest.settings)
        others += [each for each in self._challengers(best) if each not in others]
        return [best.settings, *others] if others else []

    def _first_finalists(self) -> list[Settings]:
        """Return the fastest by prediction, the default, and what may turn out to be better or as good and cheaper."""
        candidates = self.candidates()
        finalists = self._best_predicted(candidates) if candidates else self._unpredicted()
        default = self.space.reference
        if default is None or not self.parts.fits(default.slot_size, default.flags) or self._is_hopeless(default):
            return finalists[:FINALISTS]
        others = [each for each in finalists if _key(each) != _key(default)]
        return [*others[: FINALISTS - 1], default]

    def _best_predicted(self, candidates: list[tuple[float, Settings]]) -> list[Settings]:
        """Return two finalists or more of what is predicted, as far as there are two that differ."""
        fastest_rate, fastest = candidates[0]
        chosen = [fastest]

        def add(
            within: float, wanted: Callable[[Settings], bool], key: Callable[[Settings], object] | None = None
        ) -> None:
            fitting = [each for rate, each in candidates if rate >= (1 - within) * fastest_rate and wanted(each)]
            if fitting and len(chosen) < FINALISTS:
                chosen.append(min(fitting, key=key) if key else fitting[0])  # type: ignore[arg-type]

        add(CLOSE, lambda each: expense(each) < expense(fastest), expense)
        # What processes do to each other is what the prediction knows least of; more so where the joint run shows it.
        disturbed = max(0.0, self.predictor.contention) * fastest.num_workers
        taken = {each.num_workers for each in chosen}
        if len({each.slot_size for each in chosen}) > 1 or len(chosen) == 1:
            add(OTHER_WORKERS + disturbed, lambda each: each.num_workers not in taken)
        while len(chosen) < FINALISTS:
            before = len(chosen)
            add(FILL_UP, lambda each: all(each.slot_size != one.slot_size and differ(each, one) for one in chosen))
            add(FILL_UP, lambda each: all(differ(each, one) for one in chosen))
            if len(chosen) == before:
                break
        if len(chosen) == 1:
            chosen += [each for _, each in candidates if differ(each, fastest)][:1]
        return chosen

    def _challengers(self, best: Contender) -> list[Settings]:
        """Return what, after all, may be better than the leader: at most one."""
        worth_it = (1 + TOLERANCE) * best.rate
        if self.joint is not None and _key(self.joint.settings) not in self.contenders and self.joint.rate > worth_it:
            # Predicted to be slower, by what was fitted to it.
            return [self.joint.settings]
        # Predictions err by about the same for all: what remains is the order.
        errors = [each.rate / rate for each in self.contenders.values() if (rate := self.predictor.rate(each.settings))]
        for rate, each in self.candidates() if errors else ():
            if _key(each) not in self.contenders and rate * median(errors) > worth_it:
                return [each]
        more = [each for each in self.space.prefetch_factors if each > best.settings.prefetch_factor]
        if best.settings.num_workers and more and self.ledger.data_time_fraction(best.settings) >= WAITS:
            ahead = best.settings.model_copy(update={"prefetch_factor": more[-1]})
            return [ahead] if _key(ahead) not in {*self.contenders, *self.failed} else []
        return []

    def _replacement(self, tries: int) -> Settings | None:
        """Return what to try after all others have failed: fewer processes, smaller slots, the least of all."""
        candidates = [each for _, each in self.candidates()]
        workers = min((each.num_workers for each in self.failed.values()), default=0)
        slot_size = min((each.slot_size for each in self.failed.values()), default=0)
        if tries == 1 and (fewer := [each for each in candidates if each.num_workers < workers]):
            return fewer[0]
        if tries < MOST_TRIES and (smaller := [each for each in candidates if each.slot_size <= slot_size / 2]):
            return smaller[0]
        least = [each for each in [*candidates, *self._unpredicted()] if _key(each) not in self.failed]
        return min(least, key=expense, default=None)

    def _is_hopeless(self, settings: Settings) -> bool:
        worked = [each.settings for each in self.contenders.values()]
        return is_hopeless(settings, list(self.failed.values()), worked)

    def _unpredicted(self) -> list[Settings]:
        """Return configurations that are the most likely to work, where nothing is predicted."""
        smallest, threads = self.parts.slot_sizes[0], self.space.usual_threads
        tries = [
            self.space.settings(smallest, workers, threads=threads, flags=flags)
            for flags in self.space.flags
            for workers in self.space.num_workers
        ]
        # First all worker counts with the flags of training, then other flags.
        return [each for each in tries if _key(each) not in self.failed][:MOST_TRIES]

    def _predicted_only(self, measured: Sequence[ProfilePoint], chosen: Settings) -> Iterator[ProfilePoint]:
        """Yield what was predicted with the flags and threads of the choice, and not measured: the sweep as a map."""
        known = {(point.slot_size, point.num_workers) for point in measured if same_steps(point, chosen)}
        for rate, settings in self.candidates():
            if same_steps(settings, chosen) and (settings.slot_size, settings.num_workers) not in known:
                yield point_of(
                    settings,
                    outcome="predicted",
                    predicted_samples_per_s=rate,
                    reason="predicted only: not among the finalists",
                )

    def _turn(self, wanted: list[Settings], rounds: int = ROUNDS) -> None:
        predicted = [self.predictor.rate(each) for each in wanted]
        found = self.ledger.run(wanted, rounds=rounds, predicted=predicted, kind="turn" if rounds == ROUNDS else "run")
        for settings, rates in zip(wanted, found, strict=True):
            if isinstance(rates, Failed):
                self._fail(settings, rates)
                continue
            contender = self.contenders.setdefault(_key(settings), Contender(settings))
            contender.rates.update({self.rounds + number: rate for number, rate in enumerate(rates)})
        self.rounds += rounds

    def _is_worth(self, parts: int) -> bool:
        """Whether another turn fits into the budget, and into what the grid would take."""
        fitting = sum(self.parts.fits(each.slot_size, each.flags) for each in self.space.combinations())
        most_s = max(GRID_POINTS, GRID_SHARE * fitting) * self.ledger.usual_s("run", "turn")
        return self.ledger.allows("turn", parts=parts) and self.ledger.would_take("turn", parts) <= most_s

    def _last_resort(self) -> None:
        """Take what the joint run measured; without one, measure one configuration after the budget."""
        if self.joint is not None:
            self.contenders[_key(self.joint.settings)] = self.joint
        elif finalists := self._first_finalists():
            self._turn(finalists[:1], rounds=1)

    def _fail(self, settings: Settings, failed: Failed) -> None:
        if failed.is_cut_off:
            return
        self.failed[_key(settings)] = settings
        self.contenders.pop(_key(settings), None)
        if failed.outcome == "out of memory":
            self.parts.too_large(settings.slot_size, settings.flags)

    def _error(self, points: Sequence[ProfilePoint]) -> float | None:
        """Return the median error of predictions over what the predictor was not fitted to."""
        fitted = None if self.joint is None else self.joint.settings
        errors = [
            abs(point.predicted_samples_per_s / point.samples_per_s - 1)
            for point in points
            if point.predicted_samples_per_s and point.samples_per_s and point.settings() != fitted
        ]
        return median(errors) if errors else None


def _beats(contender: Contender, default: Contender, best: Contender) -> bool:
    """Whether a configuration is faster than the default, or cheaper and as fast within TOLERANCE.

    Windows side by side say so, else those that each shares with the leader.
    """
    if contender is default:
        return True
    direct, first, second = ratio(contender, default), ratio(contender, best), ratio(best, default)
    if direct is not None:
        gain = direct.middle
    else:
        gain = first.middle * second.middle if first and second else contender.rate / default.rate
    is_cheaper = expense(contender.settings) < expense(default.settings)
    return gain >= 1 - TOLERANCE if is_cheaper else gain > 1


def _key(settings: Settings) -> str:
    # Of a point as of the settings that it is of.
    return settings.settings().model_dump_json()
