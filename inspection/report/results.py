"""Section on the test split: metrics beside the baseline, confusion, each class or label, and the worst samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from contracts.artifacts import CheckpointManifest, EvaluationReport
from contracts.artifacts.classification import ClassificationDetails, ClassOutcome
from contracts.artifacts.evaluation import LOSS
from contracts.artifacts.multilabel import LabelOutcome, MultilabelDetails
from inspection.headline import binomial_interval, count_left_out
from inspection.pages.parts import Cell, Figure, Link, Part, Sheet, Table, Text, Tiles, grid, note, picture, section
from inspection.pages.quantities import count, percent, shorten
from inspection.pages.rendering import Html
from inspection.report.context import NO_VALUE, Context, omitted
from inspection.samples import file_uri
from inspection.task_metrics import is_share
from inspection.view import WorstSample, shows_samples

_SHADES = 5
# Maximum number of classes of a confusion matrix with a table beside it.
_MOST_BESIDE = 12


def results(context: Context) -> Html:
    """Return the section."""
    report, checkpoint = context.view.evaluation, context.view.checkpoint
    parts: list[Part | None] = []
    if report is None:
        parts.append(context.why_absent("results", "train", "The evaluation on the test split"))
    if checkpoint is not None or report is not None:
        parts += _metrics(context, report, checkpoint)
    if report is not None:
        if (classes := ClassificationDetails.of(report)) is not None:
            parts += _classification(context, report, classes)
        elif (labels := MultilabelDetails.of(report)) is not None:
            parts += _labels(context, report, labels)
        parts += _worst(context)
    return section("results", "Results", *parts)


def _metrics(
    context: Context, report: EvaluationReport | None, checkpoint: CheckpointManifest | None
) -> Iterator[Part | None]:
    """Yield each metric by split, with the baseline of the headline metric, and the step of the checkpoint."""
    values: dict[str, dict[str, float | None]] = {}
    for name, value in sorted((checkpoint.metrics if checkpoint is not None else {}).items()):
        split, _, metric = name.partition("_")
        is_known = split in ("validation", "test") and bool(metric)
        # The number of samples is in the note.
        if metric != "samples":
            values.setdefault(metric if is_known else name, {})[split if is_known else "other"] = value
    if report is not None:
        for name in (*report.metrics, LOSS):
            values.setdefault(name, {})["test"] = report.value(name)
        if report.baseline is not None:
            values.setdefault(report.headline.metric, {})["baseline"] = report.baseline.value
    first = report.headline.metric if report is not None else ""
    titles = {"validation": "Validation", "test": "Test", "baseline": "Baseline", "other": "Other"}
    columns = [split for split in titles if any(split in row for row in values.values())]
    rows: list[tuple[Cell, ...]] = [
        (
            Text(shorten(name, 60), "code"),
            *(
                Figure(f"metrics.{split}.{name}", values[name].get(split), _unit(context, name), NO_VALUE)
                for split in columns
            ),
        )
        for name in sorted(values, key=lambda name: (name != first, name))[: context.limits.rows]
    ]
    remarks = []
    if checkpoint is not None:
        account = context.view.goodput
        has_steps = account is not None and account.steps >= max(checkpoint.best_step, checkpoint.step)
        steps = f" of {count(account.steps)}" if account is not None and has_steps else ""
        weights = f", weights of the {checkpoint.evaluated}" if checkpoint.evaluated else ""
        ended = f"; training ended by {checkpoint.ended_by}" if checkpoint.ended_by else ""
        step = f"step {count(checkpoint.best_step)}{steps}, epoch {count(checkpoint.epoch)}"
        remarks.append(f"Best checkpoint: {step}{weights}{ended}.")
    if report is not None:
        remarks.append(f"Test split: {count(report.samples)} samples.")
        if (left_out := count_left_out(report)) > 0:
            remarks.append(f"Means over classes leave out {left_out:,} without a sample.")
        if report.baseline is not None:
            remarks.append(f"Baseline: {context.name(report.baseline.description)}.")
    head, remark = ("Metric", *(titles[each] for each in columns)), omitted(len(rows), len(values), "metrics")
    yield Table("metrics", "Metrics of the best checkpoint, by split", head, rows, note=remark)
    yield note(" ".join(remarks))


def _unit(context: Context, metric: str) -> str:
    return "exact_percent" if is_share(context.view.task, metric) else "metric_number"


def _classification(
    context: Context, report: EvaluationReport, details: ClassificationDetails
) -> Iterator[Part | None]:
    wrong = Figure("results.wrong", report.samples - details.right, "count")
    yield Text([wrong, f" of {count(report.samples)} samples are wrong."], "note")
    tables = [_confusion(context, details), _classes(context, details)]
    yield from [grid(tables)] if len(details.classes) <= _MOST_BESIDE else tables
    if left_out := details.confusion_left_out:
        yield note(f"{count(left_out)} samples in the smallest cells were omitted by the evaluation.")


def _confusion(context: Context, details: ClassificationDetails) -> Table:
    """Return the confusion matrix; with many classes, the most frequent confusions."""
    names = [context.name(outcome.name) for outcome in details.classes]
    if len(names) > context.limits.cells:
        wrong = sorted((cell for cell in details.confusion if cell[0] != cell[1]), key=lambda cell: -cell[2])
        shown = wrong[: context.limits.rows]
        name_of = dict(enumerate(names))
        pairs: list[tuple[Cell, ...]] = [
            (name_of.get(label, "?"), name_of.get(guess, "?"), Figure(f"confusion.{label}.{guess}", samples, "count"))
            for label, guess, samples in shown
        ]
        caption = f"Of {count(len(names))} classes the most frequent confusions"
        remark = omitted(len(shown), len(wrong), "pairs")
        return Table("confusion", caption, ("Label", "Predicted", "Samples"), pairs, 2, remark)
    cells = {(label, guess): samples for label, guess, samples in details.confusion}
    places = range(len(names))

    def cell(label: int, guess: int) -> Figure:
        return Figure(f"confusion.{label}.{guess}", cells.get((label, guess)), "count", "\u00b7")

    def kind(label: int, guess: int) -> str:
        samples, total = cells.get((label, guess), 0), details.classes[label].samples
        if not samples:
            return "empty"
        shade = f"h{round(min(samples / total if total else 0.0, 1.0) * (_SHADES - 1))}"
        return f"{shade} wrong" if label != guess else shade

    return Table(
        "confusion",
        "Samples by label (rows) and prediction (columns); shaded by the share of the row",
        ("label \u2193 predicted \u2192", *names),
        [[names[label], *(cell(label, guess) for guess in places)] for label in places],
        style="heat",
        classes=[[kind(label, guess) for guess in places] for label in places],
    )


def _classes(context: Context, details: ClassificationDetails) -> Table:
    def row(place: int, outcome: ClassOutcome) -> tuple[Cell, ...]:
        key, recall, interval = f"class.{place}", _share(outcome.right, outcome.samples), ""
        if recall is not None and 0 <= recall <= 1:
            low, high = binomial_interval(recall, outcome.samples)
            interval = f"({percent(low)} to {percent(high)})"
        return (
            context.name(outcome.name),
            Figure(f"{key}.samples", outcome.samples, "count"),
            Figure(f"{key}.recall", recall, "percent", "no sample", interval, bar=recall),
            Figure(f"{key}.precision", _share(outcome.right, outcome.predicted), "percent", "never predicted"),
            Figure(f"{key}.f1", _share(2 * outcome.right, outcome.samples + outcome.predicted), "percent", NO_VALUE),
        )

    ranks = [_share(outcome.right, outcome.samples) for outcome in details.classes]
    places, remark = _lowest(context, ranks, "classes", "recall")
    return Table(
        "class-outcomes",
        "Each class on the test split; in brackets: 95 % intervals (Wilson)",
        ("Class", "Samples", "Recall", "Precision", "F1"),
        [row(place, details.classes[place]) for place in places],
        note=remark,
    )


def _lowest(context: Context, ranks: Sequence[float | None], items: str, rank: str) -> tuple[list[int], str]:
    """Return the places to show, those with the lowest rank if there are many, and a remark on the others."""
    places, limit = list(range(len(ranks))), context.limits.rows
    if len(places) <= limit:
        return places, ""
    # Without samples there is no rank; these come last.
    places.sort(key=lambda place: (ranks[place] is None, ranks[place] or 0.0))
    return places[:limit], f"Of {len(places):,} {items} the {limit} with the lowest {rank} are shown."


def _share(part: int, total: int) -> float | None:
    return part / total if total else None


def _labels(context: Context, report: EvaluationReport, details: MultilabelDetails) -> Iterator[Part | None]:
    def row(place: int, outcome: LabelOutcome) -> tuple[Cell, ...]:
        key, average = f"label.{place}", outcome.average_precision
        return (
            context.name(outcome.name),
            Figure(f"{key}.positives", outcome.positives, "count"),
            Figure(f"{key}.average_precision", average, "percent", "no sample", bar=average),
            Figure(f"{key}.threshold", outcome.threshold, shown=f"{outcome.threshold:.3f}"),
            Figure(f"{key}.precision", outcome.precision, "percent", "never predicted"),
            Figure(f"{key}.recall", outcome.recall, "percent", "no sample"),
            Figure(f"{key}.f1", outcome.f1, "percent", NO_VALUE),
        )

    exact: Cell = Figure("results.exact", details.exact, "count")
    yield Tiles([("All labels right", exact, f"of {count(report.samples)} samples")])
    ranks = [outcome.average_precision for outcome in details.classes]
    places, remark = _lowest(context, ranks, "labels", "average precision")
    yield Table(
        "label-outcomes",
        "Each label on the test split, at its threshold from the validation split",
        ("Label", "Samples", "Average precision", "Threshold", "Precision", "Recall", "F1"),
        [row(place, details.classes[place]) for place in places],
        note=remark,
    )


def _worst(context: Context) -> Iterator[Part | None]:
    shown = context.view.worst[: context.limits.worst]
    if not shown:
        return
    has_text = any(sample.text is not None for sample in shown)
    yield Text("Worst samples", "title")
    yield Sheet("worst", [_sample(context, sample) for sample in shown], "worst texts" if has_text else "worst")
    if not shows_samples(context.view.config):
        yield note("Samples are hidden (inspect.samples).")
    by = "largest loss" if shown[0].loss is not None else "lowest probability of their label"
    yield note(f"Samples with the {by}. {omitted(len(shown), len(context.view.worst), 'samples')}")


def _sample(context: Context, sample: WorstSample) -> tuple[Html | str, list[Cell]]:
    content: Html | str = Html('<span class="missing picture">not shown</span>')
    if sample.picture is not None:
        size = sample.picture.width, sample.picture.height
        content = picture(sample.picture.jpeg, size, alt="sample", tooltip=sample.key, width=96)
    elif sample.text is not None:
        content = shorten(sample.text, 300) or "(empty)"
    lines: list[Cell] = []
    if sample.loss is not None and math.isfinite(sample.loss):
        lines.append(f"loss {sample.loss:.3g}")
    for label in sample.labels:
        probability = label.probability
        text = f" {percent(probability)}" if probability is not None and math.isfinite(probability) else ""
        lines.append(Text([Text(f"{label.what} ", "small"), Text(shorten(label.name, 40), label.kind), text]))
    if sample.file:
        uri = file_uri(context.view.config, sample.file)
        lines.append(context.link(uri, shorten(sample.file, 200)) if uri else Link(shorten(sample.file, 200)))
    return content, lines
