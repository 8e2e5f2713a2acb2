"""What an export of text classification has beside graphs: tokenizer, labels, text.json, predict.py, and their gate.

Here: the functions of trainer/export/bundle/bundles.py, and `try_program`, which runs the shipped predict.py as a user
would, on the texts of the test split, and counts right answers (trainer/tasks/classes/shipped_answers.py). predict.py
is copied from this package byte for byte. The gate runs code of the folder that it is given: only a folder whose
checksums agree with its manifest is for it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from contracts import storage
from contracts.artifacts import CheckpointManifest, ExportManifest
from contracts.artifacts.export import Figure, Gate
from contracts.artifacts.signature import Signature
from contracts.config import RunConfig
from trainer.export.bundle.bundles import GATE_NAME, PREDICT_NAME
from trainer.export.bundle.shipped import (
    Shipped,
    ShippedFailed,
    ShippedProgram,
    lay_out_again,
    name_versions,
    write_program,
)
from trainer.export.gates.samples import SPLIT, each_sample, samples_of
from trainer.tasks.classes.accuracy import judge_accuracy
from trainer.tasks.classes.labels import LABELS_NAME, list_classes, write_json
from trainer.tasks.classes.labels import read_labels as read_labels
from trainer.tasks.classes.shipped_answers import Expected, add_reason, compare_answers

if TYPE_CHECKING:
    from trainer.export.bundle.bundles import Bundle
    from trainer.export.gates.arrays import Arrays, StoredArrays
    from trainer.export.gates.proof import TestSplit
    from trainer.export.gates.scores import Scores
    from trainer.export.inputs import Inputs
    from trainer.predict.checked_folder import CheckedFolder
    from trainer.tasks.protocol import Task

TEXT_NAME, TOKENIZER_NAME = "text.json", "tokenizer.json"
_NOUN = "texts"
# That the program needs.
_PACKAGES = ("onnxruntime", "numpy", "tokenizers")
# Texts that are read at a time.
_READ_TEXTS = 256
_NOISE_SEED = 0
_USE_TOKENIZER = (
    "The tokenizer is part of the model: `text.json` says how texts are cut and padded, `predict.py` does it. Other "
    "tokens cost accuracy without an error."
)


def check_checkpoint(config: RunConfig, checkpoint: CheckpointManifest) -> None:
    """Do nothing: the task's arguments and the shards say all."""


def make_noise(task: Task, samples: int) -> Arrays:
    """Return random tokens, of texts of every length up to the one that engines are tuned for."""
    import numpy as np

    from trainer.tasks.text_classification.predict import pad
    from trainer.tasks.text_classification.task import TextClassification

    assert isinstance(task, TextClassification)
    random, length = np.random.default_rng(_NOISE_SEED), task.signature.dimensions["length"]
    most, vocabulary = length.opt, task.vocabulary
    # The first is the longest: all others are padded to it.
    texts = [random.integers(0, vocabulary, size) for size in [most, *random.integers(1, most + 1, samples - 1)]]
    tokens, mask = pad(texts, padding=task.padding, least=length.min, multiple=length.multiple)
    return dict(zip(task.signature.inputs, (tokens, mask), strict=True))


def judge_metric(*, precision: str, reference: Scores, found: Scores, samples: int, ran: str) -> Gate:
    """Hold right answers, which are counted, against those of fp32."""
    right = [round(scores.values["accuracy"] * samples) for scores in (reference, found)]
    return judge_accuracy(
        precision=precision, reference_right=right[0], right=right[1], samples=samples, ran=ran, noun=_NOUN
    )


def write_bundle(folder: Path, inputs: Inputs, signature: Signature, *, model_name: str, max_batch: int) -> list[str]:
    """Write tokenizer.json, labels.json, text.json and predict.py into a folder; return their names.

    Args:
        folder: Where the graphs lie.
        inputs: The checkpoint's classes, and the shards' tokenizer.
        signature: Names of inputs and output, and the range of lengths.
        model_name: File name of the graph that ships.
        max_batch: Most texts at a time.
    """
    (output,), length = signature.outputs, signature.dimensions["length"]
    entry, data = inputs.shards.tokenizer, inputs.checkpoint.data
    assert entry is not None
    preparation = {
        "format_version": 1,
        "model": model_name,
        "labels": LABELS_NAME,
        "tokenizer": TOKENIZER_NAME,
        "tokens": "tokens",
        "mask": "mask",
        "output": output,
        "max_batch": max_batch,
        "max_length": data["max_length"],
        "padding": entry.padding,
        "least": length.min,
        "multiple": length.multiple,
    }
    write_json(folder / LABELS_NAME, inputs.checkpoint.classes)
    write_json(folder / TEXT_NAME, preparation)
    (folder / TOKENIZER_NAME).write_bytes(storage.read_bytes(entry.uri(inputs.shards_uri)))
    return [TOKENIZER_NAME, LABELS_NAME, TEXT_NAME, *write_program(folder, Path(__file__).with_name(PREDICT_NAME))]


def check_bundle(
    shipped: Shipped, inputs: Inputs, split: TestSplit, outputs: StoredArrays, scores: Mapping[str, Scores]
) -> Gate:
    """Run the shipped predict.py, and count as evaluation.json has counted, and the trainer's own tokens."""
    expected, missing = Expected.of_export(inputs, split, outputs, scores)
    return add_reason(try_program(shipped, expected), missing)


def check_again(shipped: Shipped, document: ExportManifest, work: Path) -> Gate:
    """Run this package's own predict.py on the folder's files, and count as its manifest has counted."""
    return try_program(_lay_out_again(shipped, document, work), Expected.of_finished(document))


def _lay_out_again(shipped: Shipped, document: ExportManifest, work: Path) -> Shipped:
    names, program = (LABELS_NAME, TEXT_NAME, TOKENIZER_NAME), Path(__file__).with_name(PREDICT_NAME)
    return lay_out_again(shipped, document, work, names, program=program)


def read_inputs(shipped: Shipped, document: ExportManifest, work: Path) -> StoredArrays:
    """Return the texts that the gates took of the test split, as text.json says."""
    from trainer.export.gates.arrays import store_arrays
    from trainer.tasks.text_classification.predict import Preparation, open_encoder, pad

    said = Preparation.read(shipped.folder / TEXT_NAME)
    encoder = open_encoder(shipped.folder / said.tokenizer, said)
    places = samples_of(document, shipped.shards_uri, shipped.shards)

    def batches() -> Iterator[Arrays]:
        for texts in _read_texts(replace(shipped, places=places)):
            encoded = [encoder.encode(text) for text, _ in texts]
            tokens, mask = pad(encoded, padding=said.padding, least=said.least, multiple=said.multiple)
            yield {said.tokens: tokens, said.mask: mask}

    return store_arrays(work / "test-inputs", batches())


def introduce(document: ExportManifest, checkpoint: CheckpointManifest | None) -> tuple[str, list[str]]:
    """Return what the model card calls the model, and what it says of it: tokens and classes."""
    lines = ["A text in, as tokens and their mask; one score (logit) for each class out. The largest is the answer."]
    if checkpoint is None:
        return "text classifier", lines
    data = checkpoint.data
    lines.append(
        f"A text is at most {data['max_length']} of the tokenizer's {data['vocabulary']} tokens; of a longer one the "
        "beginning counts."
    )
    return "text classifier", [*lines, list_classes(checkpoint.classes)]


def describe_use() -> list[str]:
    """Return what the model card says of predict.py and `shardline predict`."""
    return [
        "On any machine, with numpy, tokenizers and onnxruntime (CPU):",
        '    python predict.py "a text" ...',
        "    python predict.py --lines FILE",
        "With shardline, on a GPU that an engine was built for with that engine, elsewhere with the graph:",
        '    shardline predict FOLDER "a text" ...',
        _USE_TOKENIZER,
    ]


def describe_limits() -> list[str]:
    """Return what the model card warns of."""
    return [
        "Accuracy is that of texts like those of the test split; nothing is known of others, nor of other languages.",
        "Scores are not calibrated probabilities: a large one is no promise.",
        "It always names one of its classes, also for a text of none of them, and for an empty one.",
    ]


def predict(folder: CheckedFolder, options: argparse.Namespace) -> int:
    """Print the labels of texts."""
    # Here: it imports numpy.
    from trainer.predict.predict_task import answer_samples
    from trainer.tasks.text_classification.predict import KIND, open_files

    return answer_samples(folder, options, KIND, open_files)


def try_program(shipped: Shipped, expected: Expected, *, precision: str = "fp32") -> Gate:
    """Run the shipped predict.py on the texts of the test split, and count its right answers.

    An answer is right when the name that it gives is the name of the sample's class in the shards' manifest, which has
    it from the source.

    Args:
        shipped: The export, and the texts.
        expected: What it should come to.
        precision: Of the graph.

    Raises:
        DataError: A shard is damaged.
    """
    if undecidable := expected.undecidable(shipped.shards.splits["test"].samples):
        ran = f"not run: {undecidable}"
        return Gate(name=GATE_NAME, precision=precision, status="not decidable", ran=ran, reason=undecidable)
    found = _ask(shipped)
    compared = compare_answers(
        expected, right=found.right, samples=found.texts, mean_score=found.mean_score, failed=bool(found.failure)
    )
    reasons = [*found.reasons(), *compared.reasons]
    status: Literal["passed", "failed", "not decidable"] = "failed" if reasons else "passed"
    if not reasons and len(found.predicted) < 2:
        status, reasons = "not decidable", ["every answer names one class: it says nothing about tokens"]
    return Gate(
        name=GATE_NAME,
        precision=precision,
        status=status,
        ran=f"the shipped {PREDICT_NAME} with {name_versions(_PACKAGES)}, on the source's texts",
        figures=found.figures() | compared.figures,
        limits=compared.limits,
        reason="; ".join(reasons),
    )


@dataclass
class _Findings:
    """What came back."""

    texts: int = 0
    right: int = 0
    unanswered: int = 0
    first_error: str = ""
    failure: str = ""
    """Why the program came to no end."""
    predicted: set[str] = field(default_factory=set)
    scores: float = 0.0

    @property
    def mean_score(self) -> float | None:
        answered = self.texts - self.unanswered
        return self.scores / answered if answered else None

    def add(self, truth: str, answer: dict[str, Any]) -> None:
        self.texts += 1
        if "error" in answer:
            self.unanswered += 1
            self.first_error = self.first_error or str(answer["error"])
            return
        label, score = str(answer["label"]), float(answer["score"])
        self.predicted.add(label)
        self.right += label == truth
        self.scores += score

    def reasons(self) -> Iterator[str]:
        if self.failure:
            yield self.failure
        if self.unanswered:
            yield f"{self.unanswered} texts got no answer, the first: {self.first_error}"

    def figures(self) -> dict[str, Figure]:
        return {
            "texts": self.texts,
            "classes_predicted": len(self.predicted),
            "unanswered": self.unanswered,
            "mean_score": self.mean_score,
        }


def _ask(shipped: Shipped) -> _Findings:
    """Ask the shipped program about texts of the test split."""
    found, truths = _Findings(), list[int]()
    with tempfile.TemporaryDirectory(prefix="shardline-bundle-") as name:
        work = Path(name)
        # In a file: answers to long texts and the texts themselves would fill the pipes on both sides.
        with (work / "texts").open("w", encoding="utf-8") as lines:
            for texts in _read_texts(shipped):
                lines.writelines(f"{json.dumps(text)}\n" for text, _ in texts)
                truths += [label for _, label in texts]
        options = ["--json-lines=texts", "--format=json"]
        program = ShippedProgram(shipped, options, work=work)
        try:
            with program:
                for start in range(0, len(truths), _READ_TEXTS):
                    labels = truths[start : start + _READ_TEXTS]
                    names = [f"text {place}" for place in range(start, start + len(labels))]
                    for label, what, answer in zip(labels, names, program.answers(names), strict=True):
                        try:
                            found.add(shipped.shards.classes[label], answer)
                        except (LookupError, TypeError, ValueError):
                            raise program.misunderstood(what, answer) from None
                program.finish()
        except ShippedFailed as failure:
            found.failure = str(failure)
    return found


def _read_texts(shipped: Shipped) -> Iterator[list[tuple[str, int]]]:
    """Yield texts of the test split with their labels, some at a time."""
    # Here: it brings the cache of a bucket with it.
    from trainer.data.reader import ShardReader

    reader = ShardReader(shipped.shards_uri, shipped.shards, SPLIT, shipped.data, scattered=shipped.places is not None)
    samples = each_sample(reader, shipped.places, _READ_TEXTS)
    while texts := [(sample["text"], sample["label"]) for sample in islice(samples, _READ_TEXTS)]:
        yield texts


if TYPE_CHECKING:
    from trainer.tasks.text_classification import bundle

    _is_bundle: Bundle = bundle
