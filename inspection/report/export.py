"""Section on the export: verdict, precisions, gates, metric by precision, latency, and the hashes of all documents."""

from __future__ import annotations

from collections.abc import Iterator

from contracts.artifacts import CheckpointManifest, Contract, ExportManifest, Gate
from contracts.proof import proven_on, verdict
from inspection.pages.parts import Cell, Chip, Figure, Notice, Part, Table, Text, Tiles, note, pairs, section
from inspection.pages.quantities import count, several, shorten
from inspection.pages.rendering import Html
from inspection.report.context import NO_VALUE, Context, first, omitted
from inspection.task_metrics import is_share


def export(context: Context) -> Html:
    """Return the section."""
    document = context.view.export
    parts: list[Part | None] = []
    if document is None:
        parts.append(context.why_absent("export", "export", "The export"))
    else:
        parts += _parts(context, document)
    if decision := context.view.registration:
        rows: list[tuple[str, Cell]] = [
            (shorten(str(name), 60), context.message(str(value)) or NO_VALUE) for name, value in decision.items()
        ]
        limit = context.limits.rows
        parts += [Text("Production", "title"), pairs("registration", "Decision on production", rows[:limit])]
        parts.append(note(omitted(limit, len(rows), "entries")))
    parts += _hashes(context)
    return section("export", "Export", *parts)


def _parts(context: Context, document: ExportManifest) -> Iterator[Part | None]:
    verification = context.view.verification
    state = "proven" if proven_on(document, verification) else "unproven"
    yield Text(
        [
            Chip(state, context.name(verdict(document, verification))),
            f". Served: {context.name(document.served)}, runtime {document.runtime}.",
        ],
    )
    if (engine := document.engine) is not None:
        batch = f"batches up to {engine.max_batch}, tuned for {engine.opt_batch}"
        size: Cell = Figure("engine.bytes", engine.bytes, "size")
        yield Tiles([("Engine", size, f"for {engine.target}, by {context.name(engine.builder)}; {batch}")])
    yield Text("Precisions", "title")
    yield _precisions(context, document)
    yield Text("Gates", "title")
    yield _gates(context, document)
    if document.latency:
        yield Text("Latency", "title")
        yield _latency(context, document)
    else:
        yield note("Latency was not measured.")


def _precisions(context: Context, document: ExportManifest) -> Table:
    """Return the headline metric by precision, and the outcome of each precision that was tried."""
    metric, values = document.headline.metric, document.headline_values
    reference, is_percent = values.get("torch"), is_share(document.task, metric)
    scale = (100 if is_percent else 1) * (1 if document.headline.direction == "max" else -1)
    unit = "exact_percent" if is_percent else "metric_number"
    tried = {attempt.precision: attempt for attempt in document.tried}

    def row(name: str) -> tuple[Cell, ...]:
        value, attempt = values.get(name), tried.get(name)
        # Positive: worse than torch.
        drop = None if reference is None or value is None or name == "torch" else scale * (reference - value)
        shown = "0" if not drop else f"{drop:+.2g}" if abs(drop) < 0.01 else f"{drop:+.2f}"
        reasons: list[Cell] = []
        if attempt is not None and attempt.reason:
            reasons.append(context.message(attempt.reason))
        if attempt is not None and attempt.kept_fp32:
            modules = ", ".join(context.name(module) for module in attempt.kept_fp32[:20])
            remark = omitted(20, len(attempt.kept_fp32), "modules")
            count_kept = several(len(attempt.kept_fp32), "module")
            reasons.append(Text(f"{count_kept} kept in fp32: {modules}. {remark}", "small"))
        key = f"export.{metric}.{context.name(name)}"
        return (
            context.name(name),
            Chip(attempt.outcome) if attempt is not None else NO_VALUE,
            tuple(reasons) or NO_VALUE,
            Figure(key, value, unit, NO_VALUE),
            Figure(f"{key}.drop", drop, missing=NO_VALUE, shown=shown),
        )

    names = list(dict.fromkeys([*values, *tried]))
    shown, remark = names[: context.limits.rows], omitted(context.limits.rows, len(names), "precisions")
    title = metric.replace("_", " ").capitalize()
    head = ("Precision", "Outcome", "Reason", title, f"Drop from torch{' (points)' if is_percent else ''}")
    caption = f"{title} on {count(document.proof_samples)} test samples; {document.asked_precision} was requested"
    return Table("precisions", caption, head, [row(name) for name in shown], 3, remark)


def _gates(context: Context, document: ExportManifest) -> Table:
    verification = context.view.verification
    gates = [*document.gates, *(verification.gates if verification is not None else [])]
    passed = sum(gate.status == "passed" for gate in gates)
    # Alphabetical: failed, not run, passed.
    shown = sorted(gates, key=lambda gate: gate.status)[: 2 * context.limits.rows]
    head = ("Gate", "Status", "File", "Ran on", "Measured, and its limit", "Reason")
    remark = omitted(len(shown), len(gates), "gates")
    caption = f"Conditions that the export must meet: {passed} of {len(gates)} passed"
    return Table("gates", caption, head, [_gate(context, gate) for gate in shown], 6, remark)


def _gate(context: Context, gate: Gate) -> tuple[Cell, ...]:
    measured: list[Cell] = []
    for name, value in gate.figures.items():
        limit = f" (limit {_number(gate.limits[name])})" if name in gate.limits else ""
        measured.append(context.name(f"{name.replace('_', ' ')} {_number(value)}{limit}"))
    return (
        f"{context.name(gate.name)} {shorten(gate.precision, 20)}",
        Chip(gate.status),
        Text(context.name(gate.file), "small"),
        (context.name(gate.device or "CPU"), Text(context.name(gate.ran), "small")),
        tuple(first(measured, 24, "figures")) or NO_VALUE,
        context.message(gate.reason) or NO_VALUE,
    )


def _number(value: float | int | str | bool | None) -> str:
    if isinstance(value, float):
        return f"{value:.1e}" if value and abs(value) < 1e-3 else f"{value:.7g}"
    return NO_VALUE if value is None else f"{value:,}" if isinstance(value, int) else value


def _latency(context: Context, document: ExportManifest) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            context.name(entry.ran),
            Figure(f"latency.{place}.batch", entry.batch, "count"),
            Figure(f"latency.{place}.median_ms", entry.median_ms, shown=f"{entry.median_ms:,.3f}"),
        )
        for place, entry in enumerate(document.latency[: context.limits.rows])
    ]
    head, remark = ("Ran on", "Batch", "Median (ms)"), omitted(len(rows), len(document.latency), "measurements")
    return Table("latency", "Time per batch, inputs and outputs in main memory", head, rows, note=remark)


def _hashes(context: Context) -> Iterator[Part]:
    """Yield the hashes from the source's listing to the served file: of each document and its inputs."""
    view = context.view
    documents: dict[str, Contract | None] = {
        "shard": view.shards,
        "profile": view.profile,
        "train": view.checkpoint,
        "export": view.export,
    }
    rows: list[tuple[Cell, ...]] = []
    for stage, document in ((stage, document) for stage, document in documents.items() if document is not None):
        hashes = {"manifest sha256": view.manifest_sha256.get(stage, ""), "fingerprint": document.fingerprint}
        if isinstance(document, CheckpointManifest):
            hashes["parameters sha256"] = document.parameters_sha256
        if isinstance(document, ExportManifest):
            served = (entry.sha256 for entry in document.shipped_files() if entry.name == document.served)
            hashes["served file sha256"] = next(served, "")
        hashes |= {f"made from {name}": value for name, value in document.made_from.items()}
        rows += [
            (stage, context.name(name), Text(context.name(value), "code hash"))
            for name, value in hashes.items()
            if value
        ]
    if rows:
        caption, limit = "From the listing of the source to the served file", 4 * context.limits.rows
        remark = omitted(limit, len(rows), "hashes")
        table = Table("hashes", caption, ("Stage", "Hash of", "Value"), rows[:limit], 3, remark)
        yield Notice("fold", f"Hashes ({len(rows)})", [table], "hashes-fold")
