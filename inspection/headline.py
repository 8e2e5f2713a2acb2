"""Headline of a run: its first figures, as numbers and as text.

Used by page, list, terminal, JSON, Vertex AI metrics and experiment rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Literal

from pydantic import Field

from contracts.artifacts import EvaluationReport, GoodputRecord, Headline, RunRecord
from contracts.artifacts.classification import ClassificationDetails
from contracts.artifacts.document import Document
from contracts.artifacts.multilabel import MultilabelDetails
from contracts.errors import DataError
from contracts.proof import verdict
from inspection.documents import as_number, as_object
from inspection.pages.quantities import NBSP, percent, seconds, several, shorten, usd
from inspection.task_metrics import is_proportion, show_metric
from inspection.view import Money, RunView, State

STATE_NOTES: Mapping[State, str] = {
    "running": "in progress",
    "silent": "no record, and no event for ten minutes",
    "unknown": "no record, and no event for a day: cancelled or lost; check with: shardline status RUN",
    "unreadable": "its record cannot be read",
    "stopped": "its process ended without a record",
    "interrupted": "the same command continues",
    "failed": "a stage or task failed",
    "succeeded": "all stages are done",
}
NEXT: Mapping[State, str] = {
    "failed": "The same command again reuses the stages that are done",
    "interrupted": "The same command resumes it",
    "stopped": "The same command resumes it",
    "silent": "It may wait for machines: check with shardline status RUN",
    "unreadable": "Repair or delete its run.json: shardline report RUN shows the error",
    "unknown": "The same command starts another run, at additional cost",
}
"""Next action for a run that has ended without success, or may have."""
DECISIONS: Mapping[str, str] = {"production": "in production", "refused": "not considered"}
"""Verdicts on production (components/gate.py) in words, where these differ."""
_STRATEGIES = {"SPOT": "spot", "STANDARD": "on-demand", "FLEX_START": "flex-start"}
_MEANS_OVER_CLASSES = ("f1_macro", "recall_macro", "average_precision")
# Two-sided 95 % of the standard normal distribution.
_Z = 1.959963984540054
# States of a run's current or last stage.
_AT = ("running", "failed", "interrupted", "stopped")

FigureName = Literal["state", "metric", "export", "duration", "goodput", "preemptions", "cost"]


class Figure(Document):
    """A figure of the headline as text."""

    name: FigureName
    title: str
    value: float | None = None
    """None: unknown, or not a number."""
    text: str
    """With its unit; empty if unknown."""
    note: str = ""
    """Meaning and certainty; empty: nothing to add."""


class RunHeadline(Document):
    """Headline of a run."""

    state: State
    metric: str = ""
    """The task's headline metric; empty if unknown."""
    direction: Literal["", "max", "min"] = ""
    """Which values are better."""
    metric_value: float | None = None
    """On the test split."""
    metric_low: float | None = None
    """Lower end of the 95 % interval; None: the metric is not a share of correct samples."""
    metric_high: float | None = None
    samples: int | None = None
    """Of the test split."""
    classes_left_out: int = 0
    """Classes without a sample in the test split, excluded from means over classes."""
    baseline: str = ""
    """The metric of a model that ignores its input, as text; empty if unknown."""
    precision: str = ""
    """Of the export; empty without an export."""
    verdict: str = ""
    """On the export (contracts/proof.py), with its verification; empty without an export."""
    cost_usd: float | None = None
    """Estimate for the training's machines; None: no price is known."""
    training_reused: bool = False
    """Whether an earlier run trained: cost, goodput and preemptions are that run's, and must not be added again."""
    goodput_percent: float | None = None
    preemptions: int | None = None
    wall_s: float | None = None
    """Of the whole run, so far if it is in progress."""
    figures: list[Figure] = Field(default=[])
    """All figures as text, in display order."""

    @property
    def is_proven(self) -> bool:
        """Whether the served file ran on a GPU and passed its gates."""
        return self.verdict.startswith("proven")

    def text(self, name: FigureName) -> str:
        """Return a figure as text; empty if unknown."""
        return self.figure(name).text

    def figure(self, name: FigureName) -> Figure:
        """Return a figure with its title and note."""
        return next(figure for figure in self.figures if figure.name == name)

    def numbers(self) -> dict[str, float | None]:
        """Return the numbers that are in no stage's document, by the names of Vertex AI's metrics."""
        prefix = "train_reused_" if self.training_reused else "train_"
        return {
            f"train_test_{self.metric}_low": self.metric_low,
            f"train_test_{self.metric}_high": self.metric_high,
            f"{prefix}cost_usd": self.cost_usd,
        }


def headline(view: RunView) -> RunHeadline:
    """Return the headline of a run that was read."""
    evaluation, trained, exported = view.evaluation, view.checkpoint, view.export
    result: tuple[Headline, float | None] | None = None
    if evaluation is not None:
        result = evaluation.headline, evaluation.value(evaluation.headline.metric)
    elif trained is not None and trained.headline is not None:
        result = trained.headline, trained.headline.value(trained.metrics, "test")
    train = view.stage("train")
    return make_headline(
        state=view.state,
        stage=next((stage.name for stage in view.stages if stage.state in _AT), ""),
        task=view.task,
        result=result,
        samples=evaluation.samples if evaluation is not None else None,
        left_out=count_left_out(evaluation) if evaluation is not None else 0,
        baseline=describe_baseline(evaluation) if evaluation is not None else "",
        precision=exported.precision if exported is not None else "",
        asked_precision=exported.asked_precision if exported is not None else "",
        export_verdict=verdict(exported, view.verification) if exported is not None else "",
        goodput=view.goodput,
        money=view.money,
        reused=train is not None and train.state == "reused",
        wall_s=view.wall_s,
    )


def headline_of_record(record: RunRecord, *, money: Money | None, export_verdict: str = "") -> RunHeadline:
    """Return the headline of a run that has ended, from its record alone.

    Args:
        record: The run's.
        money: Cost of its training.
        export_verdict: By a later verification; empty: that of the record.
    """
    exported = as_object(record.results.get("export"))
    samples, left_out = (as_number(record.results.get(name)) for name in ("test_samples", "classes_left_out"))
    return make_headline(
        state=record.state,
        stage=next((stage.name for stage in record.stages if stage.state in _AT), ""),
        task=str(as_object(record.config.get("task")).get("name", "")),
        result=record.find_headline(),
        samples=int(samples) if samples is not None and samples > 0 else None,
        left_out=int(left_out or 0),
        baseline=str(record.results.get("baseline") or "")[:200],
        precision=str(exported.get("precision", ""))[:20],
        asked_precision=str(exported.get("asked_precision", ""))[:20],
        export_verdict=export_verdict or str(exported.get("verdict", "")),
        goodput=record.goodput,
        money=money,
        reused=any(stage.name == "train" and stage.state == "reused" for stage in record.stages),
        wall_s=record.wall_s,
    )


def count_left_out(report: EvaluationReport) -> int:
    """Return the number of classes without a sample in the split; 0 where the details have no classes."""
    with suppress(DataError):
        if (several_labels := MultilabelDetails.of(report)) is not None:
            return sum(not outcome.positives for outcome in several_labels.classes)
        if (classes := ClassificationDetails.of(report)) is not None:
            return sum(not outcome.samples for outcome in classes.classes)
    return 0


def describe_baseline(report: EvaluationReport) -> str:
    """Return the headline metric of a model that ignores its input, as text; empty if unknown."""
    if report.baseline is None or not math.isfinite(report.baseline.value):
        return ""
    value = show_metric(report.task, report.headline.metric)(report.baseline.value).replace(NBSP, " ")
    return f"baseline {value} ({shorten(report.baseline.description, 80)})"


def binomial_interval(share: float, samples: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of independent samples: Wilson's score interval.

    Source: Wilson, Probable inference, the law of succession, and statistical inference, 1927,
    https://doi.org/10.1080/01621459.1927.10502953.
    """
    spread = _Z * math.sqrt(share * (1 - share) / samples + _Z**2 / (4 * samples**2))
    middle, whole = share + _Z**2 / (2 * samples), 1 + _Z**2 / samples
    return max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole)


def metric_title(metric: str) -> str:
    """Return a metric's name as text."""
    return metric.replace("_", " ")[:40]


def make_headline(
    *,
    state: State,
    stage: str = "",
    task: str = "",
    result: tuple[Headline, float | None] | None = None,
    samples: int | None = None,
    left_out: int = 0,
    baseline: str = "",
    precision: str = "",
    asked_precision: str = "",
    export_verdict: str = "",
    goodput: GoodputRecord | None = None,
    money: Money | None = None,
    reused: bool = False,
    wall_s: float | None = None,
) -> RunHeadline:
    """Return a headline.

    Args are those of RunHeadline, and:
        stage: Current or failed stage; empty if unknown.
        result: The task's headline metric, and its value on the test split.
        left_out: Classes without a sample in the test split.
        reused: Whether an earlier run did the training.
    """
    metric, value = (result[0].metric, as_number(result[1])) if result is not None else ("", None)
    low, high = None, None
    if value is not None and samples and 0 <= value <= 1 and is_proportion(task, metric):
        low, high = binomial_interval(value, samples)
    numbers = RunHeadline(
        state=state,
        metric=metric[:200],
        direction=result[0].direction if result is not None else "",
        metric_value=value,
        metric_low=low,
        metric_high=high,
        samples=samples,
        classes_left_out=left_out if metric in _MEANS_OVER_CLASSES else 0,
        baseline=baseline,
        precision=precision,
        verdict=export_verdict[:200],
        cost_usd=as_number(money.cost_usd) if money is not None else None,
        training_reused=reused,
        goodput_percent=as_number(goodput.goodput_percent) if goodput is not None else None,
        preemptions=goodput.preemptions if goodput is not None else None,
        wall_s=as_number(wall_s),
    )
    values: dict[FigureName, float | None] = {
        "metric": numbers.metric_value,
        "duration": numbers.wall_s,
        "goodput": numbers.goodput_percent,
        "preemptions": numbers.preemptions,
        "cost": numbers.cost_usd,
    }
    figures = [
        # Plain spaces, since JSON and terminals are searched.
        Figure(
            name=name, title=title, value=values.get(name), text=text.replace(NBSP, " "), note=note.replace(NBSP, " ")
        )
        for name, title, text, note in _texts(numbers, stage, task, asked_precision, goodput, money)
    ]
    return numbers.model_copy(update={"figures": figures})


def _texts(
    numbers: RunHeadline,
    stage: str,
    task: str,
    asked_precision: str,
    goodput: GoodputRecord | None,
    money: Money | None,
) -> Iterator[tuple[FigureName, str, str, str]]:
    """Yield name, title, text and note of each figure."""

    def shown(value: float | None, show: Callable[[float], str], *, of_training: bool = False) -> str:
        mark = " (reused)" if of_training and numbers.training_reused else ""
        return "" if value is None else show(value) + mark

    at_stage = stage and numbers.state in ("running", "failed")
    yield "state", "State", numbers.state, f"in stage {stage}" if at_stage else STATE_NOTES[numbers.state]
    show = show_metric(task, numbers.metric)
    title = f"Test {metric_title(numbers.metric)}" if numbers.metric else "Test result"
    yield "metric", title, shown(numbers.metric_value, show), _metric_note(numbers, show)
    proof = ("proven" if numbers.is_proven else "unproven") if numbers.verdict else ""
    refused = asked_precision and asked_precision != numbers.precision
    notes = (numbers.verdict.partition(" ")[2], f"{asked_precision} was requested, and failed its gates")
    yield "export", "Export", _joined(", ", numbers.precision, proof), _joined("; ", *notes[: 2 if refused else 1])
    in_progress = numbers.state in ("running", "silent")
    yield "duration", "Duration", shown(numbers.wall_s, seconds), "so far" if in_progress else "the whole run"
    share = shown(numbers.goodput_percent, lambda value: percent(value / 100), of_training=True)
    repeated = note = ""
    if goodput is not None:
        note = f"of {seconds(goodput.wall_s)} of training in steps that count" if as_number(goodput.wall_s) else ""
        repeated = f"{several(goodput.lost_steps, 'step')} repeated after interruptions"
    yield "goodput", "Goodput", share, note
    count = shown(numbers.preemptions, lambda value: f"{value:,.0f}", of_training=True)
    yield "preemptions", "Preemptions", count, repeated
    note = ""
    if money is not None and numbers.cost_usd is not None:
        # Prices without a date are from the configuration.
        strategy = f"{_STRATEGIES.get(money.strategy, money.strategy)} " if money.strategy else ""
        origin = "of the run that trained, " if numbers.training_reused else ""
        prices = f"; prices: {money.as_of}" if money.as_of else " at the configuration's price"
        note = f"{origin}estimate for the training's {strategy}machines{prices}"
    yield "cost", "Cost", shown(numbers.cost_usd, usd, of_training=True), note


def _metric_note(numbers: RunHeadline, show: Callable[[float], str]) -> str:
    if numbers.metric_value is None:
        return ""
    interval = samples = left_out = ""
    if numbers.metric_low is not None and numbers.metric_high is not None:
        interval = f"95 % interval {show(numbers.metric_low)} to {show(numbers.metric_high)}"
    if numbers.samples:
        samples = several(numbers.samples, "sample")
    if numbers.classes_left_out:
        left_out = f"{several(numbers.classes_left_out, 'class', 'classes')} without a sample left out"
    better = "higher is better" if numbers.direction == "max" else "lower is better"
    return _joined("; ", numbers.baseline, interval, samples, left_out, better)


def _joined(separator: str, *texts: str) -> str:
    return separator.join(text for text in texts if text)
