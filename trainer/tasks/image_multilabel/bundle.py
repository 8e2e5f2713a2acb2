"""What an export of several labels has beside graphs, with its gate (trainer/export/bundle/bundles.py).

The gate holds the labels that the shipped predict.py says of each file against those of the trainer's own way: the fp32
graph on the trainer's own pixels, at the thresholds of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.artifacts import EVALUATION_NAME, CheckpointManifest, ExportManifest
from contracts.artifacts.export import Figure, Gate
from contracts.artifacts.multilabel import MultilabelDetails, thresholds_of
from contracts.artifacts.signature import Signature
from trainer.export.bundle.bundles import GATE_NAME
from trainer.export.bundle.shipped import Shipped
from trainer.export.gates.scores import judge_scores
from trainer.tasks.images import bundle as images
from trainer.tasks.images.gate import (
    CHUNK_IMAGES,
    MAX_SCORE_DIFFERENCE,
    Findings,
    Known,
    Predictions,
    ask_about_split,
    conclude,
    not_decidable,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainer.export.bundle.bundles import Bundle
    from trainer.export.gates.arrays import StoredArrays
    from trainer.export.gates.proof import TestSplit
    from trainer.export.gates.scores import Scores
    from trainer.export.inputs import Inputs

# A score that is so near to its threshold may be on its other side where sums are grouped in another way: float32 has
# 6e-8 at 1, and batches of another size were seen 1e-6 apart.
NEAR = 1e-5

_ABOUT_THRESHOLDS = (
    "Thresholds have the largest F1 of each class on the validation split: where a wrong label costs more or less than "
    "a missed one, choose others."
)

check_checkpoint = images.check_checkpoint
make_noise = images.make_noise
read_inputs = images.read_inputs
read_labels = images.read_labels
predict = images.predict
judge_metric = judge_scores


def write_bundle(folder: Path, inputs: Inputs, signature: Signature, *, model_name: str, max_batch: int) -> list[str]:
    """Write labels.json with the thresholds, preprocess.json and predict.py."""
    checkpoint = inputs.checkpoint
    thresholds = _thresholds(checkpoint)
    return images.write_files(
        folder,
        checkpoint,
        signature,
        prepared=inputs.shards.prepared,
        labels=[
            {"label": name, "threshold": threshold}
            for name, threshold in zip(checkpoint.classes, thresholds, strict=True)
        ],
        activation="sigmoid",
        model_name=model_name,
        max_batch=max_batch,
    )


def check_bundle(
    shipped: Shipped, inputs: Inputs, split: TestSplit, outputs: StoredArrays, scores: Mapping[str, Scores]
) -> Gate:
    """Run the shipped predict.py, and compare its labels with the trainer's own way and with evaluation.json."""
    evaluation, missing = inputs.find_evaluation()
    if split.places is not None:  # it has counted other images as well
        evaluation, missing = None, f"{split.samples} of {inputs.shards.splits['test'].samples} test samples"
    gate = try_program(
        shipped,
        own=OwnWay(_logits(outputs, split.samples), _thresholds(inputs.checkpoint), inputs.shards.classes),
        expected=None if evaluation is None else MultilabelDetails.of(evaluation),
        known=(split.inputs, outputs),
    )
    if not missing:
        return gate
    return gate.model_copy(update={"reason": "; ".join(part for part in (gate.reason, missing) if part)})


def check_again(shipped: Shipped, document: ExportManifest, work: Path) -> Gate:
    """Run this package's own predict.py on the folder's files, and count as the gate of the export has counted."""
    recorded = next((gate for gate in document.gates if gate.name == GATE_NAME), None)
    tried = images.lay_out_again(shipped, document, work)
    return try_program(tried, recorded=None if recorded is None else recorded.figures)


def introduce(document: ExportManifest, checkpoint: CheckpointManifest | None) -> tuple[str, list[str]]:
    """Return what the model card calls the model, and what it says of it: normalisation, classes and thresholds."""
    about = (
        "An image in, one score (logit) for each class out. Its sigmoid is a probability; an image has every class "
        "whose probability is at or above the threshold of the class in `labels.json`: any number of them."
    )
    more = [] if checkpoint is None else images.describe_classes(checkpoint)
    return "image classifier with several labels", [about, *more]


def describe_use() -> list[str]:
    """Return what the model card says of predict.py and `shardline predict`."""
    return [
        *images.describe_use(),
        "`--top K` prints the K highest scores of an image, whether they reach their threshold or not.",
    ]


def describe_limits() -> list[str]:
    """Return what the model card warns of."""
    return [
        "What was measured is that of images like those of the test split; nothing is known of others.",
        _ABOUT_THRESHOLDS,
        "Scores are not calibrated probabilities: a large one is no promise.",
    ]


@dataclass
class OwnWay:
    """Labels of the test split by the trainer's own way, compared with those of the program as they come."""

    logits: Iterator[npt.NDArray[np.float32]]
    """Of each image [classes], in the order of the split."""
    thresholds: Sequence[float]
    """Of each class."""
    classes: Sequence[str]
    images: int = 0
    other_sets: int = 0
    """Images of which the program says other labels, but for those whose score is near to its threshold."""
    near: int = 0
    """Scores within `NEAR` of their threshold."""
    score_difference: float = 0.0
    """Largest, over labels that both say."""
    first: str = ""
    """The first image with other labels."""

    def compare(self, predictions: Predictions | None) -> None:
        """Take in what the program said of the next image; None: nothing."""
        # Here: they are imported by those processes alone that compute.
        import numpy as np

        from trainer.tasks.images.predict import sigmoid

        scores, thresholds = sigmoid(next(self.logits)), np.array(self.thresholds)
        near = self._named(np.abs(scores - thresholds) <= NEAR)
        self.near += len(near)
        self.images += 1
        if predictions is None:
            return
        own, said = self._named(scores >= thresholds), dict(predictions)
        if different := (own.keys() ^ said.keys()) - near.keys():
            self.other_sets += 1
            self.first = self.first or f"the first is image {self.images} with {min(different)}"
        for name in own.keys() & said.keys():
            self.score_difference = max(self.score_difference, abs(said[name] - float(scores[own[name]])))

    def _named(self, chosen: npt.NDArray[np.bool_]) -> dict[str, int]:
        return {self.classes[place]: place for place in chosen.nonzero()[0].tolist()}


@dataclass
class _Counts:
    """What the program's answers come to."""

    predicted: dict[str, int] = field(default_factory=dict)
    right: dict[str, int] = field(default_factory=dict)
    sets: set[frozenset[str]] = field(default_factory=set)
    exact: int = 0

    def add(self, label: Sequence[int], predictions: Predictions | None, classes: Sequence[str]) -> None:
        if predictions is None:
            return
        said, own = frozenset(name for name, _ in predictions), {classes[place] for place in label}
        self.sets.add(said)
        self.exact += said == own
        for name in said:
            self.predicted[name] = self.predicted.get(name, 0) + 1
            self.right[name] = self.right.get(name, 0) + (name in own)

    def figures(self) -> dict[str, Figure]:
        said, right = sum(self.predicted.values()), sum(self.right.values())
        return {"labels_said": said, "labels_right": right, "sets_right": self.exact}

    def difference(self, expected: MultilabelDetails) -> int:
        """Return how many labels must have changed sides for an evaluation to be this one, at least."""
        return max(
            sum(abs(self.predicted.get(one.name, 0) - one.predicted) for one in expected.classes),
            sum(abs(self.right.get(one.name, 0) - one.right) for one in expected.classes),
        )


def try_program(
    shipped: Shipped,
    *,
    own: OwnWay | None = None,
    expected: MultilabelDetails | None = None,
    recorded: Mapping[str, Figure] | None = None,
    known: Known | None = None,
) -> Gate:
    """Run the shipped predict.py on the files of the test split, and compare the labels that it says of each.

    Args:
        shipped: The export, and the images.
        own: The trainer's own way; None: it cannot be had.
        expected: What evaluation.json says; None: there is none, or what computed it is no fp32.
        recorded: Figures of the gate when the export was made.
        known: What the graph gave for the trainer's own inputs; None: it runs again for all.

    Returns:
        The gate. Figures: images, coloured_images, classes_predicted, unanswered, mean_score (of the labels said),
        labels_said, labels_right (of the image), sets_right (images of which exactly their labels are said), and the
        differences that limits are for.

    Raises:
        DataError: A shard is damaged.
    """
    shards = shipped.shards
    if not shards.splits["test"].samples:
        return not_decidable("the test split is empty", precision="fp32")
    if own is None and expected is None and recorded is None:
        return not_decidable("nothing to compare with", precision="fp32")
    counts = _Counts()

    def judge(label: Sequence[int], predictions: Predictions | None) -> None:
        counts.add(label, predictions, shards.classes)
        if own is not None:
            own.compare(predictions)

    found = ask_about_split(shipped, top=None, judge=judge, known=known)
    figures, limits, reasons = counts.figures(), dict[str, float](), list[str]()
    near = float(recorded.get("near_threshold") or 0) if recorded is not None else 0.0
    if own is not None:
        near = own.near
        figures |= {"other_sets": own.other_sets, "near_threshold": near, "score_difference": own.score_difference}
        limits |= {"other_sets": 0.0, "score_difference": MAX_SCORE_DIFFERENCE}
        if own.other_sets:
            reasons.append(f"{own.other_sets} images have other labels than the trainer's own way ({own.first})")
        if own.score_difference > MAX_SCORE_DIFFERENCE:
            reasons.append(f"scores are up to {own.score_difference:.3g} from the trainer's own way")
    if expected is not None:
        difference = counts.difference(expected)
        figures["evaluation_difference"], limits["evaluation_difference"] = difference, near
        if difference > near:
            reasons.append(f"{difference} labels differ from {EVALUATION_NAME}")
    if recorded is not None:
        reasons += _differ_from_recorded(found, figures, recorded, near)
    # Of a program that failed, its own words say more than what it did not count.
    if found.failure:
        reasons = []
    undecided = "of every image the same labels are said: it says nothing about pixels" if len(counts.sets) < 2 else ""
    return conclude(found, reasons, figures=figures, limits=limits, undecided=undecided, precision="fp32")


def _differ_from_recorded(
    found: Findings, figures: Mapping[str, Figure], recorded: Mapping[str, Figure], near: float
) -> Iterator[str]:
    for name in ("labels_said", "labels_right", "sets_right"):
        then, now = recorded.get(name), figures[name]
        if not isinstance(then, int | float) or abs(float(now or 0) - then) > near:
            yield f"{name} is {now}, and was {then} when the export was made"
            return
    then = recorded.get("mean_score")
    if not near and isinstance(then, float) and abs((found.mean_score or 0.0) - then) > MAX_SCORE_DIFFERENCE:
        yield f"the average score is {found.mean_score}, and was {then} when the export was made"


def _thresholds(checkpoint: CheckpointManifest) -> list[float]:
    return thresholds_of(checkpoint.calibration, len(checkpoint.classes))


def _logits(outputs: StoredArrays, samples: int) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the logits [classes] of the first samples."""
    for batch in outputs.batches(CHUNK_IMAGES, most=samples):
        (logits,) = batch.values()
        yield from logits


if TYPE_CHECKING:
    from trainer.tasks.image_multilabel import bundle

    _is_bundle: Bundle = bundle
