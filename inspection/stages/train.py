"""The summary of a training: what it learned, where its time went, and what preemptions have cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from contracts.artifacts import CheckpointManifest, EvaluationReport, GoodputRecord
from contracts.errors import DataError
from inspection.run.headline import RunHeadline
from inspection.run.view import MoneyView
from inspection.stages.markdown import cell, first, section, table
from inspection.stages.told import Told, finite, several
from inspection.tasks import find_pages, show_metric
from pages.quantities import percent, seconds, usd_range

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
    trained: CheckpointManifest, goodput: GoodputRecord | str | None, found: RunHeadline | None
) -> dict[str, float]:
    """Return the metrics of a finished training, as far as they are known.

    A metric of the training that is called as one of these is `train_metric_NAME`: neither stands for the other. Of a
    training that an earlier run did, time, preemptions and cost are `train_reused_NAME`, so that no sum has them twice.
    """
    numbers: dict[str, float | None] = {
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
    metrics = {f"train_metric_{name}" if name in _OWN else f"train_{name}": v for name, v in trained.metrics.items()}
    return finite({**metrics, **numbers})


def tell(trained: CheckpointManifest, beside: Beside) -> Told:
    """Return what a finished training says."""
    numbers = count(trained, beside.goodput, beside.headline)
    return Told(numbers, lambda: _lines(trained, beside), {"parameters_sha256": trained.parameters_sha256})


def _lines(trained: CheckpointManifest, beside: Beside) -> list[str]:
    return [
        *_result(trained, beside),
        *section("Warnings", list(_warnings(trained))),
        *section("Preemptions and restarts", list(_disturbances(beside.goodput))),
        *section("Where the time went", list(_time(beside))),
        *_of_task(beside.evaluation),
        *section("Computed in", list(_numerics(trained))),
    ]


def _result(trained: CheckpointManifest, beside: Beside) -> Iterator[str]:
    if (found := beside.headline) is not None:
        told = [
            (cell(figure.title), cell(figure.text), cell(figure.note))
            for figure in found.figures
            # The run goes on while its training is reported.
            if figure.text and figure.name in ("metric", "goodput", "preemptions", "cost")
        ]
        yield from table(["headline", "value", "note"], told, words=3)
        yield ""
    task = beside.evaluation.task if isinstance(beside.evaluation, EvaluationReport) else ""
    shown, note = first(list(trained.metrics.items()))
    rows = [
        (cell(name.replace("_", " ")), f"{value:,.0f}" if name.endswith("_samples") else show_metric(task, name)(value))
        for name, value in shown
    ]
    rows += [
        ("steps", f"{trained.step:,}"),
        ("epochs", f"{trained.epoch:,}"),
        ("best step", f"{trained.best_step:,}"),
        ("steps left out, gradients not finite", f"{trained.skipped_steps:,}"),
    ]
    yield from table(["figure", "value"], rows)
    yield from note
    if trained.initial is not None:
        yield ""
        yield cell(f"It started with {trained.initial.in_words()}.")
    if trained.ended_by not in ("", "epochs"):
        yield ""
        holder = "resources" if trained.ended_by in ("max_hours", "max_cost_usd") else "train"
        yield f"Ended by `{holder}.{trained.ended_by}`."


def _warnings(trained: CheckpointManifest) -> Iterator[str]:
    shown, note = first(trained.warnings)
    yield from (f"- {cell(warning)}" for warning in shown)
    yield from note


def _disturbances(found: GoodputRecord | str) -> Iterator[str]:
    if isinstance(found, str):
        yield cell(found)
        return
    by_user = "".join(
        f"{several(number, name)}, "
        for number, name in ((found.interruptions, "interruption"), (found.kills, "kill"))
        if number
    )
    yield (
        f"{several(found.preemptions, 'preemption')}, {by_user}{several(found.crashes, 'crash', 'crashes')}: "
        f"{several(found.attempts, 'attempt')}, {several(found.starts, 'start')} of the ranks, "
        f"{several(found.lost_steps, 'step')} done in vain, {cell(seconds(found.between_attempts_s))} between attempts."
    )


def _time(beside: Beside) -> Iterator[str]:
    if isinstance(found := beside.goodput, str):
        yield cell(found)
        return
    yield f"{seconds(found.wall_s)} of training, {found.node_hours:.2f} machine hours."
    yield ""
    account = found.model_dump()
    whole = found.wall_s or math.inf
    rows = ((cell(name), seconds(account[key]), percent(account[key] / whole)) for name, key in _WHERE)
    yield from table(["what", "time", "share"], rows)
    yield ""
    if (money := beside.money) is None:
        yield "Money: no price is known for its machines."
        return
    yield f"Money: {usd_range(money.cost_low_usd, money.cost_high_usd)}, an estimate ({cell(money.source)})."
    if demand := usd_range(money.on_demand_low_usd, money.on_demand_high_usd):
        yield ""
        yield f"The same hours on demand: {demand}."


def _of_task(found: EvaluationReport | str) -> list[str]:
    if isinstance(found, str):
        return section("Evaluation", [cell(found)])
    pages = find_pages(found.task)
    try:
        return [] if pages is None else pages.summary(found)
    except DataError as error:
        return section("Evaluation", [cell(error.given)])


def _numerics(trained: CheckpointManifest) -> Iterator[str]:
    values = {**trained.numerics, **trained.environment}
    if values:
        shown, note = first(list(values.items()))
        yield from table(["what", "value"], ((cell(name), cell(value)) for name, value in shown), words=2)
        yield from note
