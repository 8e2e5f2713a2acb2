"""The model card: what an export is, what was measured of it, and what was not, as Markdown.

Here: `render_card`, run by trainer/export/task.py; the card's text is in pages/templates/export/card.md.j2. All figures
are the manifest's: a test reads them back out of the tables. Nothing is measured here, and neither names nor paths of
machines are written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from contracts.artifacts import CheckpointManifest, ExportManifest
from contracts.artifacts.export import two_figures
from contracts.artifacts.signature import BATCH
from contracts.serving import LOADED_BY, image_of
from pages.export.card import Artifact, ExportCard, Fact
from pages.markdown import Markdown, code
from pages.rendering import write
from trainer.export.targets import OUTSIDE, OUTSIDE_MATRIX
from trainer.predict.bundle import LABELS_NAME, kind_of


@dataclass(frozen=True)
class _Texts:
    """Words of the card about a kind of task, as Markdown."""

    kind: str
    about: str
    use: tuple[str, ...]
    limits: tuple[str, ...]


_NOT_CALIBRATED = "Scores are not calibrated probabilities: a large one is no promise."
_WITH_ENGINE = "With shardline, on a GPU that an engine was built for by that engine, elsewhere by the graph:"
_IMAGE_USE = (
    "On any machine, with numpy, Pillow and onnxruntime (CPU):",
    "    python predict.py IMAGE...",
    _WITH_ENGINE,
    "    shardline predict FOLDER IMAGE...",
    (
        "Preprocessing is part of the model: `preprocess.json` has its numbers, `predict.py` does it. Another resize "
        "or normalisation costs accuracy without an error."
    ),
)
_TEXTS = {
    "image_classification": _Texts(
        "image classifier",
        "An image in, one score (logit) for each class out; the largest is the answer.",
        _IMAGE_USE,
        (
            "Accuracy is that of images like those of the test split; nothing is known of others.",
            _NOT_CALIBRATED,
            "It always predicts one of its classes, even for an image that belongs to none.",
        ),
    ),
    "image_multilabel": _Texts(
        "image classifier with several labels",
        "An image in, one score (logit) for each class out. Its sigmoid is a probability; an image has every class "
        "with a probability at or above the threshold of the class in `labels.json`: any number of them.",
        (*_IMAGE_USE, "`--top K` prints the K highest scores of an image, whether they reach their threshold or not."),
        (
            "Metrics are those of images like those of the test split; nothing is known of others.",
            (
                "Thresholds have the largest F1 of each class on the validation split: where a wrong label costs more "
                "or less than a missed one, choose others."
            ),
            _NOT_CALIBRATED,
        ),
    ),
    "text_classification": _Texts(
        "text classifier",
        "A text in, as tokens and their mask; one score (logit) for each class out. The largest is the answer.",
        (
            "On any machine, with numpy, tokenizers and onnxruntime (CPU):",
            '    python predict.py "a text" ...',
            "    python predict.py --lines FILE",
            _WITH_ENGINE,
            '    shardline predict FOLDER "a text" ...',
            (
                "The tokenizer is part of the model: `text.json` says how texts are cut and padded, `predict.py` does "
                "it. Other tokens cost accuracy without an error."
            ),
        ),
        (
            (
                "Accuracy is that of texts like those of the test split; nothing is known of others, nor of other "
                "languages."
            ),
            _NOT_CALIBRATED,
            "It always predicts one of its classes, even for a text that belongs to none, and for an empty one.",
        ),
    ),
}
# Of more names the card lists the first ones; all of them are in labels.json.
_MOST_NAMES = 100


def render_card(document: ExportManifest, checkpoint: CheckpointManifest | None = None) -> str:
    """Return the card.

    Args:
        document: The manifest; its list of files need not be final.
        checkpoint: What was exported: for the names of its classes, its network and how it was trained.
    """
    texts = _TEXTS.get(document.task) or _own_texts(document)
    about = [texts.about, *_describe_inputs(document.task, checkpoint)]
    headline = document.headline
    measured = document.metrics
    metrics = tuple(dict.fromkeys([headline.metric, *(name for values in measured.values() for name in values)]))
    card = ExportCard(
        document,
        Markdown(texts.kind),
        tuple(_artifacts(document)),
        tuple(map(Markdown, about)),
        tuple(_facts(document, checkpoint)),
        tuple(map(Markdown, texts.use)),
        image_of(document) or "",
        metrics,
        tuple((name, tuple(map(values.get, metrics))) for name, values in measured.items()),
        tuple(
            (small.runner, small.precision, (small.batch, small.p50_ms, best.batch, best.images_per_s, small.cold_s))
            for small, best in two_figures(document.latency)
        ),
        tuple(_lineage(document, checkpoint)),
        tuple(map(Markdown, texts.limits)),
        tuple(gate for gate in document.gates if gate.status != "passed"),
    )
    return f"{write(card)}\n"


def _own_texts(document: ExportManifest) -> _Texts:
    """Return the words about an own task: five lines run its model."""
    signature = document.signature
    sizes = {BATCH: 1, **{name: dimension.opt for name, dimension in signature.dimensions.items()}}
    arrays = [
        f'"{name}": numpy.zeros({[sizes.get(str(size), size) for size in spec.shape]}, "{spec.dtype}")'
        for name, spec in signature.inputs.items()
    ]
    lines = (
        "import numpy",
        "import onnxruntime",
        f'session = onnxruntime.InferenceSession("{document.graph().name}")',
        f"inputs = {{{', '.join(arrays)}}}",
        f"outputs = session.run({json.dumps(list(signature.outputs))}, inputs)",
    )
    inputs = (
        "In place of zeros: what the task's `prepare`, `collate` and `to_model` make of samples in evaluation. Other "
        "inputs cost what the model is worth, without an error."
    )
    return _Texts(
        f"task {code(document.task)}",
        "The code of the task says what inputs and outputs mean.",
        (
            "On any machine, with numpy and onnxruntime (CPU):",
            "\n".join(f"    {line}" for line in lines),
            inputs,
            "With the code of its run, where the task has the method `answer`:",
            "    shardline predict RUN SAMPLE...",
        ),
        (),
    )


def _describe_inputs(task: str, checkpoint: CheckpointManifest | None) -> list[str]:
    """Return paragraphs on the inputs and classes of a task of the tool."""
    if checkpoint is None or kind_of(task) == "own":
        return []
    data, names = checkpoint.data, checkpoint.classes
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    listed = ", ".join(map(code, names[:_MOST_NAMES])) + more
    classes = f"{len(names)} classes, in the order of the scores: {listed} (`{LABELS_NAME}`)."
    if kind_of(task) == "images":
        mean, std = code(str(data["mean"])), code(str(data["std"]))
        return [f"Pixels / 255 are normalised with mean {mean}, std {std}.", classes]
    cut = f"A text is at most {data['max_length']} of the tokenizer's {data['vocabulary']} tokens; of a longer one the "
    return [cut + "beginning counts.", classes]


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
