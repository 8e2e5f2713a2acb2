"""What an export of image classification has beside graphs, with its gate (trainer/export/bundles.py)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from contracts.artifacts import EVALUATION_NAME, CheckpointManifest, ExportManifest, ShardManifest
from contracts.artifacts.export import Figure, Gate
from contracts.artifacts.signature import Signature
from contracts.config import DataSection
from trainer.export.bundles import GATE_NAME
from trainer.tasks.classes.accuracy import judge_accuracy
from trainer.tasks.images import bundle as images
from trainer.tasks.images.gate import (
    CHUNK_IMAGES,
    MAX_SCORE_DIFFERENCE,
    Predictions,
    ask_about_split,
    conclude,
    not_decidable,
)

if TYPE_CHECKING:
    from trainer.export.arrays import StoredArrays
    from trainer.export.bundles import Bundle
    from trainer.export.inputs import Inputs
    from trainer.export.proof import TestSplit
    from trainer.export.scores import Scores

# Images whose path in the source is looked at: of a bucket each one is a request.
_PATHS_LOOKED_AT = 32
# As classes are named whose name is no text (sharding/limits.py).
_ENCODED_NAME = "percent-encoded:"

check_checkpoint = images.check_checkpoint
make_noise = images.make_noise
read_inputs = images.read_inputs
find_contradictions = images.find_contradictions
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
        labels=inputs.checkpoint.classes,
        activation="softmax",
        model_name=model_name,
        max_batch=max_batch,
    )


def check_bundle(
    folder: Path,
    inputs: Inputs,
    split: TestSplit,
    outputs: StoredArrays,
    scores: Scores,
    *,
    model_name: str,
    threads: int,
) -> Gate:
    """Run the shipped predict.py, and count as evaluation.json has counted, and the trainer's own pixels."""
    evaluation, missing = inputs.find_evaluation()
    gate = try_program(
        folder,
        inputs.shards_uri,
        inputs.shards,
        model_name=model_name,
        expected_right=None if evaluation is None else round(evaluation.metrics["accuracy"] * evaluation.samples),
        transformed_right=round(scores.values["accuracy"] * split.samples),
        expected_score=mean_score(outputs, split.samples),
        data=inputs.config.data,
        threads=threads,
    )
    if not missing:
        return gate
    return gate.model_copy(update={"reason": "; ".join(part for part in (gate.reason, missing) if part)})


def check_again(
    folder: Path,
    document: ExportManifest,
    shards_uri: str,
    shards: ShardManifest,
    *,
    model_name: str,
    work: Path,
    threads: int,
) -> Gate:
    """Run this package's own predict.py on the folder's files, and count as its manifest has counted."""
    recorded = next((gate for gate in document.gates if gate.name == GATE_NAME), None)
    score = recorded.figures.get("mean_score") if recorded else None
    tried = images.lay_out_again(folder, document, model_name=model_name, work=work)
    return try_program(
        tried,
        shards_uri,
        shards,
        model_name=model_name,
        expected_right=None,
        transformed_right=round(document.headline_values["fp32"] * document.test_samples),
        expected_score=score if isinstance(score, float) else None,
        data=DataSection(),
        threads=threads,
    )


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


def mean_score(outputs: StoredArrays, samples: int) -> float:
    """Return the average over the first samples of the largest probability that logits [N, classes] give."""
    import numpy as np

    scores = []
    for batch in outputs.batches(CHUNK_IMAGES, most=samples):
        (logits,) = batch.values()
        wide = logits.astype(np.float64)
        exponentials = np.exp(wide - wide.max(axis=1, keepdims=True))
        scores.append(exponentials.max(axis=1) / exponentials.sum(axis=1))
    return float(np.concatenate(scores).mean())


def try_program(
    folder: Path,
    shards_uri: str,
    shards: ShardManifest,
    *,
    model_name: str,
    expected_right: int | None,
    data: DataSection,
    threads: int,
    transformed_right: int | None = None,
    expected_score: float | None = None,
    precision: str = "fp32",
) -> Gate:
    """Run the shipped predict.py on the files of the test split, and count its right answers.

    An answer is right when the name that it gives is the name of the sample's class in the shards' manifest, which has
    it from the source. One process answers for all images; files of a few hundred are on the disk at a time.

    Args:
        folder: The export's folder on this machine.
        shards_uri: Folder of the shards.
        shards: Their manifest.
        model_name: File name of the graph to run; the fp32 one, since only it must agree to the image.
        expected_right: Right answers in the evaluation.json of the checkpoint; None: there is none, or what computed it
            (TF32, a GPU's bf16) is no fp32.
        data: How shards in a bucket are read.
        threads: Intra-op threads of ONNX Runtime.
        transformed_right: Right answers of the same graph on the trainer's own transform of the same images.
        expected_score: Average of the largest probability of each image, on the trainer's transform, or as an earlier
            gate found it (`mean_score`): it sees what moves no answer.
        precision: Of the graph.

    Returns:
        The gate. Figures: images, right, coloured_images, classes_predicted, mean_score; unanswered, if any; what was
        expected, and the differences that limits are for.

    Raises:
        DataError: A shard is damaged.
    """
    samples = shards.splits["test"].samples
    expected: dict[str, Figure] = {"evaluation_right": expected_right, "transformed_right": transformed_right}
    expected = {name: count for name, count in expected.items() if count is not None}
    if not expected or samples == 0:
        reason = f"no {EVALUATION_NAME} to compare with" if samples else "the test split is empty"
        return not_decidable(reason, precision=precision)
    right = 0

    def judge(label: int, predictions: Predictions | None) -> None:
        nonlocal right
        if predictions:
            right += predictions[0][0] == shards.classes[label]

    found = ask_about_split(
        folder, shards_uri, shards, data, model_name=model_name, threads=threads, top=1, judge=judge
    )
    figures: dict[str, Figure] = {"right": right, **expected, **_look_at_paths(shards_uri, shards)}
    reasons, limits = [], {"right_difference": 0.0}
    difference = max(abs(right - int(count or 0)) for count in expected.values())
    figures["right_difference"] = difference
    # Of a program that failed, its own words say more than what it did not count.
    if difference and not found.failure:
        told = ", ".join(f"{name} is {count}" for name, count in expected.items())
        reasons.append(f"{right} of {found.images} answers are right, {told}")
    if expected_score is not None:
        apart = None if found.mean_score is None else abs(found.mean_score - expected_score)
        figures |= {"expected_score": expected_score, "score_difference": apart}
        limits["score_difference"] = MAX_SCORE_DIFFERENCE
        if (apart is None or apart > MAX_SCORE_DIFFERENCE) and not found.failure:
            reasons.append(f"the average probability is {found.mean_score}, expected {expected_score}")
    undecided = "every answer names one class: it says nothing about pixels" if len(found.predicted) < 2 else ""
    return conclude(found, reasons, figures=figures, limits=limits, undecided=undecided, precision=precision)


def _look_at_paths(shards_uri: str, shards: ShardManifest) -> dict[str, Figure]:
    """Say of some samples how many have their class's name as a folder of their path in the source.

    A figure, no condition: a source that is a manifest may call its files what it likes.
    """
    from records.description import read_path
    from records.samples import open_samples

    split, samples = shards.splits["test"], open_samples(shards, shards_uri)
    whole_format = shards.format if shards.whole_samples else None
    looked_at = named = 0
    for place in range(0, split.samples, -(-split.samples // _PATHS_LOOKED_AT)):
        record = samples[split.first + place]
        path = read_path(shards.shards[int(record["shard"])].uri(shards_uri), record, whole_format=whole_format)
        if path is not None:
            truth = shards.classes[int(record["label"])]
            folders = [unquote(part) for part in path.split("/")[:-1]]
            if truth.startswith(_ENCODED_NAME):
                truth = unquote(truth.removeprefix(_ENCODED_NAME))
            looked_at += 1
            named += truth in folders
    return {"source_paths": looked_at, "source_paths_with_class": named}


if TYPE_CHECKING:
    from trainer.tasks.image_classification import bundle

    _is_bundle: Bundle = bundle
