"""The summary of a training: what it learned, where its time went, and what preemptions have cost."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.artifacts import CheckpointManifest, EvaluationReport, GoodputRecord
from contracts.errors import DataError
from inspection.run.headline import RunHeadline
from inspection.run.view import MoneyView
from inspection.stages.told import Told, known
from inspection.tasks import find_pages, is_share
from pages.markdown import Markdown
from pages.quantities import usd_range
from pages.rendering import write
from pages.stage import first
from pages.stage.train import Metric, Money, TrainSummary

# Of the goodput record: what a comparison of runs is about.
_ACCOUNT = (
    "goodput_percent",
    "wall_s",
    "productive_s",
    "start_up_s",
    "data_wait_s",
    "checkpoint_s",
    "evaluation_s",
    "lost_s",
    "recovery_s",
    "attempts",
    "starts",
    "preemptions",
    "interruptions",
    "kills",
    "crashes",
    "lost_steps",
    "node_hours",
)
# What `count` adds to what the training itself has measured.
_OWN = {*_ACCOUNT, "steps", "best_step", "epochs", "skipped_steps", "spent_s", "cost_low_usd", "cost_high_usd"}
_WHERE = (
    ("productive steps", "productive_s"),
    ("start-up", "start_up_s"),
    ("waiting for data", "data_wait_s"),
    ("checkpoints", "checkpoint_s"),
    ("evaluation", "evaluation_s"),
    ("done in vain", "lost_s"),
    ("recovery", "recovery_s"),
    ("stopping", "stop_s"),
)


@dataclass(frozen=True)
class Beside:
    """What is known of a training beside its checkpoint."""

    evaluation: EvaluationReport | str
    """Or why there is none."""
    goodput: GoodputRecord | str
    """Or why there is none."""
    money: MoneyView | None = None
    """What its machines cost; None: no price is known."""
    headline: RunHeadline | None = None
    """Of the run; None: the run cannot be read."""


def count(
    trained: CheckpointManifest | None, goodput: GoodputRecord | str | None, found: RunHeadline | None
) -> dict[str, float]:
    """Return the metrics of a training, as far as they are known; one that has not finished has cost something too.

    A metric of the training that is called as one of these is `train_metric_NAME`: neither stands for the other. Of a
    training that an earlier run did, time, preemptions and cost are `train_reused_NAME`, so that no sum has them twice.
    """
    numbers: dict[str, float | None] = {}
    if trained is not None:
        numbers |= {
            "train_steps": trained.step,
            "train_best_step": trained.best_step,
            "train_epochs": trained.epoch,
            "train_skipped_steps": trained.skipped_steps,
            "train_spent_s": trained.spent_s,
        }
    if isinstance(goodput, GoodputRecord):
        account = goodput.model_dump()
        of_training = "train_reused_" if found is not None and found.training_reused else "train_"
        numbers |= {f"{of_training}{name}": account[name] for name in _ACCOUNT}
    if found is not None:
        numbers |= found.numbers()
    measured = trained.metrics if trained is not None else {}
    metrics = {f"train_metric_{name}" if name in _OWN else f"train_{name}": v for name, v in measured.items()}
    return known({**metrics, **numbers})


def tell(trained: CheckpointManifest, beside: Beside) -> Told:
    """Return what a finished training says."""
    numbers = count(trained, beside.goodput, beside.headline)
    return Told(numbers, lambda: write(_summary(trained, beside)), {"parameters_sha256": trained.parameters_sha256})


def _summary(trained: CheckpointManifest, beside: Beside) -> TrainSummary:
    evaluation, goodput, money = beside.evaluation, beside.goodput, beside.money
    task = evaluation.task if isinstance(evaluation, EvaluationReport) else ""
    ended_by = "" if trained.ended_by == "epochs" else trained.ended_by
    holder = "resources" if ended_by in ("max_hours", "max_cost_usd") else "train"
    shown, why = _of_task(evaluation)
    return TrainSummary(
        headline=tuple(
            (figure.title, figure.text, figure.note)
            for figure in (beside.headline.figures if beside.headline is not None else ())
            # The run goes on while its training is reported.
            if figure.text and figure.name in ("metric", "goodput", "preemptions", "cost")
        ),
        metrics=first([_metric(task, name, value) for name, value in trained.metrics.items()]),
        steps=trained.step,
        epochs=trained.epoch,
        best_step=trained.best_step,
        skipped_steps=trained.skipped_steps,
        started_with="" if trained.initial is None else trained.initial.in_words(),
        ended_by=f"{holder}.{ended_by}" if ended_by else "",
        warnings=first(trained.warnings),
        account=goodput if isinstance(goodput, GoodputRecord) else None,
        parts=() if isinstance(goodput, str) else tuple((name, getattr(goodput, field)) for name, field in _WHERE),
        no_account=goodput if isinstance(goodput, str) else "",
        money=None
        if money is None
        else Money(
            usd_range(money.cost_low_usd, money.cost_high_usd),
            money.source,
            usd_range(money.on_demand_low_usd, money.on_demand_high_usd),
        ),
        task=shown,
        no_evaluation=why,
        numerics=first(list({**trained.numerics, **trained.environment}.items())),
    )


def _metric(task: str, name: str, value: float) -> Metric:
    unit = "count" if name.endswith("_samples") else "exact_percent" if is_share(task, name) else "metric_number"
    return Metric(name.replace("_", " "), value, unit)


def _of_task(found: EvaluationReport | str) -> tuple[Markdown, str]:
    """Return what the task shows, and why it shows nothing."""
    if isinstance(found, str):
        return Markdown(), found
    pages = find_pages(found.task)
    try:
        return (Markdown(), "") if pages is None else (pages.summary(found), "")
    except DataError as error:
        return Markdown(), error.given
