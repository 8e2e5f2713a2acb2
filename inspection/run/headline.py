"""The headline of a run: the figures that answer first, as numbers and as text.

Every page, list, terminal table, JSON document, Vertex AI metric and experiment row takes them from here, so that one
run reads the same wherever it is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal

from pydantic import Field

from contracts.artifacts import EvaluationReport, GoodputRecord, Headline, RunRecord
from contracts.artifacts.classification import ClassificationDetails
from contracts.artifacts.document import Document
from contracts.artifacts.multilabel import MultilabelDetails
from contracts.errors import DataError
from contracts.proof import verdict
from inspection.run.door import as_object, finite
from inspection.run.view import MoneyView, RunView, State
from inspection.tasks import is_proportion, show_metric
from pages.quantities import NBSP, percent, seconds, several, usd

STATE_NOTES: Mapping[State, str] = {
    "running": "it runs",
    "silent": "no record, and no event for ten minutes",
    "unknown": "no record, and no event for a day: it was cancelled or lost; ask its service: shardline status RUN",
    "unreadable": "its record cannot be read",
    "stopped": "its process is gone and left no record",
    "interrupted": "the same command continues",
    "failed": "it failed",
    "succeeded": "all stages are done",
}
# What to do with a run that has not gone through, and is not going on.
NEXT: Mapping[State, str] = {
    "failed": "The same command again reuses the stages that are done",
    "interrupted": "The same command again goes on where it stopped",
    "stopped": "The same command goes on where it stopped",
    "silent": "It may wait for machines: shardline status RUN asks its service",
    "unreadable": "Repair or delete its run.json: shardline report RUN names what is wrong with it",
    "unknown": "Starting it again begins another run, which has to be paid",
}
_STRATEGIES = {"SPOT": "spot", "STANDARD": "on-demand", "FLEX_START": "flex-start"}
# Metrics that are means over the classes that have a sample.
MEANS_OVER_CLASSES = ("f1_macro", "recall_macro", "average_precision")
# Of the standard normal distribution: two-sided 95 %.
_Z = 1.959963984540054
REUSED = "reused"
# States of the stage that a run is in, or ended in.
_AT = ("running", "failed", "interrupted", "stopped")

FigureName = Literal["state", "metric", "export", "duration", "goodput", "preemptions", "cost"]


class Figure(Document):
    """A figure of the headline as text."""

    name: FigureName
    title: str
    text: str
    """With its unit; empty: not known."""
    note: str = ""
    """What it is of, and how sure; empty: nothing to add."""


class RunHeadline(Document):
    """The headline of a run."""

    state: State
    metric: str = ""
    """The task's headline metric; empty: not known."""
    direction: Literal["", "max", "min"] = ""
    """Which values are better."""
    metric_value: float | None = None
    """On the test split."""
    metric_low: float | None = None
    """Lower end of the 95 % interval; None: the metric is no share of right samples."""
    metric_high: float | None = None
    samples: int | None = None
    """Of the test split."""
    classes_left_out: int = 0
    """Classes without a sample in the test split, which a mean over classes leaves out."""
    precision: str = ""
    """Of the export; empty: there is none."""
    verdict: str = ""
    """On the export, in words (contracts/proof.py), by its verification; empty: there is none."""
    cost_usd: float | None = None
    """Estimate for the training's machines; None: no price is known."""
    strategy: str = ""
    """How the machines were asked for: SPOT, STANDARD, FLEX_START, or several of them."""
    prices_as_of: str = ""
    """Date of the prices in words; empty: the configuration's own price, or none."""
    training_reused: bool = False
    """Whether an earlier run trained: cost, goodput and preemptions are that run's, and no sum may count them again."""
    goodput_percent: float | None = None
    preemptions: int | None = None
    wall_s: float | None = None
    """Of the whole run; so far, where it goes on."""
    figures: list[Figure] = Field(default=[])
    """All of it as text, in the order in which it is shown."""

    @property
    def is_proven(self) -> bool:
        """Whether the served file ran on a GPU and passed its gates."""
        return self.verdict.startswith("proven")

    def text(self, name: FigureName) -> str:
        """Return a figure as text; empty: not known."""
        return self.figure(name).text

    def figure(self, name: FigureName) -> Figure:
        """Return a figure as text, with its title and note."""
        return next(figure for figure in self.figures if figure.name == name)

    def numbers(self) -> dict[str, float | None]:
        """Return the numbers that no stage's document has, by the names of Vertex AI's metrics."""
        of_training = "train_reused_" if self.training_reused else "train_"
        return {
            f"train_test_{self.metric}_low": self.metric_low,
            f"train_test_{self.metric}_high": self.metric_high,
            f"{of_training}cost_usd": self.cost_usd,
        }


def headline(view: RunView) -> RunHeadline:
    """Return the headline of a run that was read."""
    evaluation, trained, exported = view.evaluation, view.checkpoint, view.export
    found: tuple[Headline, float | None] | None = None
    if evaluation is not None:
        found = evaluation.headline, evaluation.value(evaluation.headline.metric)
    elif trained is not None and trained.headline is not None:
        found = trained.headline, trained.headline.value(trained.metrics, "test")
    train = view.stage("train")
    return make_headline(
        state=view.state,
        stage=next((each.name for each in view.stages if each.state in _AT), ""),
        task=view.task,
        found=found,
        samples=evaluation.samples if evaluation is not None else None,
        left_out=count_left_out(evaluation) if evaluation is not None else 0,
        precision=exported.precision if exported is not None else "",
        asked_precision=exported.asked_precision if exported is not None else "",
        export_verdict=verdict(exported, view.verification) if exported is not None else "",
        goodput=view.goodput,
        money=view.money,
        reused=train is not None and train.state == "reused",
        wall_s=view.wall_s,
    )


def headline_of_record(record: RunRecord, *, money: MoneyView | None, export_verdict: str = "") -> RunHeadline:
    """Return the headline of a run that has ended, from its record alone.

    Args:
        record: The run's.
        money: What its training cost; None: no price is known.
        export_verdict: By its verification since; empty: that of the record.
    """
    exported = as_object(record.results.get("export"))
    samples, left_out = (record.results.get(name) for name in ("test_samples", "classes_left_out"))
    return make_headline(
        state=record.state,
        stage=next((each.name for each in record.stages if each.state in _AT), ""),
        task=task_of(record),
        found=record.find_headline(),
        samples=samples if isinstance(samples, int) and not isinstance(samples, bool) and samples > 0 else None,
        left_out=left_out if isinstance(left_out, int) else 0,
        precision=str(exported.get("precision", ""))[:20],
        asked_precision=str(exported.get("asked_precision", ""))[:20],
        export_verdict=export_verdict or str(exported.get("verdict", "")),
        goodput=record.goodput,
        money=money,
        reused=any(stage.name == "train" and stage.state == "reused" for stage in record.stages),
        wall_s=record.wall_s,
    )


def count_left_out(report: EvaluationReport) -> int:
    """Return how many classes have no sample in the split of an evaluation; 0 where its details have no classes."""
    with suppress(DataError):
        if (several_labels := MultilabelDetails.of(report)) is not None:
            return sum(not one.positives for one in several_labels.classes)
        if (classes := ClassificationDetails.of(report)) is not None:
            return sum(not one.samples for one in classes.classes)
    return 0


def task_of(record: RunRecord) -> str:
    """Return the name of a run's task."""
    return str(as_object(record.config.get("task")).get("name", ""))


def binomial_interval(share: float, samples: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of independent samples: Wilson's score interval.

    Source: Wilson, Probable inference, the law of succession, and statistical inference, 1927,
    https://doi.org/10.1080/01621459.1927.10502953.
    """
    spread = _Z * math.sqrt(share * (1 - share) / samples + _Z**2 / (4 * samples**2))
    middle, whole = share + _Z**2 / (2 * samples), 1 + _Z**2 / samples
    return max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole)


def make_headline(
    *,
    state: State,
    stage: str = "",
    task: str = "",
    found: tuple[Headline, float | None] | None = None,
    samples: int | None = None,
    left_out: int = 0,
    precision: str = "",
    asked_precision: str = "",
    export_verdict: str = "",
    goodput: GoodputRecord | None = None,
    money: MoneyView | None = None,
    reused: bool = False,
    wall_s: float | None = None,
) -> RunHeadline:
    """Return a headline from what is known of a run.

    Args:
        state: Of the run.
        stage: Name of the stage that it is in, or failed in; empty: not known.
        task: Name of its task.
        found: The task's headline metric, and its value on the test split.
        samples: Of the test split.
        left_out: Classes without a sample in it.
        precision: Of the export.
        asked_precision: What the configuration asked for.
        export_verdict: In words, or empty.
        goodput: Account of the training's time.
        money: What the training cost.
        reused: Whether an earlier run did the training.
        wall_s: Duration in seconds.
    """
    metric, value = (found[0].metric, finite(found[1])) if found is not None else ("", None)
    low, high = None, None
    if value is not None and samples and 0 <= value <= 1 and is_proportion(task, metric):
        low, high = binomial_interval(value, samples)
    numbers = RunHeadline(
        state=state,
        metric=metric[:200],
        direction=found[0].direction if found is not None else "",
        metric_value=value,
        metric_low=low,
        metric_high=high,
        samples=samples,
        classes_left_out=left_out if metric in MEANS_OVER_CLASSES else 0,
        precision=precision,
        verdict=export_verdict[:200],
        cost_usd=finite(money.cost_usd) if money is not None else None,
        strategy=money.strategy if money is not None else "",
        prices_as_of=money.as_of if money is not None else "",
        training_reused=reused,
        goodput_percent=finite(goodput.goodput_percent) if goodput is not None else None,
        preemptions=goodput.preemptions if goodput is not None else None,
        wall_s=finite(wall_s),
    )
    figures = _figures(numbers, stage, task, asked_precision, goodput)
    plain = [one.model_copy(update={"text": _plain(one.text), "note": _plain(one.note)}) for one in figures]
    return numbers.model_copy(update={"figures": plain})


def _figures(
    found: RunHeadline, stage: str, task: str, asked_precision: str, goodput: GoodputRecord | None
) -> list[Figure]:
    going_on = found.state in ("running", "silent")
    mark = f" ({REUSED})" if found.training_reused else ""
    of_goodput = ""
    if goodput is not None and math.isfinite(goodput.wall_s):
        of_goodput = f"of {seconds(goodput.wall_s)} of training in steps that count"
    refused = asked_precision and asked_precision != found.precision
    about_export = f"{asked_precision} was asked for, and refused by its gates" if refused else ""
    proof = ("proven" if found.is_proven else "unproven") if found.verdict else ""
    about_proof = found.verdict.partition(" ")[2]
    stands = STATE_NOTES[found.state]
    if stage and found.state in ("running", "failed"):
        stands = f"in stage {stage}"
    return [
        Figure(name="state", title="State", text=found.state, note=stands),
        Figure(
            name="metric",
            title=f"Test {metric_title(found.metric)}" if found.metric else "Test result",
            text=_shown(found.metric_value, show_metric(task, found.metric)),
            note=_metric_note(found, task),
        ),
        Figure(
            name="export",
            title="Export",
            text=", ".join(filter(None, (found.precision, proof))),
            note="; ".join(filter(None, (about_proof, about_export))),
        ),
        Figure(
            name="duration",
            title="Duration",
            text=_shown(found.wall_s, seconds),
            note="so far" if going_on else "the whole run",
        ),
        Figure(
            name="goodput",
            title="Goodput",
            text=_marked(_shown(found.goodput_percent, lambda value: percent(value / 100)), mark),
            note=of_goodput,
        ),
        Figure(
            name="preemptions",
            title="Preemptions",
            text=_marked(_shown(found.preemptions, lambda value: f"{value:,.0f}"), mark),
            note=f"{goodput.lost_steps:,} steps lost by stops of every kind" if goodput is not None else "",
        ),
        Figure(
            name="cost",
            title="Cost",
            text=_marked(_shown(found.cost_usd, usd), mark),
            note=_cost_note(found),
        ),
    ]


def metric_title(metric: str) -> str:
    """Return a metric's name in words."""
    return metric.replace("_", " ")[:40]


def _metric_note(found: RunHeadline, task: str) -> str:
    if found.metric_value is None:
        return ""
    parts = []
    if found.metric_low is not None and found.metric_high is not None:
        show = show_metric(task, found.metric)
        parts.append(f"95 % interval {show(found.metric_low)} to {show(found.metric_high)}")
    if found.samples:
        parts.append(f"{found.samples:,} samples")
    if found.classes_left_out:
        parts.append(f"{several(found.classes_left_out, 'class', 'classes')} without a sample left out")
    parts.append("higher is better" if found.direction == "max" else "lower is better")
    return "; ".join(parts)


def _cost_note(found: RunHeadline) -> str:
    if found.cost_usd is None:
        return ""
    strategies = " or ".join(_STRATEGIES.get(word, word) for word in found.strategy.split(" or ") if word)
    prices = f"; prices: {found.prices_as_of}" if found.prices_as_of else " at the configuration's price"
    whose = "of the run that trained, " if found.training_reused else ""
    return f"{whose}estimate for the training's {f'{strategies} ' if strategies else ''}machines{prices}"


def _plain(text: str) -> str:
    # JSON and terminals are searched for it; a page decides itself where it breaks.
    return text.replace(NBSP, " ")


def _marked(text: str, mark: str) -> str:
    return text + mark if text else ""


def _shown(value: float | None, show: Callable[[float], str]) -> str:
    return "" if value is None else show(value)
