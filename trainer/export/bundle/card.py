"""The model card: what an export is, what was measured of it, and what was not, as Markdown.

Here: `render_card`, run by trainer/export/task.py; the card's text is in pages/templates/export/card.md.j2. All figures
are the manifest's: a test reads them back out of the tables. Nothing is measured here, and neither names nor paths of
machines are written.
"""

from __future__ import annotations

from contracts.artifacts import CheckpointManifest, ExportManifest
from contracts.artifacts.export import two_figures
from contracts.serving import LOADED_BY, image_of
from pages.export.card import Artifact, ExportCard, Fact
from pages.markdown import Markdown
from pages.rendering import write
from trainer.export.bundle.bundles import bundle_of
from trainer.export.targets import OUTSIDE, OUTSIDE_MATRIX


def render_card(document: ExportManifest, checkpoint: CheckpointManifest | None = None) -> str:
    """Return the card.

    Args:
        document: The manifest; its list of files need not be final.
        checkpoint: What was exported: for the names of its classes, its network and how it was trained.
    """
    bundle = bundle_of(document.task)
    kind, about = bundle.introduce(document, checkpoint)
    headline = document.headline
    measured = document.metrics
    metrics = tuple(dict.fromkeys([headline.metric, *(name for values in measured.values() for name in values)]))
    card = ExportCard(
        document,
        Markdown(kind),
        tuple(_artifacts(document)),
        tuple(map(Markdown, about)),
        tuple(_facts(document, checkpoint)),
        tuple(map(Markdown, bundle.describe_use())),
        image_of(document) or "",
        metrics,
        tuple((name, tuple(map(values.get, metrics))) for name, values in measured.items()),
        tuple(
            (small.runner, small.precision, (small.batch, small.p50_ms, best.batch, best.images_per_s, small.cold_s))
            for small, best in two_figures(document.latency)
        ),
        tuple(_lineage(document, checkpoint)),
        tuple(map(Markdown, bundle.describe_limits())),
        tuple(gate for gate in document.gates if gate.status != "passed"),
    )
    return f"{write(card)}\n"


def _artifacts(document: ExportManifest) -> list[Artifact]:
    """Return what is served, and what ran on what."""
    served = document.served
    found = []
    if served is not None:
        unproven = ", ".join(served.unproven)
        found.append(
            Artifact(served.model, LOADED_BY[served.runtime], served.sha256, served.ran, unproven, is_served=True)
        )
    ran = {gate.name.partition(" ")[2]: gate for gate in document.gates if gate.precision == document.precision}
    for engine in document.engines:
        if served is not None and engine.name == served.model:
            continue
        gate = ran.get(engine.target)
        passed = gate is not None and gate.status == "passed"
        words = gate.ran if gate else "-", "-" if passed else "all of it"
        outside = OUTSIDE if engine.target in OUTSIDE_MATRIX else ""
        found.append(Artifact(engine.name, engine.builder, engine.sha256, *words, note=outside))
    return found


def _facts(document: ExportManifest, checkpoint: CheckpointManifest | None) -> list[Fact]:
    facts = []
    if checkpoint is not None and ":" not in document.task:
        facts.append(Fact("Network", str(checkpoint.model.get("architecture")), is_code=True))
    facts += [Fact("Precision", document.precision), Fact("ONNX opset", str(document.opset))]
    signature = document.signature
    facts += [Fact("Input", f"{spec.shape} {spec.dtype}", name) for name, spec in signature.inputs.items()]
    facts += [Fact("Output", f"{spec.shape} {spec.dtype}", name) for name, spec in signature.outputs.items()]
    for name, found in signature.dimensions.items():
        multiple = f", multiples of {found.multiple}" if found.multiple > 1 else ""
        facts.append(Fact("Dimension", f"{found.min} to {found.max}, tuned for {found.opt}{multiple}", name))
    return facts


def _lineage(document: ExportManifest, checkpoint: CheckpointManifest | None) -> list[Fact]:
    facts = [Fact("Checkpoint, sha256 of its parameters", document.checkpoint_sha256, is_code=True)]
    if checkpoint is not None:
        facts.append(Fact("Checkpoint, fingerprint of its training", checkpoint.fingerprint, is_code=True))
        facts.append(Fact("Steps and epochs of training", f"{checkpoint.step}, {checkpoint.epoch}"))
        if checkpoint.initial is not None:
            facts.append(Fact("Training started with", checkpoint.initial.in_words()))
    facts.append(Fact("Shards, fingerprint", document.shards_fingerprint, is_code=True))
    if document.calibration is not None:
        drawn = document.calibration
        facts.append(Fact("Calibration samples", f"{drawn.samples}, seed {drawn.seed}"))
        facts.append(Fact("Calibration samples, fingerprint of their shards", drawn.shards_fingerprint, is_code=True))
        facts.append(Fact("Calibration samples, sha256 of their keys", drawn.sha256, is_code=True))
    facts.append(Fact("This export's fingerprint", document.fingerprint, is_code=True))
    facts += [Fact(f"Made from: {name}", value, is_code=True) for name, value in document.made_from.items()]
    facts += [Fact(f"Made with: {name}", value, is_code=True) for name, value in document.made_with.items()]
    return facts
