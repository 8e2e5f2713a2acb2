"""Section on the export: verdict, precisions tried, gates, metrics by precision, latency, engine, verification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from contracts.artifacts import EngineEntry, ExportManifest, Gate
from contracts.artifacts.export import Attempt
from contracts.proof import proven_on, verdict
from inspection.page.results import title, unit_of
from inspection.page.subject import NO_VALUE, Subject, left_out
from inspection.tasks import is_share, show_metric
from pages.markup import Html, shorten
from pages.parts import Cell, Chip, Figure, Inline, Pairs, Part, Table, Text, Tile, Tiles, Title, Words, absent, section
from pages.quantities import count, several

TITLE = "Export"


def export(subject: Subject) -> Html:
    """Return the section on the export."""
    document = subject.view.export
    if document is None:
        return section("export", TITLE, absent("export", subject.why_absent("export", "The export")))
    return section("export", TITLE, *_parts(subject, document))


def _parts(subject: Subject, document: ExportManifest) -> Iterator[Part]:
    yield _verdict(subject, document)
    yield _tiles(document)
    yield Title("What was tried")
    yield _tried(subject, document.tried)
    yield Title("Gates")
    yield _gates(subject, document)
    yield Title("Metrics by precision")
    yield _metrics(subject, document)
    yield Title("Latency")
    yield _latency(subject, document) if document.latency else absent("latency", "Not measured.")
    if document.engine is not None:
        yield Title("Engine")
        yield _engine(subject, document.engine)
    if decision := subject.view.registration:
        yield Title("Production")
        rows = [(shorten(str(name), 60), subject.name(str(value)) or NO_VALUE) for name, value in decision.items()]
        yield Pairs(rows[:12], "registration")


def _verdict(subject: Subject, document: ExportManifest) -> Text:
    verification = subject.view.verification
    state = "proven" if proven_on(document, verification) else "unproven"
    cells: list[Cell] = [
        Chip(state, subject.name(verdict(document, verification))),
        f" Served: {subject.name(document.served)}, runtime {document.runtime}.",
    ]
    if state == "unproven" and document.engine is not None:
        cells += [Words(" shardline verify", style="code"), f" on a GPU of {document.engine.target} runs it."]
    return Text(cells, "reason", data={"verdict": state})


def _tiles(document: ExportManifest) -> Tiles:
    metric, values = document.headline.metric, document.headline_values
    unit, states = unit_of(document.task, metric), Counter(gate.status for gate in document.gates)
    torch = "not measured" if (value := values.get("torch")) is None else show_metric(document.task, metric)(value)
    others = ", ".join(f"{states[status]} {status}" for status in ("failed", "not run") if states[status])
    passed = Inline([Figure("export.gates_passed", states["passed"], "count"), f" of {len(document.gates)}"])
    return Tiles(
        [
            Tile(
                "Model", Words(document.precision, name="export.precision"), f"{document.asked_precision} was asked for"
            ),
            Tile(
                title(metric),
                Figure(f"export.{metric}", values.get(document.precision), unit),
                f"torch {torch}; {count(document.proof_samples)} test samples",
            ),
            Tile("Gates passed", passed, others or "all of them"),
        ],
        "wide",
    )


def _tried(subject: Subject, attempts: list[Attempt]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for attempt in attempts[-subject.limits.rows :]:
        why: list[Cell] = [subject.reason(attempt.reason)] if attempt.reason else []
        if attempt.kept_fp32:
            names = ", ".join(subject.name(name) for name in attempt.kept_fp32[:20])
            why.append(Words(f"{several(len(attempt.kept_fp32), 'module')} kept in fp32: {names}", style="small"))
        rows.append((attempt.precision, Chip(attempt.outcome), tuple(why)))
    return Table("tried", "In the order in which they were tried", ("Precision", "Outcome", "Why"), rows, 3)


def _gates(subject: Subject, document: ExportManifest) -> Table:
    verification = subject.view.verification
    gates = [*document.gates, *(verification.gates if verification is not None else [])]
    # By the alphabet: failed, not run, passed.
    shown = sorted(gates, key=lambda gate: gate.status)[: subject.limits.rows * 2]
    head = ("Gate", "Status", "File", "Ran on", "Measured, and its limit", "Reason")
    rows, note = [_gate(subject, gate) for gate in shown], left_out(len(shown), len(gates), "gates")
    return Table("gates", "Conditions that the export must meet", head, rows, 6, note)


def _gate(subject: Subject, gate: Gate) -> tuple[Cell, ...]:
    measured: list[Cell] = []
    for name, value in list(gate.figures.items())[:24]:
        limit = f"limit {_figure(gate.limits[name])}" if name in gate.limits else ""
        measured.append(Words(subject.name(f"{name.replace('_', ' ')} {_figure(value)}"), limit))
    return (
        f"{subject.name(gate.name)} {shorten(gate.precision, 20)}",
        Chip(gate.status),
        Words(subject.name(gate.file), style="small"),
        (subject.name(gate.device or "CPU"), Words(subject.name(gate.ran), style="small")),
        tuple(measured) or NO_VALUE,
        subject.reason(gate.reason) or NO_VALUE,
    )


def _figure(value: float | int | str | bool | None) -> str:
    if isinstance(value, float):
        return f"{value:.1e}" if value and abs(value) < 1e-3 else f"{value:.7g}"
    return NO_VALUE if value is None else f"{value:,}" if isinstance(value, int) else value


def _metrics(subject: Subject, document: ExportManifest) -> Table:
    metric, values = document.headline.metric, document.headline_values
    reference, unit = values.get("torch"), unit_of(document.task, metric)
    is_percent = is_share(document.task, metric)
    scale = (100 if is_percent else 1) * (1 if document.headline.direction == "max" else -1)

    def row(name: str) -> tuple[Cell, ...]:
        # From torch; positive is worse.
        drop = None if reference is None or name == "torch" else scale * (reference - values[name])
        shown = "0" if not drop else f"{drop:+.2g}" if abs(drop) < 0.01 else f"{drop:+.2f}"
        key = f"{metric}.{subject.name(name)}"
        return (
            subject.name(name),
            Figure(key, values[name], unit),
            NO_VALUE if drop is None else Figure(f"{key}.drop", drop, missing=NO_VALUE, shown=shown),
        )

    return Table(
        "export-metrics",
        f"{title(metric)} on {count(document.proof_samples)} test samples",
        ("Precision", title(metric), f"Drop from torch{' (points)' if is_percent else ''}"),
        [row(name) for name in list(values)[: subject.limits.rows]],
    )


def _latency(subject: Subject, document: ExportManifest) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            subject.name(entry.ran),
            Figure(f"latency.{place}.batch", entry.batch, "count"),
            Figure(f"latency.{place}.median_ms", entry.median_ms, shown=f"{entry.median_ms:,.3f}"),
        )
        for place, entry in enumerate(document.latency[: subject.limits.rows])
    ]
    return Table("latency", "Time per batch", ("Ran on", "Batch", "Median (ms)"), rows)


def _engine(subject: Subject, engine: EngineEntry) -> Pairs:
    pairs: list[tuple[str, Cell]] = [
        ("Target", engine.target),
        ("Builder", subject.name(engine.builder)),
        ("Batch", f"up to {engine.max_batch}, tuned for {engine.opt_batch}"),
        ("Size", Figure("engine.bytes", engine.bytes, "size")),
    ]
    return Pairs(pairs, "engine")
