"""What was measured, row by row, and the time that it took: everything that asks the probe goes through here.

A measurement that fails is a row with its reason, and the next one goes on. A measurement that would end after the
budget, by what its kind took before, is not begun; one that the budget ended is as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, TypeVar

from contracts.artifacts import (
    ComputePoint,
    LoaderPoint,
    MemoryModel,
    ProfileChoice,
    ProfilePoint,
    Recommendation,
    Settings,
)
from contracts.errors import ConfigError
from trainer.profiling.measure import ComputeTime, Failed, JointRate, LoaderRate, Probe, join
from trainer.profiling.pairs import choice_of, describe, point_of
from trainer.profiling.space import Space

Tell = Callable[[int, int, str], None]
Row = TypeVar("Row", LoaderPoint, ComputePoint)
# Windows of each finalist before they are compared: of two windows the interval spans a factor of two at 5 % noise, of
# three 12 % each way, which tells most finalists apart; what it does not is measured again.
ROUNDS = 3
# Failures that an error names: the first ones say what is wrong with all.
MOST_REASONS = 4


@dataclass(frozen=True)
class Result:
    """What a profiling run found."""

    choice: ProfileChoice
    points: list[ProfilePoint] = field(default_factory=list)
    """The fastest first, which is the cheapest by money too; then what failed, then what was predicted only."""
    loader: list[LoaderPoint] = field(default_factory=list)
    compute: list[ComputePoint] = field(default_factory=list)
    memory: list[MemoryModel] = field(default_factory=list)
    overlap: float | None = None
    predictor_error: float | None = None
    recommendations: list[Recommendation] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass
class _Joint:
    """What was measured of a configuration end to end."""

    settings: Settings
    predicted: float | None
    rate: JointRate | None = None
    failed: Failed | None = None


class Ledger:
    """Asks the probe, and keeps the rows.

    Args:
        space: Of what is measured: its slots a rank and its ranks.
        probe: What measures.
        budget_s: Seconds on the probe's clock, from now on.
        tell: Is told (measurements done, about how many there will be, what came out).
        price_usd_per_h: What all machines cost in an hour.
        start_s: Seconds of the budget that the start of the processes took.
        reserved_s: Seconds of the budget that are kept for what comes after the sweep: traces and the report.
    """

    def __init__(
        self,
        space: Space,
        probe: Probe,
        *,
        budget_s: float,
        tell: Tell = lambda done, total, text: None,
        price_usd_per_h: float | None = None,
        start_s: float = 0.0,
        reserved_s: float = 0.0,
    ) -> None:
        self.space, self.probe, self.budget_s, self.price_usd_per_h = space, probe, budget_s, price_usd_per_h
        self._tell = tell
        self._start, self._start_s, self._left_s = probe.now(), start_s, budget_s - start_s - reserved_s
        self._longest: dict[str, float] = {}
        self._refused = False
        self.expected = 0
        """About how many measurements there will be; only for who watches."""
        self.done = 0
        self.loader: list[LoaderPoint] = []
        self.compute: list[ComputePoint] = []
        self.reasons: list[str] = []
        """Of measurements that failed."""
        self._joint: dict[str, _Joint] = {}

    def spent_s(self) -> float:
        """Return the seconds since the start."""
        return self.probe.now() - self._start

    def over(self) -> bool:
        """Whether the budget kept something from being measured."""
        return self._refused

    def allows(self, kind: str, *, share: float = 1.0, parts: int = 1) -> bool:
        """Whether a measurement of this kind would end within a share of the budget, by what its kind took before."""
        spent = self.spent_s()
        usual = self._longest.get(kind)
        if usual is None:
            # What has not been measured yet takes as long as anything else did, round by round.
            usual = max(self._longest.values(), default=0.0) * (ROUNDS if kind == "turn" else 1)
        allowed = spent < share * self._left_s and spent + usual * parts <= share * self._left_s
        self._refused |= not allowed
        return allowed

    def usual_s(self, *kinds: str) -> float:
        """Return what a measurement of the first of these kinds that there has been took at most, in seconds."""
        return next((self._longest[kind] for kind in kinds if kind in self._longest), 0.0)

    def would_take(self, kind: str, parts: int) -> float:
        """Return the seconds from the start, after some more measurements of a kind."""
        return self.spent_s() + parts * self.usual_s(kind, "run")

    def load(self, settings: Settings) -> LoaderRate | None:
        """Measure the loader alone; None: it failed."""
        began = self.probe.now()
        found = self.probe.load(settings)
        what = f"loader alone, {settings.num_workers} workers"
        if isinstance(found, Failed):
            if not found.is_cut_off:
                self.loader.append(_row(LoaderPoint, settings, vars(found)))
            self._count("load", began, what, found)
            return None
        rate = median(found.windows)
        least, most, used = min(found.windows), max(found.windows), found.cpu_s_per_sample
        rates = {"samples_per_s": rate, "samples_per_s_min": least, "samples_per_s_max": most, "cpu_s_per_sample": used}
        self.loader.append(_row(LoaderPoint, settings, rates))
        self._count("load", began, what, rate)
        return found

    def steps(self, settings: Settings) -> ComputeTime | Failed:
        """Measure steps alone."""
        began = self.probe.now()
        found = self.probe.compute(settings)
        what = f"steps alone, slot size {settings.slot_size}, {settings.threads} threads, {settings.flags.in_words()}"
        if isinstance(found, Failed):
            if not found.is_cut_off:
                self.compute.append(_row(ComputePoint, settings, vars(found)))
            self._count("compute", began, what, found)
            return found
        rate = self.space.rate(settings.slot_size, found.step_s(settings.slots_per_rank))
        self.compute.append(_row(ComputePoint, settings, {"samples_per_s": rate, **vars(found)}))
        self._count("compute", began, what, rate)
        return found

    def run(
        self,
        settings: Sequence[Settings],
        *,
        rounds: int,
        predicted: Sequence[float | None] | None = None,
        kind: Literal["run", "turn"] = "run",
    ) -> list[list[float] | Failed]:
        """Measure configurations end to end, in turn; return samples per second of a rank, round by round.

        Args:
            settings: The configurations.
            rounds: Windows of each; fewer come back where the budget ends meanwhile.
            predicted: Their rates; None: what may not be chosen, beside what was, and no row of the report.
            kind: As what its time is remembered (`usual_s`): a turn has several windows of each.
        """
        began = self.probe.now()
        measured = self.probe.run(settings, rounds=rounds)
        if predicted is None:
            found = [each if isinstance(each, Failed) else list(each.windows) for each in measured]
        else:
            found = [self._keep(*each) for each in zip(settings, measured, predicted, strict=True)]
            if worked := sum(not isinstance(rates, Failed) for rates in found):
                self._took(kind, (self.probe.now() - began) / worked)
        for one, rates in zip(settings, found, strict=True):
            self._refused |= not isinstance(rates, Failed) and len(rates) < rounds
            self._count(None, began, describe(one), rates if isinstance(rates, Failed) else median(rates))
        return found

    def points(self) -> list[ProfilePoint]:
        """Return a row for every configuration that was measured end to end, the fastest first."""
        rows = [self._point(joint) for joint in self._joint.values()]
        return sorted(rows, key=lambda row: -(row.samples_per_s or 0.0))

    def anything_worked(self) -> bool:
        """Whether no measurement failed, or one did not: where all did, a larger budget changes nothing."""
        return not self.reasons or self.done > len(self.reasons)

    def defaults(self, measured: int) -> tuple[ProfileChoice, str]:
        """Return the choice where the budget ended before configurations were compared, and the warning.

        Args:
            measured: Configurations that were measured end to end.
        """
        budget = f"profile.budget_s {self.budget_s:g}"
        started = f", after {self._start_s:.0f} s for the start of the processes" if self._start_s >= 1 else ""
        said = {0: "none was", 1: "one was"}.get(measured, f"{measured} were")
        choice = choice_of(
            self.space.default,
            reason=f"the defaults: {budget} ended before they were compared with another configuration",
            clear=False,
        ).model_copy(update={"measured": False})
        return choice, (
            f"{budget} is too short to compare configurations ({said} measured{started}): training has its "
            "defaults, as without a profile; to do: raise profile.budget_s, or set profile: off, which "
            "measures nothing"
        )

    def nothing_measured(self) -> ConfigError:
        """Return what to raise where no configuration came through end to end."""
        reasons = list(dict.fromkeys(self.reasons))
        shown = "; ".join(reasons[:MOST_REASONS])
        more = f"; and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
        spent = f"{self.spent_s():.0f} s of profile.budget_s {self.budget_s:g}"
        if not reasons:
            return ConfigError(
                f"no configuration was measured in {spent}",
                allowed="a budget that one configuration can be measured in",
                todo="raise profile.budget_s",
            )
        return ConfigError(
            f"no configuration could be measured ({len(reasons)} failures in {spent}): {shown}{more}",
            allowed="at least one configuration that trains on this machine",
            todo="correct what the reasons name; for more memory give profile.slot_sizes smaller sizes"
            ", for more time raise profile.budget_s",
        )

    def _point(self, joint: _Joint) -> ProfilePoint:
        if joint.rate is None:
            failed = joint.failed or Failed("failed", "no window was measured")
            return point_of(joint.settings, predicted_samples_per_s=joint.predicted, **vars(failed))
        windows = joint.rate.windows
        rate = median(windows)
        usd = None
        if self.price_usd_per_h is not None:
            usd = self.price_usd_per_h / 3600 / (rate * self.space.ranks) * 1e6
        return point_of(
            joint.settings,
            predicted_samples_per_s=joint.predicted,
            samples_per_s=rate,
            samples_per_s_min=min(windows),
            samples_per_s_max=max(windows),
            windows=len(windows),
            data_time_fraction=min(1.0, max(0.0, joint.rate.data_time_fraction)),
            units_per_s={unit: rate * mean for unit, mean in joint.rate.units_per_sample.items()},
            usd_per_million_samples=usd,
        )

    def _keep(self, settings: Settings, found: JointRate | Failed, predicted: float | None) -> list[float] | Failed:
        """Add to the row of a configuration; the prediction is that before its first measurement."""
        if isinstance(found, Failed) and found.is_cut_off:
            return found
        joint = self._joint.setdefault(settings.model_dump_json(), _Joint(settings, predicted))
        if not isinstance(found, Failed) and not (found.windows and min(found.windows) > 0):
            found = Failed("failed", "there was a window without a sample")
        if isinstance(found, Failed):
            joint.failed = found
            return found
        joint.rate = found if joint.rate is None else join([joint.rate, found])
        return list(found.windows)

    def data_time_fraction(self, settings: Settings) -> float:
        """Return the share of a step that a measured configuration waited for its loader."""
        rate = self._joint[settings.model_dump_json()].rate
        return 0.0 if rate is None else rate.data_time_fraction

    def _took(self, kind: str, seconds: float) -> None:
        self._longest[kind] = max(seconds, self._longest.get(kind, 0.0))

    def _count(self, kind: str | None, began: float, what: str, found: float | Failed) -> None:
        if isinstance(found, Failed) and found.is_cut_off:
            # As if it had not been begun: it neither worked nor failed.
            self._refused = True
            self._tell(self.done, max(self.done, self.expected), f"{what}: given up: {found.reason}")
            return
        self.done += 1
        if isinstance(found, Failed):
            # What fails ends early, or late: it says nothing of how long the others take.
            said = f"{what}: {found.outcome}: {found.reason}"
            self.reasons.append(said)
        else:
            said = f"{what}: {found:.0f} samples/s"
            if kind is not None:
                self._took(kind, self.probe.now() - began)
        self._tell(self.done, max(self.done, self.expected), said)


def _row(kind: type[Row], settings: Settings, found: Mapping[str, object]) -> Row:
    """Return the row of a part: those of the settings that it depends on, and what was measured, or why nothing was."""
    of = {name: getattr(settings, name) for name in kind.model_fields if name in Settings.model_fields}
    return kind.model_validate({**of, **found})
