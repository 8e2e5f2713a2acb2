"""The model card: what an export is, what was measured of it, and what was not, as Markdown.

Here: `render_card`, run by trainer/export/task.py. All figures are the manifest's: a test reads them
back out of the tables. Nothing is measured here, and neither names nor paths of machines are written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from contracts.artifacts import CheckpointManifest, ExportManifest, Gate
from contracts.artifacts.export import Figure, two_figures
from contracts.serving import NO_RELEASE, REPOSITORY, image_of
from trainer.export.bundle.bundles import bundle_of
from trainer.export.targets import OUTSIDE, OUTSIDE_MATRIX

NOTHING = "-"

_USE_TRITON = "With Triton Inference Server ({}): `shardline serve FOLDER --dry-run`, or {}/README.md; it was not run."
_PARITY = (
    "Against the trained model in torch, fp32, on the same inputs. Relative error: the largest difference of an output "
    "over the range of torch's."
)
_ABOUT_METRICS = "On the test split, {} samples that training never saw. The headline is `{}`: {} is better."
_ROUNDING = (
    "ONNX Runtime on a CPU computes fp16 graphs in fp32: it proves the rounding of weights. What fp16 arithmetic does "
    "is shown by the range of activations, and by an engine that ran."
)


def render_card(document: ExportManifest, checkpoint: CheckpointManifest | None = None) -> str:
    """Return the card.

    Args:
        document: The manifest; its list of files need not be final.
        checkpoint: What was exported: for the names of its classes, its network and how it was trained.
    """
    parts = [
        *_introduce(document, checkpoint),
        *_describe_use(document),
        *_describe_parity(document),
        *_describe_gates(document.gates),
        *_describe_metrics(document),
        *_describe_latency(document),
        *_describe_attempts(document),
        *_describe_files(document),
        *_describe_lineage(document, checkpoint),
        *_describe_limits(document),
    ]
    return "\n\n".join(parts) + "\n"


def _introduce(document: ExportManifest, checkpoint: CheckpointManifest | None) -> list[str]:
    kind, lines = bundle_of(document.task).introduce(document, checkpoint)
    facts: list[tuple[str, str]] = []
    if checkpoint is not None and ":" not in document.task:
        facts.append(("Network", f"`{checkpoint.model.get('architecture')}`"))
    facts.append(("Precision", document.precision))
    facts.append(("ONNX opset", str(document.opset)))
    signature = document.model_signature
    facts += [(f"Input `{name}`", f"{spec.shape} {spec.dtype}") for name, spec in signature.inputs.items()]
    facts += [(f"Output `{name}`", f"{spec.shape} {spec.dtype}") for name, spec in signature.outputs.items()]
    for name, found in signature.dimensions.items():
        multiple = f", multiples of {found.multiple}" if found.multiple > 1 else ""
        facts.append((f"Dimension `{name}`", f"{found.min} to {found.max}, tuned for {found.opt}{multiple}"))
    return [
        f"# Model card: {kind}, {document.precision}",
        *_describe_proof(document),
        "## What it is",
        lines[0],
        _table(("", ""), facts),
        *lines[1:],
    ]


def _describe_proof(document: ExportManifest) -> list[str]:
    """Return what is served, and what ran on what."""
    served = document.served
    ran = {gate.name.partition(" ")[2]: gate for gate in document.gates if gate.precision == document.precision}
    rows: list[tuple[str, ...]] = []
    if served is not None:
        rows.append(
            (f"served: `{served.model}`", served.runtime, served.sha256, served.ran, ", ".join(served.unproven))
        )
    for engine in document.engines:
        if served is not None and engine.name == served.model:
            continue
        gate = ran.get(engine.target)
        outside = f" ({OUTSIDE})" if engine.target in OUTSIDE_MATRIX else ""
        passed = gate is not None and gate.status == "passed"
        words = (gate.ran if gate else NOTHING, NOTHING if passed else "all of it")
        rows.append((f"`{engine.name}`{outside}", engine.builder, engine.sha256, *words))
    return [
        f"**Verdict: {document.verdict}.**",
        _table(("Artefact", "Runtime", "sha256", "What ran it", "Not shown"), rows),
    ]


def _describe_use(document: ExportManifest) -> list[str]:
    image = image_of(document)
    return [
        "## How to use it",
        *bundle_of(document.task).describe_use(),
        _USE_TRITON.format(NO_RELEASE if image is None else f"`{image}`", REPOSITORY),
    ]


def _describe_parity(document: ExportManifest) -> list[str]:
    rows = []
    for kind, by_name in document.parity.items():
        for name, found in by_name.items():
            outcome = {None: "not run", True: "passed", False: "failed"}[found.passed]
            figures = (found.samples, found.relative_error, found.min_cosine, found.top1_agreement)
            rows.append((kind, name, outcome, *map(_figure, figures), _figure(found.reference_classes), found.ran))
    header = ("What", "Which", "Result", "Samples", "Relative error", "Smallest cosine", "Top-1 agreement")
    return [
        "## Parity with torch",
        _PARITY,
        _table((*header, "Classes in torch's answers", "What ran"), rows),
    ]


def _describe_gates(gates: Sequence[Gate]) -> list[str]:
    rows = [
        (gate.precision, gate.name, gate.status, _figures(gate.figures), _figures(gate.limits), gate.reason, gate.ran)
        for gate in gates
    ]
    header = ("Precision", "Gate", "Result", "Figures", "Limits", "Reason", "What ran")
    return ["## Gates", _table(header, rows)]


def _describe_metrics(document: ExportManifest) -> list[str]:
    headline = document.headline
    measured = document.metrics or {name: {headline.metric: value} for name, value in document.accuracy.items()}
    names = list(dict.fromkeys([headline.metric, *(name for values in measured.values() for name in values)]))
    rows = [(name, *(_figure(values.get(metric)) for metric in names)) for name, values in measured.items()]
    better = "higher" if headline.direction == "max" else "lower"
    return [
        "## Metrics",
        _ABOUT_METRICS.format(document.measured_samples, headline.metric, better),
        _table(("Model", *names), rows),
    ]


def _describe_latency(document: ExportManifest) -> list[str]:
    if not document.latency:
        return ["## Latency", "Not measured. `shardline export --bench` measures it."]
    rows = [
        (
            found.runner,
            found.precision,
            found.device,
            *map(_figure, (found.batch, found.p50_ms, found.p90_ms, found.p99_ms, found.images_per_s, found.repeats)),
        )
        for found in document.latency
    ]
    header = ("Runner", "Precision", "Device", "Batch", "p50 ms", "p90 ms", "p99 ms", "Samples/s", "Repeats")
    figures = [
        (
            small.runner,
            small.precision,
            *map(_figure, (small.batch, small.p50_ms, best.batch, best.images_per_s)),
            "-" if small.cold_s is None else _figure(small.cold_s),
        )
        for small, best in two_figures(document.latency)
    ]
    parts = [
        "## Speed",
        "Latency at the smallest batch, throughput at the best; a cold start is from opening to the first answer.",
        _table(("Runner", "Precision", "Batch", "p50 ms", "Best batch", "Samples/s", "Cold s"), figures),
        "## Latency",
        "Of a batch that lies on the device, until its outputs are there; all on the same device in one run.",
        _table(header, rows),
    ]
    if document.latency_left_out:
        items = [f"- {_plain(name)}: {_plain(reason)}" for name, reason in document.latency_left_out.items()]
        parts += ["Not measured:", "\n".join(items)]
    return parts


def _describe_attempts(document: ExportManifest) -> list[str]:
    rows = [
        (attempt.precision, attempt.outcome, ", ".join(attempt.kept_fp32) or NOTHING, attempt.reason or NOTHING)
        for attempt in document.tried
    ]
    return [
        "## What was tried",
        f"Asked for: {document.asked_precision}. Ships: {document.precision}.",
        _table(("Precision", "Outcome", "Kept in fp32", "Reason"), rows),
    ]


def _describe_files(document: ExportManifest) -> list[str]:
    rows = [
        (f"`{graph.name}`", graph.precision, NOTHING, NOTHING, str(graph.bytes), NOTHING, graph.sha256)
        for graph in document.graphs
    ]
    for engine in document.engines:
        target = f"{engine.target} ({', '.join(engine.gpus)})"
        batches = f"{engine.min_batch} / {engine.opt_batch} / {engine.max_batch}"
        size = str(engine.bytes)
        rows.append((f"`{engine.name}`", engine.precision, target, batches, size, engine.builder, engine.sha256))
    header = ("File", "Precision", "Target", "Batch min / opt / max", "Bytes", "Built by", "sha256")
    return ["## Graphs and engines", _table(header, rows)]


def _describe_lineage(document: ExportManifest, checkpoint: CheckpointManifest | None) -> list[str]:
    rows = [("Checkpoint, sha256 of its parameters", f"`{document.checkpoint_sha256}`")]
    if checkpoint is not None:
        rows.append(("Checkpoint, fingerprint of its training", f"`{checkpoint.fingerprint}`"))
        rows.append(("Steps and epochs of training", f"{checkpoint.step}, {checkpoint.epoch}"))
        if checkpoint.initial is not None:
            rows.append(("Training started with", _plain(checkpoint.initial.in_words())))
    rows.append(("Shards, fingerprint", f"`{document.shards_fingerprint}`"))
    if document.calibration is not None:
        drawn = document.calibration
        rows.append(("Calibration samples", f"{drawn.samples}, seed {drawn.seed}, of `{drawn.shards_fingerprint}`"))
        rows.append(("Calibration samples, sha256 of their keys", f"`{drawn.sha256}`"))
    rows.append(("This export's fingerprint", f"`{document.fingerprint}`"))
    rows += [(f"Made from: {name}", f"`{value}`") for name, value in document.made_from.items()]
    rows += [(f"Made with: {name}", f"`{value}`") for name, value in document.made_with.items()]
    return ["## Lineage", _table(("", ""), rows)]


def _describe_limits(document: ExportManifest) -> list[str]:
    items = bundle_of(document.task).describe_limits()
    if document.precision != "fp32":
        items.append(_ROUNDING)
    for gate in document.gates:
        if gate.status != "passed":
            items.append(f"Not shown, {gate.status}: {gate.precision} {gate.name}. {_plain(gate.reason)}")
    return ["## Limits", "\n".join(f"- {item}" for item in items)]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(header), _row(["---"] * len(header)), *(_row(row) for row in rows)]
    return "\n".join(lines) if len(lines) > 2 else NOTHING


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _plain(text: str) -> str:
    """Return a text that stays in its cell."""
    return " ".join(text.replace("|", r"\|").split())


def _figures(figures: Mapping[str, Figure]) -> str:
    return ", ".join(f"{name} {_figure(value)}" for name, value in figures.items()) or NOTHING


def _figure(value: Figure) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    # The manifest has no numbers for these (JSON): ranges write the word, parity the largest float.
    if value == "infinite" or (isinstance(value, float) and not abs(value) < sys.float_info.max):
        return "not finite"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
