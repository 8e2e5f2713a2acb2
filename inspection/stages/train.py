"""The summary of a training: what it learned, where its time went, and what preemptions have cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from contracts.artifacts import CheckpointManifest, EvaluationReport, GoodputRecord
from contracts.errors import DataError
from inspection.run.headline import RunHeadline
from inspection.run.view import MoneyView
from inspection.stages.told import Told, known
from inspection.tasks import find_pages, show_metric
from pages.markdown import Markdown, code, whole
from pages.quantities import count as show_count
from pages.quantities import percent, seconds, several, usd
from pages.rendering import write
from pages.stage import Block, First, Summary, first, listed

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
_OWN = {*_ACCOUNT, "steps", "best_step", "epochs", "skipped_steps", "spent_s", "cost_usd"}
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


def _summary(trained: CheckpointManifest, beside: Beside) -> Summary:
    found = beside.headline.figures if beside.headline is not None else ()
    # The run goes on while its training is reported.
    shown = ("metric", "goodput", "preemptions", "cost")
    figures = [(one.title, one.text, one.note) for one in found if one.text and one.name in shown]
    task = beside.evaluation.task if isinstance(beside.evaluation, EvaluationReport) else ""
    metrics = [(name.replace("_", " "), _show(task, name)(value)) for name, value in trained.metrics.items()]
    own = {
        "steps": trained.step,
        "epochs": trained.epoch,
        "best step": trained.best_step,
        "steps left out, gradients not finite": trained.skipped_steps,
    }
    rows = first(metrics)
    counts = [(name, show_count(number)) for name, number in own.items()]
    notes = [] if trained.initial is None else [whole(f"It started with {trained.initial.in_words()}.")]
    if trained.ended_by not in ("", "epochs"):
        holder = "resources" if trained.ended_by in ("max_hours", "max_cost_usd") else "train"
        notes.append(Markdown(f"Ended by {code(f'{holder}.{trained.ended_by}')}."))
    numerics = list({**trained.numerics, **trained.environment}.items())
    return Summary(
        [
            *([Block(head=("headline", "value", "note"), words=3, rows=first(figures))] if figures else []),
            Block(
                head=("figure", "value"),
                rows=First((*rows.rows, *counts), rows.total + len(counts)),
                notes=notes,
            ),
            *listed("Warnings", trained.warnings),
            *_account(beside.goodput, beside.money),
            *_of_task(beside.evaluation),
            *([Block("Computed in", head=("what", "value"), words=2, rows=first(numerics))] if numerics else []),
        ]
    )


def _show(task: str, name: str) -> Callable[[float], str]:
    return show_count if name.endswith("_samples") else show_metric(task, name)


def _account(found: GoodputRecord | str, money: MoneyView | None) -> list[Block]:
    """Return what stops have cost, and where time and money went."""
    stops, where = "Preemptions and restarts", "Where the time went"
    if isinstance(found, str):
        return [Block(stops, [found]), Block(where, [found])]
    ended = [
        several(found.preemptions, "preemption"),
        several(found.interruptions, "interruption") if found.interruptions else "",
        several(found.kills, "kill") if found.kills else "",
        several(found.crashes, "crash", "crashes"),
    ]
    then = [
        several(found.attempts, "attempt"),
        f"{several(found.starts, 'start')} of the ranks",
        f"{several(found.lost_steps, 'step')} done in vain",
        f"{seconds(found.between_attempts_s)} between attempts.",
    ]
    parts = [(name, getattr(found, field)) for name, field in _WHERE]
    whole_s = found.wall_s
    rows = [(name, seconds(spent_s), percent(spent_s / whole_s if whole_s else 0.0)) for name, spent_s in parts]
    priced = ["Money: no price is known for its machines."]
    if money is not None:
        priced = [f"Money: {usd(money.cost_usd)}, an estimate ({money.source})."]
        if money.on_demand_usd is not None:
            priced.append(f"The same hours on demand: {usd(money.on_demand_usd)}.")
    return [
        Block(stops, [f"{', '.join(filter(None, ended))}: {', '.join(then)}"]),
        Block(
            where,
            [f"{seconds(whole_s)} of training, {found.node_hours:.2f} machine hours."],
            ("what", "time", "share"),
            rows=first(rows),
            notes=priced,
        ),
    ]


def _of_task(found: EvaluationReport | str) -> list[Block]:
    """Return what the task shows, or why it shows nothing."""
    if isinstance(found, str):
        return [Block("Evaluation", [found])]
    pages = find_pages(found.task)
    try:
        return [] if pages is None else [Block(text=[pages.summary(found)])]
    except DataError as error:
        return [Block("Evaluation", [error.given])]
