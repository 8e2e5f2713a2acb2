"""The model card: what an export is, what was measured of it, and what was not, as Markdown.

Here: `render_card`, run by trainer/export/task.py, and `hash_code`. All figures are the manifest's: a test reads them
back out of the tables. Nothing is measured here, and neither names nor paths of machines are written.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from contracts.artifacts import CheckpointManifest, ExportManifest, Gate
from contracts.artifacts.export import Figure
from contracts.serving import model_name
from trainer.export.bundles import bundle_of
from trainer.export.triton import REPOSITORY
from trainer.export.triton_config import image_for

# Packages whose code decides what an export holds.
_CODE = ("contracts", "records", "trainer")
NOTHING = "-"

_VERDICTS = {
    "proven": "Every engine ran on its GPU and passed.",
    "unproven": "No engine ran, or not each of them: what follows was measured on the ONNX graphs. `shardline verify "
    "FOLDER` on a GPU of the engine's target holds the engine against the same limits and completes the proof.",
}
_USE_TRITON = (
    "With Triton Inference Server (`{}`), model `{}` in `{}/`; README.md there has the command, which was not run."
)
_USE_PROFILE = (
    "An engine takes {} to {} samples at a time, is tuned for {}, and loads in {} only, on its target's GPUs only."
)
_PARITY = (
    "Against the trained model in torch, fp32, on the same inputs. Relative error: the largest difference of an output "
    "over the range of torch's."
)
_ABOUT_METRICS = "On the test split, {} samples that training never saw. The headline is `{}`: {} is better."
_BUILDS = "Builds of one graph may be different bytes: an engine's lineage is its graph's hash, which the manifest has."
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


def hash_code() -> str:
    """Return the sha256 over names and content of the modules that decide what an export holds."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for package in _CODE:
        for path in sorted((root / package).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


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
        f"**Verdict: {document.verdict}.** {_VERDICTS[document.verdict]}",
        "## What it is",
        lines[0],
        _table(("", ""), facts),
        *lines[1:],
    ]


def _describe_use(document: ExportManifest) -> list[str]:
    engine = document.engines[0] if document.engines else None
    lines = ["## How to use it", *bundle_of(document.task).describe_use()]
    if engine is not None:
        lines.append(_USE_TRITON.format(image_for(engine.builder), model_name(document.task), REPOSITORY))
        lines.append(_USE_PROFILE.format(engine.min_batch, engine.max_batch, engine.opt_batch, engine.builder))
    return lines


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
        _ABOUT_METRICS.format(document.test_samples, headline.metric, better),
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
    parts = [
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
        (f"`{graph.name}`", graph.precision, NOTHING, str(graph.bytes), NOTHING, graph.sha256)
        for graph in document.graphs
    ]
    for engine in document.engines:
        target = f"{engine.target} ({', '.join(engine.gpus)})"
        rows.append((f"`{engine.name}`", engine.precision, target, str(engine.bytes), engine.builder, engine.sha256))
    parts = [
        "## Graphs and engines",
        _table(("File", "Precision", "Target", "Bytes", "Built by", "sha256"), rows),
        _BUILDS,
    ]
    if document.coverage:
        shares = [(name, _figures(found)) for name, found in document.coverage.items()]
        parts += ["Share of the model that is in a precision:", _table(("Precision", "Shares"), shares)]
    return parts


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
    costs = [
        (name, _figure(cost["seconds"]), str(int(cost["peak_bytes"])))
        for name, cost in document.steps.items()
        if {"seconds", "peak_bytes"} <= set(cost)
    ]
    parts = ["## Lineage", _table(("", ""), rows)]
    if costs:
        parts += ["Each step of the export was a process of its own:", _table(("Step", "Seconds", "Peak bytes"), costs)]
    return parts


def _describe_limits(document: ExportManifest) -> list[str]:
    items = bundle_of(document.task).describe_limits()
    if document.precision != "fp32":
        items.append(_ROUNDING)
    for gate in document.gates:
        if gate.status != "passed":
            items.append(f"Not shown, {gate.status}: {gate.precision} {gate.name}. {_plain(gate.reason)}")
    if document.verdict != "proven":
        items.append("No engine's output, and no engine's speed, was seen on a GPU when this was written.")
    return ["## Limits", "\n".join(f"- {item}" for item in items)]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(header), _row(["---"] * len(header)), *(_row(row) for row in rows)]
    return "\n".join(lines) if len(lines) > 2 else NOTHING


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _plain(text: str) -> str:
    """Return a text that stays in its cell."""
    return " ".join(text.replace("|", r"\|").split())


def _figures(figures: dict[str, Figure] | dict[str, float]) -> str:
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
