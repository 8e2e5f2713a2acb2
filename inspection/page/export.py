"""What ships, and why one may trust it: precisions tried, parity, metrics, gates, engines, latency, verifications."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from contracts.artifacts import ExportManifest, Gate, Latency, Parity
from contracts.artifacts.export import Attempt
from contracts.proof import find_unproven_targets
from inspection.page.results import title, unit_of
from inspection.page.subject import NO_VALUE, Subject, left_out
from inspection.run.headline import find_verdict
from inspection.tasks import is_share
from pages.markup import Html, shorten
from pages.rendering import render
from pages.run.absent import AbsentSection
from pages.run.export import (
    EngineRow,
    ExportSection,
    GateRow,
    Gates,
    Latencies,
    LatencyRow,
    MetricRow,
    ParityRow,
    Tried,
)

TITLE = "Export"
_ORDER = {"failed": 0, "not decidable": 1, "not run": 2, "passed": 3}


def export(subject: Subject) -> Html:
    """Return the section on the export."""
    found = subject.view.export
    if found is None:
        return render(AbsentSection("export", TITLE, subject.why_absent("export", "The export")))
    rows, metric, values = subject.limits.rows, found.headline.metric, found.headline_values
    unproven = find_unproven_targets(found, subject.view.verifications)
    engines = tuple(name for name in unproven if name in {entry.target for entry in found.engines})
    served = tuple(name for name in unproven if found.served is not None and name in found.served.lacks)
    whole = len(engines) + len(served) < len(unproven)
    states = Counter(gate.status for gate in found.gates)
    parity = [(ran, name, each) for ran, by_precision in found.parity.items() for name, each in by_precision.items()]
    return render(
        ExportSection(
            title=TITLE,
            verdict=find_verdict(found, subject.view.verifications),
            served="" if found.served is None else subject.name(found.served.in_words()),
            nothing_proves=(subject.name("; ".join(unproven)),) if whole else (),
            not_shown=served,
            engines_not_run=engines,
            precision=found.precision,
            asked_precision=found.asked_precision,
            metric=metric,
            metric_title=title(metric),
            unit=unit_of(found.task, metric),
            is_share=is_share(found.task, metric),
            shipped=values.get(found.precision),
            reference=values.get("torch"),
            samples=found.measured_samples,
            gates_passed=states["passed"],
            num_gates=len(found.gates),
            other_gates=tuple((number, status) for status, number in states.items() if status != "passed"),
            num_engines=len(found.engines),
            builders=tuple(sorted({shorten(entry.builder, 60) for entry in found.engines})),
            tried=tuple(_tried(subject, each, each is found.tried[-1]) for each in found.tried)[-rows:],
            parity=tuple(_parity(subject, *each) for each in parity[:rows]),
            parity_left_out=left_out(min(rows, len(parity)), len(parity), "rows"),
            metrics=tuple(_metric(subject, found, name) for name in list(values)[:rows]),
            gates=_gates(subject, found.gates, "gates", "What an export must meet, and what was found"),
            latency=_latency(subject, found.latency, "latency", "How long a batch takes"),
            not_measured=tuple(
                (subject.name(name), subject.name(why)) for name, why in list(found.latency_left_out.items())[:rows]
            ),
            engines=_engines(subject, found, unproven),
            engines_left_out=left_out(min(rows, len(found.engines)), len(found.engines), "engines"),
            verifications=_verifications(subject),
            registration=tuple(
                (shorten(str(name), 60), subject.name(_in_words(value)))
                for name, value in list((subject.view.registration or {}).items())[:12]
            ),
        )
    )


def _tried(subject: Subject, attempt: Attempt, is_last: bool) -> Tried:
    """Return what became of a precision: one that its gates refused stands out, with the reason."""
    word = "refused by its gates" if attempt.outcome == "failed" else "ships" if is_last else "kept"
    kept = tuple(subject.name(name) for name in attempt.kept_fp32[:20])
    return Tried(attempt.precision, attempt.outcome, word, subject.reason(attempt.reason), kept, len(attempt.kept_fp32))


def _parity(subject: Subject, ran: str, name: str, parity: Parity) -> ParityRow:
    return ParityRow(
        f"{ran}.{name}",
        f"{ran} {subject.name(name)}",
        "not run" if parity.passed is None else "passed" if parity.passed else "failed",
        subject.name(parity.ran),
        parity.relative_error,
        parity.min_cosine,
        parity.top1_agreement,
        parity.has_few_answers,
        parity.samples or None,
    )


def _metric(subject: Subject, found: ExportManifest, name: str) -> MetricRow:
    values, reference = found.headline_values, found.headline_values.get("torch")
    scale = 100 if is_share(found.task, found.headline.metric) else 1
    sign = 1 if found.headline.direction == "max" else -1
    coverage = list(found.coverage.get(name, {}).items())[:6]
    return MetricRow(
        subject.name(name),
        values[name],
        None if reference is None or name == "torch" else scale * sign * (reference - values[name]),
        tuple((shorten(kind, 40).replace("_", " "), share) for kind, share in coverage),
    )


def _gates(subject: Subject, gates: list[Gate], id_: str, caption: str) -> Gates:
    listed = sorted(gates, key=lambda gate: _ORDER[gate.status])
    shown = listed[: subject.limits.rows * 2]
    rows = tuple(_gate(subject, gate) for gate in shown)
    return Gates(id_, caption, rows, left_out(len(shown), len(listed), "gates"))


def _gate(subject: Subject, gate: Gate) -> GateRow:
    figures = list(gate.figures.items())[:24]
    words = {name: subject.name(f"{name.replace('_', ' ')} {_figure(value)}") for name, value in figures}
    limits = {name: limit for name, limit in gate.limits.items() if limit is not None}
    return GateRow(
        subject.name(gate.name),
        shorten(gate.precision, 20),
        gate.status,
        tuple((said, _figure(limits[name])) for name, said in words.items() if name in limits),
        tuple(said for name, said in words.items() if name not in limits),
        subject.name(gate.ran),
        subject.reason(gate.reason),
    )


def _figure(value: float | int | str | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1e}" if value and abs(value) < 1e-3 else f"{value:.7g}"
    return NO_VALUE if value is None else f"{value:,}" if isinstance(value, int) else value


def _latency(subject: Subject, found: list[Latency], id_: str, caption: str) -> Latencies | None:
    shown = found[: subject.limits.rows]
    rows = tuple(
        LatencyRow(
            subject.name(each.runner),
            each.precision,
            subject.name(each.device),
            each.batch,
            each.p50_ms,
            each.p90_ms,
            each.p99_ms,
            each.images_per_s,
        )
        for each in shown
    )
    return Latencies(id_, caption, rows, left_out(len(shown), len(found), "rows")) if rows else None


def _engines(subject: Subject, found: ExportManifest, unproven: Sequence[str]) -> tuple[EngineRow, ...]:
    whole = bool(set(unproven) - {entry.target for entry in found.engines})
    return tuple(
        EngineRow(
            entry.target,
            "unproven" if whole or entry.target in unproven else "proven",
            subject.name(", ".join(entry.gpus)),
            subject.name(entry.builder),
            entry.bytes,
            (entry.min_batch, entry.opt_batch, entry.max_batch),
            entry.build_s,
        )
        for entry in found.engines[: subject.limits.rows]
    )


def _verifications(subject: Subject) -> tuple[tuple[Gates, Latencies | None], ...]:
    found = []
    for place, each in enumerate(subject.view.verifications[:12]):
        where, key = f"{each.target} on {subject.name(each.device)}", f"verification-{place}"
        gates = _gates(subject, each.gates, key, f"Gates of {where}")
        found.append((gates, _latency(subject, each.latency, f"{key}-latency", f"Latency of {where}")))
    return tuple(found)


def _in_words(value: object) -> str:
    return ", ".join(str(each) for each in value) if isinstance(value, list) else str(value)
