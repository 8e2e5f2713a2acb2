"""The model of a run beside the one in production, both by their exports, on the same samples of the run's test split.

Here: `judge`. Nothing of it fails a run: where production cannot be judged the judgement says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from contracts import storage
from contracts.artifacts import ExportManifest, ShardManifest
from contracts.config import RunConfig
from contracts.errors import ShardlineError
from contracts.process import threads_per_rank
from trainer.export.bundle.bundles import bundle_of
from trainer.export.bundle.shipped import Answers, Shipped, ShippedFailed
from trainer.export.gates.samples import Places
from trainer.export.processes import run_step
from trainer.judge.by_task import compare_by_task
from trainer.judge.statistics import Difference, Values, compare, compare_classes
from trainer.predict.checked_folder import CheckedFolder

_MOST_CLASSES = 20
_MOST_NAMED = 5
# A class loses when chance makes such a loss of any class in fewer runs than this.
_SIGNIFICANCE = 0.05
_CLASS_METRICS = ("accuracy", "f1_macro", "recall_macro")

METRICS: dict[str, tuple[str, ...]] = {
    "image_classification": _CLASS_METRICS,
    "text_classification": _CLASS_METRICS,
}
"""Metrics that two models of a task of the tool can be compared by; the first one is the default."""


class NotJudged(Exception):
    """The two cannot be compared; the message says why."""


@dataclass(frozen=True)
class Trial:
    """What a run has made, and what it is judged on."""

    config: RunConfig
    export: str
    """Folder of its export."""
    shards_uri: str
    """Folder of its shards."""
    shards: ShardManifest


@dataclass(frozen=True)
class Limits:
    """Limits of a judgement."""

    metric: str = ""
    """Metric that is compared; empty: the first of METRICS, of an own task its headline."""
    least_gain: float = 0.0
    """Least improvement, in units of the metric; 0: none is needed."""
    largest_loss: float = 0.02
    """Largest loss at the worse end of the 95 % interval. Where a lower value is better both are shares of production's
    value."""
    class_floor: float = 0.1
    """Largest loss of recall of a single class that is let pass, if chance does not explain it."""
    least_samples: int = 20
    """Classes with fewer test samples are not judged by themselves; a test split with fewer is not judged at all."""


@dataclass(frozen=True)
class ClassChange:
    """Recall of one class in both models."""

    name: str
    samples: int
    champion: float
    """Recall, in [0, 1]."""
    challenger: float


@dataclass(frozen=True)
class Judgement:
    """The model of a run beside the one in production, on the run's test split."""

    verdict: Literal["promote", "keep", "not judged"]
    reasons: list[str]
    """Why, each with value and limit; at least one."""
    metric: str = ""
    """Name of the metric that was compared; empty: none was."""
    higher_is_better: bool = True
    samples: int = 0
    """Test samples that both have answered."""
    champion_value: float | None = None
    challenger_value: float | None = None
    interval: tuple[float, float] | None = None
    """95 % interval of challenger less champion, in units of the metric."""
    method: str = ""
    """Method of the interval, e.g. `paired bootstrap, 2,000 draws`."""
    classes: tuple[ClassChange, ...] = ()
    """Those that lose most, at most 20."""


def judge(trial: Trial, champion: str, limits: Limits) -> Judgement:
    """Compare a run's export with the model in production.

    Args:
        trial: The run's.
        champion: Folder of the export in production.
        limits: What a new model may lose.

    Raises:
        DataError: The run's own export or shards are damaged.
    """
    document = ExportManifest.load(trial.export)
    if champion == trial.export:
        return Judgement(verdict="keep", reasons=["its export is the one that is in production"])
    try:
        if trial.config.task.is_own:
            return _judge_by_task(trial, document, champion, limits)
        known = METRICS.get(document.task, ())
        if not known or limits.metric not in ("", *known):
            raise NotJudged(f"task {document.task} has no metric {limits.metric}".rstrip())
        pair = _ask_both(trial, document, champion)
        return _conclude(pair, limits, limits.metric or known[0])
    except NotJudged as error:
        return Judgement(verdict="not judged", reasons=[str(error)])


def _judge_by_task(trial: Trial, document: ExportManifest, champion: str, limits: Limits) -> Judgement:
    """Compare by the task's own code.

    Raises:
        NotJudged: Production's graph is damaged or takes other inputs, or the task's code fails.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardline-judge-")))
        with _as_not_judged(_unjudged(champion)):
            theirs = stack.enter_context(CheckedFolder(champion))
            _require_same(document, theirs.document)
            old = {entry.name: theirs.take(entry.name) for entry in theirs.document.shipped_files()}
        with _as_not_judged("the two cannot be compared"):
            graph = stack.enter_context(CheckedFolder(trial.export)).take(document.graph().name)
            pair = (old[theirs.document.graph().name], theirs.document.precision), (graph, document.precision)
            found, _ = run_step(compare_by_task, trial, *pair, document, limits.metric, folder, threads_per_rank(1))
    if found.samples < limits.least_samples:
        raise _too_few(found.samples, limits)
    against, words = _hold(found.difference, found.metric, limits, lower_is_better=found.lower_is_better)
    code = [theirs.document.made_from.get("code"), document.made_from.get("code")]
    more = ["samples were prepared for both by the code of the new run, which is not that of production"]
    return Judgement(
        verdict="keep" if against else "promote",
        reasons=(against or [words]) + (more if code[0] != code[1] else []),
        metric=found.metric,
        higher_is_better=not found.lower_is_better,
        samples=found.samples,
        champion_value=found.difference.champion,
        challenger_value=found.difference.challenger,
        interval=found.difference.interval,
        method=found.difference.method,
    )


def _require_same(document: ExportManifest, theirs: ExportManifest) -> None:
    if theirs.task != document.task:
        raise NotJudged(f"its task is {theirs.task}, and not {document.task}")
    if theirs.signature != document.signature:
        raise NotJudged("its inputs or outputs are not those of the new model")


def _unjudged(champion: str) -> str:
    return f"the model in production, {storage.display(champion)}, cannot be judged"


def _too_few(samples: int, limits: Limits) -> NotJudged:
    return NotJudged(f"{samples} test samples are fewer than least_samples {limits.least_samples}")


@dataclass(frozen=True)
class _Pair:
    """What both answered, of the samples that are compared."""

    truths: Values
    champion: Values
    challenger: Values
    classes: list[str]
    """Names of places."""
    left_out: str = ""
    """Which samples are not compared, and why."""


def _ask_both(trial: Trial, document: ExportManifest, champion: str) -> _Pair:
    """Ask production's model and the run's about the same samples.

    Raises:
        NotJudged: Production cannot be asked, or answers otherwise.
    """
    # The whole test split, of which the gates may have run a part: with fewer samples chance alone keeps models out.
    places: Places = None
    with tempfile.TemporaryDirectory(prefix="shardline-judge-") as name:
        with _as_not_judged(_unjudged(champion)):
            theirs, known = _ask(champion, trial, places, Path(name) / "champion", task=document.task)
        with _as_not_judged("the new model cannot be judged"):
            ours, _ = _ask(trial.export, trial, places, Path(name) / "challenger", task=document.task)
    return _pair_classes(ours, theirs, trial.shards.classes, known)


def _ask(uri: str, trial: Trial, places: Places, work: Path, *, task: str) -> tuple[Answers, list[str]]:
    """Return an export's answers, and the names of its classes.

    Raises:
        NotJudged, ShippedFailed, ShardlineError, OSError, ValueError, LookupError: It cannot be asked.
    """
    work.mkdir()
    with CheckedFolder(uri) as folder:
        document = folder.document
        if document.task != task:
            raise NotJudged(f"its task is {document.task}, and not {task}")
        # Every file: what is damaged elsewhere is no model to keep without a word.
        paths = {entry.name: folder.take(entry.name) for entry in document.shipped_files()}
        graph = document.graph().name
        root = paths[graph].parents[len(Path(graph).parts) - 1]
        shipped = Shipped(
            root,
            graph,
            trial.shards_uri,
            trial.shards,
            threads_per_rank(1),
            trial.config.data,
            places,
        )
        bundle = bundle_of(document.task)
        answers, _ = run_step(bundle.answer_split, shipped, document, work)
        return answers, bundle.read_labels(root) or []


@contextmanager
def _as_not_judged(what: str) -> Iterator[None]:
    try:
        yield
    except (NotJudged, ShippedFailed, ShardlineError, OSError, ValueError, LookupError, TypeError) as error:
        said = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise NotJudged(f"{what}: {said}") from None


def _pair_classes(ours: Answers, theirs: Answers, classes: list[str], known: list[str]) -> _Pair:
    """Return the places of classes; a sample that neither has answered, or whose class production lacks, is left out.

    Raises:
        NotJudged: None is left.
    """
    places = {name: place for place, name in enumerate(classes)}
    truths, champion, challenger = (
        np.array([-1 if one is None else places.get(one, -1) for one in values], np.int64)
        for values in (ours.truths, theirs.said, ours.said)
    )
    answered = np.array(
        [one is not None or other is not None for one, other in zip(ours.said, theirs.said, strict=True)]
    )
    lacking = sorted(set(classes) - set(known))
    is_common = ~np.isin(truths, [places[name] for name in lacking])
    compared = answered & is_common
    left_out = ""
    if lacking:
        left_out = f"{int((~is_common).sum())} samples of classes that production lacks ({_name(lacking)}) are left out"
    if not compared.any():
        raise NotJudged(left_out or "the test split has no samples")
    return _Pair(truths[compared], champion[compared], challenger[compared], classes, left_out)


def _conclude(pair: _Pair, limits: Limits, metric: str) -> Judgement:
    """Compare the answers, and hold them against the limits.

    Raises:
        NotJudged: There are too few.
    """
    samples = len(pair.truths)
    if samples < limits.least_samples:
        raise _too_few(samples, limits)
    found = compare(metric, pair.truths, pair.champion, pair.challenger)
    losses = compare_classes(pair.truths, pair.champion, pair.challenger)
    judged = [one for one in losses if one.samples >= limits.least_samples]
    changes = [
        ClassChange(name=pair.classes[one.place], samples=one.samples, champion=one.champion, challenger=one.challenger)
        for one in losses
    ]
    against, words = _hold(found, metric, limits, lower_is_better=False)
    for one in judged:
        loss = one.champion - one.challenger
        if loss > limits.class_floor and one.p * len(judged) < _SIGNIFICANCE:
            against.append(
                f"class {pair.classes[one.place]} loses {loss:.3f} of its recall ({one.champion:.3f} to "
                f"{one.challenger:.3f} on {one.samples} samples), more than class_floor {limits.class_floor:g}"
            )
    reasons = against[: _MOST_NAMED + 1] or [words]
    return Judgement(
        verdict="keep" if against else "promote",
        reasons=reasons + ([pair.left_out] if pair.left_out else []),
        metric=metric,
        higher_is_better=True,
        samples=samples,
        champion_value=found.champion,
        challenger_value=found.challenger,
        interval=found.interval,
        method=found.method,
        classes=tuple(changes[:_MOST_CLASSES]),
    )


def _hold(found: Difference, metric: str, limits: Limits, *, lower_is_better: bool) -> tuple[list[str], str]:
    """Return what speaks against the new model as a whole, and what it comes to."""
    low, high = found.interval
    # How much better it is, and that at the worse end: of errors as shares of production's value.
    scale = (abs(found.champion) or 1.0) if lower_is_better else 1.0
    gain = ((found.champion - found.challenger) if lower_is_better else (found.challenger - found.champion)) / scale
    worst = (-high if lower_is_better else low) / scale
    words = (
        f"{metric} {found.challenger:.4g} beside {found.champion:.4g} of production, difference "
        f"{found.challenger - found.champion:+.4g} (95 % interval {low:+.4g} to {high:+.4g})"
    )
    unit = " of production's value" if lower_is_better else ""
    against = []
    if not worst >= -limits.largest_loss:
        against.append(
            f"{words}: it may be worse by {-worst:.4g}{unit}, more than largest_loss {limits.largest_loss:g}"
        )
    if not gain >= limits.least_gain and limits.least_gain > 0:
        against.append(f"{words}: the gain is {gain:.4g}{unit}, less than least_gain {limits.least_gain:g}")
    return against, words


def _name(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    )
