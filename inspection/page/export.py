"""What ships, and why one may trust it: precisions tried, parity, metrics, gates, engines, latency, verifications."""

from __future__ import annotations

from collections import Counter

from contracts.artifacts import ExportManifest, Gate, Latency, Parity
from contracts.proof import find_unproven_targets
from inspection.page.results import title
from inspection.page.subject import NO_VALUE, Subject, left_out, tile
from inspection.run.headline import find_verdict
from inspection.tasks import is_share, show_metric
from pages.markup import Html, element, figure, join, section, shorten, table
from pages.quantities import count, exact_percent, number, percent, seconds, several, size
from pages.state import chip

TITLE = "Export"


def export(subject: Subject) -> Html:
    """Return the section on the export."""
    found = subject.view.export
    if found is None:
        return section("export", TITLE, subject.absent("export", "export", "The export"))
    return section(
        "export",
        TITLE,
        _verdict(subject, found),
        _tiles(found),
        _tried(subject, found),
        element("h3", "Parity and metrics by precision"),
        _parity(subject, found),
        _metrics(subject, found),
        element("h3", "Gates"),
        _gates(subject, found.gates, "gates", "What an export must meet, and what was found"),
        _latency(subject, found),
        _engines(subject, found),
        _verifications(subject),
        _registration(subject),
    )


def _verdict(subject: Subject, found: ExportManifest) -> Html:
    unproven = find_unproven_targets(found, subject.view.verifications)
    engines = [name for name in unproven if name in {entry.target for entry in found.engines}]
    served = [name for name in unproven if found.served is not None and name in found.served.lacks]
    words: list[str] = []
    if found.served is not None:
        words.append(f"Serves {subject.name(found.served.in_words())}. ")
    if not unproven:
        words.append("All of it ran and passed its gates.")
    elif len(engines) + len(served) < len(unproven):
        words.append(f"Nothing proves it: {subject.name('; '.join(unproven))}.")
    if served:
        words.append(f"Not shown of what is served: {', '.join(served)}. ")
    if engines:
        command = element("code", "shardline verify")
        words.append(f"No GPU has run these engines yet: {', '.join(engines)}. What ran is named in the tables below. ")
        words += [command, " on a GPU of each runs it."]
    verdict = find_verdict(found, subject.view.verifications)
    return element("p", chip(verdict), " ", *words, class_="reason", data_verdict=verdict)


def _tiles(found: ExportManifest) -> Html:
    states = Counter(gate.status for gate in found.gates)
    passed = ", ".join(f"{number_of} {status}" for status, number_of in states.items() if status != "passed")
    values, name = found.headline_values, found.headline.metric
    show = show_metric(found.task, name)
    shipped, reference = values.get(found.precision), values.get("torch")
    drop = f"torch {show(reference)}" if reference is not None else "torch not measured"
    asked = "as asked for" if found.precision == found.asked_precision else f"{found.asked_precision} was asked for"
    tiles = [
        tile("Ships", element("span", found.precision, data_text="export.precision"), asked),
        tile(
            title(name),
            figure(f"export.{name}", shipped, show),
            f"{drop}; {found.measured_samples:,} test samples",
        ),
        tile(
            "Gates passed",
            join([figure("export.gates_passed", states["passed"], count), f" of {len(found.gates)}"]),
            passed or "all of them",
        ),
        tile("Engines", figure("export.engines", len(found.engines), count), _builders(found)),
    ]
    return element("div", *tiles, class_="tiles wide")


def _builders(found: ExportManifest) -> str:
    return ", ".join(sorted({shorten(entry.builder, 60) for entry in found.engines})) or "none: Triton builds"


def _tried(subject: Subject, found: ExportManifest) -> Html:
    """Return what became of each precision: one that its gates refused stands out, with the reason."""
    items = []
    for place, attempt in enumerate(found.tried):
        refused = attempt.outcome == "failed"
        word = "refused by its gates" if refused else "ships" if place + 1 == len(found.tried) else "kept"
        parts: list[str] = [element("h4", chip(attempt.outcome, word), attempt.precision)]
        if attempt.reason:
            parts.append(element("p", subject.reason(attempt.reason)))
        if attempt.kept_fp32:
            kept = ", ".join(attempt.kept_fp32[:20])
            parts.append(
                element(
                    "p", f"{several(len(attempt.kept_fp32), 'node')} kept in fp32: {subject.name(kept)}", class_="note"
                )
            )
        items.append(element("li", *parts, class_="bad" if refused else "good", data_tried=attempt.precision))
    if not items:
        return Html("")
    items = items[-subject.limits.rows :]
    return join([element("h3", "What was tried"), element("ol", *items, class_="tried", id="tried")])


def _parity(subject: Subject, found: ExportManifest) -> Html:
    entries = [
        (ran, name, parity) for ran, by_precision in found.parity.items() for name, parity in by_precision.items()
    ]
    shown = entries[: subject.limits.rows]
    rows = [_parity_row(subject, ran, name, parity) for ran, name, parity in shown]
    head = [
        "Graph or engine",
        "Outcome",
        "What ran it",
        "Relative error",
        "Cosine, smallest",
        "Top-1 agreement",
        "Samples",
    ]
    note = "Against torch on the same inputs: the largest difference over the range of the outputs. "
    return table(
        "How far exported graphs are from torch",
        head,
        rows,
        id_="parity",
        words=3,
        note=note + left_out(len(shown), len(entries), "rows"),
    )


def _parity_row(subject: Subject, ran: str, name: str, parity: Parity) -> list[str]:
    key = f"parity.{ran}.{name}"
    state = "not run" if parity.passed is None else "passed" if parity.passed else "failed"
    note = "too few answers to say" if parity.has_few_answers else ""
    agreed = figure(f"{key}.top1", parity.top1_agreement, exact_percent, NO_VALUE, note=note)
    return [
        f"{ran} {subject.name(name)}",
        chip(state),
        element("small", subject.name(parity.ran)),
        figure(f"{key}.relative_error", parity.relative_error, lambda v: f"{v:.1e}", NO_VALUE),
        figure(f"{key}.min_cosine", parity.min_cosine, lambda v: f"{v:.7f}", NO_VALUE),
        agreed,
        figure(f"{key}.samples", parity.samples or None, count, NO_VALUE),
    ]


def _metrics(subject: Subject, found: ExportManifest) -> Html:
    metric, values = found.headline.metric, found.headline_values
    scale, sign = (100 if is_share(found.task, metric) else 1), (1 if found.headline.direction == "max" else -1)
    reference = values.get("torch")
    rows = []
    for name, value in list(values.items())[: subject.limits.rows]:
        drop = scale * sign * (reference - value) if reference is not None else None
        coverage = ", ".join(
            f"{shorten(kind, 40).replace('_', ' ')} {percent(share)}"
            for kind, share in list(found.coverage.get(name, {}).items())[:6]
        )
        rows.append(
            [
                subject.name(name),
                figure(f"{metric}.{name}", value, show_metric(found.task, metric)),
                figure(f"{metric}.{name}.drop", drop, _drop, NO_VALUE) if name != "torch" else NO_VALUE,
                coverage or NO_VALUE,
            ]
        )
    unit = " (points)" if is_share(found.task, metric) else ""
    head = ["Precision", title(metric), f"Drop from torch{unit}", "Of the graph in it"]
    return table(f"{title(metric)} on {found.measured_samples:,} test samples", head, rows, id_="export-metrics")


def _drop(value: float) -> str:
    return f"{value:+.2g}" if abs(value) < 0.01 and value else f"{value:+.2f}" if value else "0"


def _gates(subject: Subject, gates: list[Gate], id_: str, caption: str) -> Html:
    order = {"failed": 0, "not decidable": 1, "not run": 2, "passed": 3}
    listed = sorted(gates, key=lambda gate: order[gate.status])
    shown = listed[: subject.limits.rows * 2]
    rows = [_gate_row(subject, gate) for gate in shown]
    head = ["Gate", "Status", "Measured, and its limit", "What ran it, and why"]
    return table(caption, head, rows, id_=id_, words=4, note=left_out(len(shown), len(listed), "gates"))


def _gate_row(subject: Subject, gate: Gate) -> list[str]:
    lines, rest = [], []
    for name, value in list(gate.figures.items())[:24]:
        words = subject.name(f"{name.replace('_', ' ')} {_figure(value)}")
        if (limit := gate.limits.get(name)) is not None:
            lines.append(element("span", words, element("small", f" limit {_figure(limit)}"), class_="block-line"))
        else:
            rest.append(words)
    if rest:
        lines.append(element("small", ", ".join(rest), class_="block-line"))
    return [
        f"{subject.name(gate.name)} {shorten(gate.precision, 20)}",
        chip(gate.status),
        join(lines) if lines else NO_VALUE,
        join(
            [
                element("small", subject.name(gate.ran), class_="block-line"),
                element("span", subject.reason(gate.reason), class_="block-line"),
            ]
        ),
    ]


def _figure(value: float | int | str | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1e}" if value and abs(value) < 1e-3 else f"{value:.7g}"
    return NO_VALUE if value is None else f"{value:,}" if isinstance(value, int) else value


def _latency(subject: Subject, found: ExportManifest) -> Html:
    parts: list[Html] = [element("h3", "Latency")]
    if found.latency:
        parts.append(latency_table(subject, found.latency, "latency", "How long a batch takes"))
    else:
        parts.append(
            element(
                "p",
                "Not measured: ",
                element("code", "export.bench"),
                " was not set, or no runner was there.",
                class_="missing block",
                data_absent="latency",
            )
        )
    if found.latency_left_out:
        items = [
            element("li", element("strong", subject.name(name)), f": {subject.name(why)}")
            for name, why in list(found.latency_left_out.items())[: subject.limits.rows]
        ]
        parts.append(element("p", "Not measured, and why:", class_="note"))
        parts.append(element("ul", *items, id="latency-left-out"))
    return join(parts)


def latency_table(subject: Subject, found: list[Latency], id_: str, caption: str) -> Html:
    """Return the rows of a bench."""
    shown = found[: subject.limits.rows]
    rows = [
        [
            subject.name(each.runner),
            each.precision,
            subject.name(each.device),
            figure(f"{id_}.{place}.batch", each.batch, count),
            figure(f"{id_}.{place}.p50_ms", each.p50_ms, _ms),
            figure(f"{id_}.{place}.p90_ms", each.p90_ms, _ms),
            figure(f"{id_}.{place}.p99_ms", each.p99_ms, _ms),
            figure(f"{id_}.{place}.images_per_s", each.images_per_s, number),
        ]
        for place, each in enumerate(shown)
    ]
    head = ["Runner", "Precision", "Device", "Batch", "p50 (ms)", "p90 (ms)", "p99 (ms)", "Samples/s"]
    return table(caption, head, rows, id_=id_, words=3, note=left_out(len(shown), len(found), "rows"))


def _ms(value: float | None) -> str:
    if value is None:
        return NO_VALUE
    return f"{value:,.3f}" if value < 10 else f"{value:,.1f}"


def _engines(subject: Subject, found: ExportManifest) -> Html:
    if not found.engines:
        return Html("")
    unproven = set(find_unproven_targets(found, subject.view.verifications))
    whole = bool(unproven - {entry.target for entry in found.engines})
    shown = found.engines[: subject.limits.rows]
    rows = [
        [
            entry.target,
            chip("unproven" if whole or entry.target in unproven else "proven"),
            element("small", subject.name(", ".join(entry.gpus) or NO_VALUE)),
            element("small", subject.name(entry.builder)),
            figure(f"engines.{entry.target}.bytes", entry.bytes, size),
            f"{entry.min_batch} / {entry.opt_batch} / {entry.max_batch}",
            figure(f"engines.{entry.target}.build_s", entry.build_s, seconds),
        ]
        for entry in shown
    ]
    head = ["Target", "Proof", "GPUs", "Builder", "Size", "Batch min / opt / max", "Build"]
    note = left_out(len(shown), len(found.engines), "engines")
    return join(
        [
            element("h3", "Engines"),
            table(
                f"Engines of {found.precision}, one a compute capability", head, rows, id_="engines", words=4, note=note
            ),
        ]
    )


def _verifications(subject: Subject) -> Html:
    parts = []
    for place, each in enumerate(subject.view.verifications[:12]):
        title = f"{each.target} on {subject.name(each.device)}"
        parts.append(_gates(subject, each.gates, f"verification-{place}", f"Gates of {title}"))
        if each.latency:
            parts.append(latency_table(subject, each.latency, f"verification-{place}-latency", f"Latency of {title}"))
    return join([element("h3", "Verified on GPUs since"), *parts]) if parts else Html("")


def _registration(subject: Subject) -> Html:
    found = subject.view.registration
    if not found:
        return Html("")
    pairs = [
        join([element("dt", shorten(str(name), 60)), element("dd", subject.name(_said(value)) or NO_VALUE)])
        for name, value in list(found.items())[:12]
    ]
    return join([element("h3", "Model registry"), element("dl", *pairs, id="registration")])


def _said(value: object) -> str:
    return ", ".join(str(each) for each in value) if isinstance(value, list) else str(value)
