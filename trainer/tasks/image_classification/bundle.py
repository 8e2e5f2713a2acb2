"""What an export of image classification has beside graphs, with its gate (trainer/export/bundle/bundles.py)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from contracts.artifacts import CheckpointManifest, ExportManifest, ShardManifest
from contracts.artifacts.export import Figure, Gate
from contracts.artifacts.signature import Signature
from trainer.export.bundle.shipped import Shipped
from trainer.tasks.classes.accuracy import judge_accuracy
from trainer.tasks.classes.shipped_answers import Expected, add_reason, compare_answers
from trainer.tasks.images import bundle as images
from trainer.tasks.images.gate import (
    Known,
    Predictions,
    ask_about_split,
    conclude,
    not_decidable,
)

if TYPE_CHECKING:
    from trainer.export.bundle.bundles import Bundle
    from trainer.export.gates.arrays import StoredArrays
    from trainer.export.gates.proof import TestSplit
    from trainer.export.gates.scores import Scores
    from trainer.export.inputs import Inputs

# Images whose path in the source is looked at: of a bucket each one is a request.
_PATHS_LOOKED_AT = 32
# As classes are named whose name is no text (sharding/limits.py).
_ENCODED_NAME = "percent-encoded:"

check_checkpoint = images.check_checkpoint
make_noise = images.make_noise
read_inputs = images.read_inputs
read_labels = images.read_labels
describe_use = images.describe_use
predict = images.predict


def judge_metric(*, precision: str, reference: Scores, found: Scores, samples: int, ran: str) -> Gate:
    """Hold right answers, which are counted, against those of fp32."""
    right = [round(scores.values["accuracy"] * samples) for scores in (reference, found)]
    return judge_accuracy(precision=precision, reference_right=right[0], right=right[1], samples=samples, ran=ran)


def write_bundle(folder: Path, inputs: Inputs, signature: Signature, *, model_name: str, max_batch: int) -> list[str]:
    """Write labels.json, preprocess.json and predict.py."""
    return images.write_files(
        folder,
        inputs.checkpoint,
        signature,
        prepared=inputs.shards.prepared,
        labels=inputs.checkpoint.classes,
        activation="softmax",
        model_name=model_name,
        max_batch=max_batch,
    )


def check_bundle(
    shipped: Shipped, inputs: Inputs, split: TestSplit, outputs: StoredArrays, scores: Mapping[str, Scores]
) -> Gate:
    """Run the shipped predict.py, and count as evaluation.json has counted, and the trainer's own pixels."""
    expected, missing = Expected.of_export(inputs, split, outputs, scores)
    return add_reason(try_program(shipped, expected, known=(split.inputs, outputs)), missing)


def check_again(shipped: Shipped, document: ExportManifest, work: Path) -> Gate:
    """Run this package's own predict.py on the folder's files, and count as its manifest has counted."""
    return try_program(images.lay_out_again(shipped, document, work), Expected.of_finished(document))


def introduce(document: ExportManifest, checkpoint: CheckpointManifest | None) -> tuple[str, list[str]]:
    """Return what the model card calls the model, and what it says of it: normalisation and classes."""
    lines = ["An image in, one score (logit) for each class out; the largest is the answer."]
    return "image classifier", lines + ([] if checkpoint is None else images.describe_classes(checkpoint))


def describe_limits() -> list[str]:
    """Return what the model card warns of."""
    return [
        "Accuracy is that of images like those of the test split; nothing is known of others.",
        "Scores are not calibrated probabilities: a large one is no promise.",
        "It always names one of its classes, also for an image of none of them.",
    ]


def try_program(shipped: Shipped, expected: Expected, *, known: Known | None = None, precision: str = "fp32") -> Gate:
    """Run the shipped predict.py on the files of the test split, and count its right answers.

    An answer is right when the name that it gives is the name of the sample's class in the shards' manifest, which has
    it from the source. One process answers for all images; files of a few hundred are on the disk at a time.

    Args:
        shipped: The export, and the images.
        expected: What it should come to.
        known: What the graph gave for the trainer's own inputs; None: it runs again for all.
        precision: Of the graph.

    Returns:
        The gate. Figures: images, right, coloured_images, classes_predicted, mean_score; unanswered, if any; what was
        expected, and the differences that limits are for.

    Raises:
        DataError: A shard is damaged.
    """
    shards = shipped.shards
    if undecidable := expected.undecidable(shards.splits["test"].samples):
        return not_decidable(undecidable, precision=precision)
    right = 0

    def judge(label: int, predictions: Predictions | None) -> None:
        nonlocal right
        if predictions:
            right += predictions[0][0] == shards.classes[label]

    found = ask_about_split(shipped, top=1, judge=judge, known=known)
    compared = compare_answers(
        expected, right=right, samples=found.images, mean_score=found.mean_score, failed=bool(found.failure)
    )
    figures = {**compared.figures, **_look_at_paths(shipped.shards_uri, shards)}
    undecided = "every answer names one class: it says nothing about pixels" if len(found.predicted) < 2 else ""
    return conclude(
        found, compared.reasons, figures=figures, limits=compared.limits, undecided=undecided, precision=precision
    )


def _look_at_paths(shards_uri: str, shards: ShardManifest) -> dict[str, Figure]:
    """Say of some samples how many have their class's name as a folder of their path in the source.

    A figure, no condition: a source that is a manifest may call its files what it likes.
    """
    from records.fields import path_in
    from records.index import SampleIndex, read_samples

    split, index = shards.splits["test"], SampleIndex(shards, shards_uri)
    looked_at = named = 0
    places = range(split.first, split.first + split.samples, max(1, -(-split.samples // _PATHS_LOOKED_AT)))
    for place, stored in zip(places, read_samples(index, shards_uri, places), strict=True):
        path = path_in(stored, shards.format)
        if path is not None:
            truth = shards.classes[int(index[place]["label"])]
            folders = [unquote(part) for part in path.split("/")[:-1]]
            if truth.startswith(_ENCODED_NAME):
                truth = unquote(truth.removeprefix(_ENCODED_NAME))
            looked_at += 1
            named += truth in folders
    return {"source_paths": looked_at, "source_paths_with_class": named}


if TYPE_CHECKING:
    from trainer.tasks.image_classification import bundle

    _is_bundle: Bundle = bundle
