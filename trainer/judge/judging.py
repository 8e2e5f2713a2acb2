"""The model of a run beside the one in production, both by their exports, on the same samples of the run's test split.

Here: `judge`. Nothing of it fails a run: where production cannot be judged the judgement says so, and production stays.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from contracts.artifacts import ExportManifest, ShardManifest
from contracts.artifacts.promotion import ClassChange, Judgement, ModelVersion, Verdict
from contracts.config import RunConfig
from contracts.config.promote import ERRORS, PromoteSection
from contracts.errors import ShardlineError
from contracts.process import threads_per_rank
from contracts.proof import find_unproven
from trainer.export.bundle.bundles import bundle_of
from trainer.export.bundle.shipped import Answers, Shipped, ShippedFailed
from trainer.export.gates.samples import Places, samples_of
from trainer.export.processes import run_step
from trainer.judge.by_task import compare_by_task
from trainer.judge.statistics import Difference, Values, compare, compare_classes
from trainer.predict.checked_folder import CheckedFolder

_MOST_CLASSES = 20
_MOST_NAMED = 5
# A class loses when chance makes such a loss of any class in fewer runs than this.
_SIGNIFICANCE = 0.05
_ENGINE = "engine"


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


def judge(trial: Trial, champion: ModelVersion | None) -> Judgement:
    """Compare a run's export with the model in production.

    Args:
        trial: The run's.
        champion: The model in production; None: there is none.

    Raises:
        DataError: The run's own export or shards are damaged.
    """
    promote, document = trial.config.promote, ExportManifest.load(trial.export)
    against = list(_refuse(trial.export, document, promote))
    if champion is None:
        why = against or ["no model is in production"]
        return Judgement(verdict="keep" if against else "promote", reasons=why)
    if against or champion.export == trial.export:
        return Judgement(
            verdict="keep",
            reasons=against or [f"its export is the one that is in production, of run {champion.run}"],
            champion=champion.run,
        )
    try:
        if trial.config.task.is_own:
            return _judge_by_task(trial, document, champion)
        pair = _ask_both(trial, document, champion)
        return _conclude(pair, promote, promote.metric_of(trial.config.task.name), champion.run)
    except NotJudged as error:
        return Judgement(verdict="not judged", reasons=[str(error)], champion=champion.run)


def _refuse(uri: str, document: ExportManifest, promote: PromoteSection) -> Iterator[str]:
    """Yield why an export is not promoted, whatever it answers."""
    if promote.require_proven and (unproven := find_unproven(uri, document)):
        yield f"it is unproven ({', '.join(unproven)}), and promote.require_proven is true"
    if promote.max_latency_ms is None:
        return
    measured = [one for one in document.latency if one.precision == document.precision and one.batch == 1]
    # What ships is the engine, where there is one.
    shipped = [one for one in measured if one.runner.startswith(_ENGINE)] or [
        one for one in measured if one.runner.startswith("onnxruntime")
    ]
    if not shipped:
        yield "the export's bench has no batch of 1 of what ships, and promote.max_latency_ms is set"
    elif (slowest := max(one.p50_ms for one in shipped)) > promote.max_latency_ms:
        yield f"a batch of 1 takes {slowest:.3g} ms, more than promote.max_latency_ms {promote.max_latency_ms:g}"


def _judge_by_task(trial: Trial, document: ExportManifest, champion: ModelVersion) -> Judgement:
    """Compare by the task's own code.

    Raises:
        NotJudged: Production's graph is damaged or takes other inputs, or the task's code fails.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardline-judge-")))
        with _as_not_judged(f"the model in production, of run {champion.run}, cannot be judged"):
            theirs = stack.enter_context(CheckedFolder(champion.export))
            _require_same(document, theirs.document)
            old = {entry.name: theirs.take(entry.name) for entry in theirs.document.shipped_files()}
        with _as_not_judged("the two cannot be compared"):
            graph = stack.enter_context(CheckedFolder(trial.export)).take(document.graph().name)
            pair = (old[theirs.document.graph().name], theirs.document.precision), (graph, document.precision)
            found, _ = run_step(compare_by_task, trial, *pair, document, folder, threads_per_rank(1))
    promote = trial.config.promote
    if found.samples < promote.least_samples:
        raise _too_few(found.samples, promote)
    against, words = _hold(found.difference, found.metric, promote, lower_is_better=found.lower_is_better)
    code = [theirs.document.made_from.get("code"), document.made_from.get("code")]
    more = ["samples were prepared for both by the code of the new run, which is not that of production"]
    return Judgement(
        verdict="keep" if against else "promote",
        reasons=(against or [words]) + (more if code[0] != code[1] else []),
        champion=champion.run,
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
    if theirs.model_signature != document.model_signature:
        raise NotJudged("its inputs or outputs are not those of the new model")


def _too_few(samples: int, promote: PromoteSection) -> NotJudged:
    return NotJudged(f"{samples} test samples are fewer than promote.least_samples {promote.least_samples}")


@dataclass(frozen=True)
class _Pair:
    """What both answered, of the samples that are compared."""

    truths: Values
    champion: Values
    challenger: Values
    classes: list[str]
    """Names of places; none: values."""
    left_out: str = ""
    """Which samples are not compared, and why."""


def _ask_both(trial: Trial, document: ExportManifest, champion: ModelVersion) -> _Pair:
    """Ask production's model and the run's about the same samples.

    Raises:
        NotJudged: Production cannot be asked, or answers otherwise.
    """
    places = samples_of(document, trial.shards_uri, trial.shards)
    with tempfile.TemporaryDirectory(prefix="shardline-judge-") as name:
        with _as_not_judged(f"the model in production, of run {champion.run}, cannot be judged"):
            theirs, known = _ask(champion.export, trial, places, Path(name) / "champion", task=document.task)
        with _as_not_judged("the new model cannot be judged"):
            ours, _ = _ask(trial.export, trial, places, Path(name) / "challenger", task=document.task)
    if known is None:
        if None in (*ours.said, *theirs.said):
            raise NotJudged("a row of the test split got no answer")
        truths, *said = (np.array(values, np.float64) for values in (ours.truths, theirs.said, ours.said))
        return _Pair(truths, said[0], said[1], [])
    return _pair_classes(ours, theirs, trial.shards.classes, known)


def _ask(uri: str, trial: Trial, places: Places, work: Path, *, task: str) -> tuple[Answers, list[str] | None]:
    """Return an export's answers, and the names of its classes; None: it gives values.

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
        return answers, bundle.read_labels(root)


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


def _conclude(pair: _Pair, promote: PromoteSection, metric: str, champion: str) -> Judgement:
    """Compare the answers, and obey the section.

    Raises:
        NotJudged: There are too few.
    """
    samples = len(pair.truths)
    if samples < promote.least_samples:
        raise _too_few(samples, promote)
    found = compare(metric, pair.truths, pair.champion, pair.challenger)
    losses = compare_classes(pair.truths, pair.champion, pair.challenger) if pair.classes else []
    judged = [one for one in losses if one.samples >= promote.least_samples]
    changes = [
        ClassChange(name=pair.classes[one.place], samples=one.samples, champion=one.champion, challenger=one.challenger)
        for one in losses
    ]
    against, words = _hold(found, metric, promote, lower_is_better=metric in ERRORS)
    for one in judged:
        loss = one.champion - one.challenger
        if loss > promote.class_floor and one.p * len(judged) < _SIGNIFICANCE:
            against.append(
                f"class {pair.classes[one.place]} loses {loss:.3f} of its recall ({one.champion:.3f} to "
                f"{one.challenger:.3f} on {one.samples} samples), more than promote.class_floor {promote.class_floor:g}"
            )
    verdict: Verdict = "keep" if against else "promote"
    reasons = against[: _MOST_NAMED + 1] or [words]
    return Judgement(
        verdict=verdict,
        reasons=reasons + ([pair.left_out] if pair.left_out else []),
        champion=champion,
        metric=metric,
        higher_is_better=metric not in ERRORS,
        samples=samples,
        champion_value=found.champion,
        challenger_value=found.challenger,
        interval=found.interval,
        method=found.method,
        classes=changes[:_MOST_CLASSES],
    )


def _hold(found: Difference, metric: str, promote: PromoteSection, *, lower_is_better: bool) -> tuple[list[str], str]:
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
    if not worst >= -promote.largest_loss:
        against.append(
            f"{words}: it may be worse by {-worst:.4g}{unit}, more than promote.largest_loss {promote.largest_loss:g}"
        )
    if not gain >= promote.least_gain and promote.least_gain > 0:
        against.append(f"{words}: the gain is {gain:.4g}{unit}, less than promote.least_gain {promote.least_gain:g}")
    return against, words


def _name(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    )
