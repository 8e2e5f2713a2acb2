"""What an export of image classification has beside graphs: labels.json, preprocess.json, predict.py, and their gate.

Here: the functions of trainer/export/bundles.py, and `try_program`, which runs the shipped predict.py as a user would,
on the source's own files, and counts right answers. Whatever is wrong with pixels or names on that way shows there;
parity with torch, on tensors, sees none of it. predict.py is copied from this package byte for byte and knows nothing
of it. The gate runs code of the folder that it is given: only a folder whose checksums agree with its manifest is for
it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import tempfile
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import unquote

from contracts.artifacts import EVALUATION_NAME, CheckpointManifest, ExportManifest, ShardManifest
from contracts.artifacts.export import Figure, Gate
from contracts.artifacts.signature import Signature
from contracts.config import DataSection, RunConfig
from contracts.errors import ConfigError
from trainer.export.bundles import GATE_NAME, PREDICT_NAME
from trainer.tasks.classes.accuracy import judge_accuracy
from trainer.tasks.image_classification.names import LABELS_NAME, PREPROCESS_NAME
from trainer.tasks.image_classification.shipped import ShippedFailed, ask_shipped

if TYPE_CHECKING:
    from trainer.export.arrays import Arrays, StoredArrays
    from trainer.export.bundles import Bundle
    from trainer.export.checked_folder import CheckedFolder
    from trainer.export.inputs import Inputs
    from trainer.export.proof import TestSplit
    from trainer.export.scores import Scores
    from trainer.tasks.protocol import Task

# Images of which files lie on the disk at a time, and their bytes; twice as many, since the next are written meanwhile.
_CHUNK_IMAGES = 256
_CHUNK_BYTES = 1 << 26
# Two sums over the same probabilities, in float32 and by other kernels, were seen 1e-7 apart; a mean that is off by
# 0.05 of the range moves the average probability by more than a thousandth.
MAX_SCORE_DIFFERENCE = 1e-4
# Images whose path in the source is looked at: of a bucket each one is a request.
_PATHS_LOOKED_AT = 32
# Of images that are read at a time for an engine.
_READ_IMAGES = 32
_NOISE_SEED = 0
# Of more classes the model card lists the first ones; all of them are in labels.json.
_MOST_CLASSES = 100
BAR = r"\|"
_USE_PREPROCESSING = (
    "Preprocessing is part of the model: `preprocess.json` says what it is, `predict.py` does it. Another resize or "
    "normalisation costs accuracy without an error."
)
# As classes are named whose name is no text (sharding/limits.py).
_ENCODED_NAME = "percent-encoded:"


def check_checkpoint(config: RunConfig, checkpoint: CheckpointManifest) -> None:
    """Refuse another transform than the checkpoint's.

    Raises:
        ConfigError: It is another.
    """
    for name, given in config.data.model_dump(mode="json", include={"image_size", "mean", "std"}).items():
        # An unset mean or std means that of the training split, which the checkpoint recorded.
        if given is not None and given != checkpoint.data[name]:
            raise ConfigError(
                f"data.{name} is {given}, the checkpoint was trained with {checkpoint.data[name]}",
                allowed="the transform of the checkpoint",
                todo="pass the checkpoint that was trained with this configuration, or correct the configuration",
            )


def make_noise(task: Task, samples: int) -> Arrays:
    """Return noise as images."""
    import numpy as np
    import torch

    from trainer.tasks.protocol import Mode

    ((name, spec),) = task.signature.inputs.items()
    size = cast(int, spec.shape[-1])
    pixels = np.random.default_rng(_NOISE_SEED).integers(0, 256, (samples, size, size, 3), dtype=np.uint8)
    batch = {name: torch.from_numpy(pixels), "label": torch.zeros(samples, dtype=torch.int64)}
    return {name: task.to_model(batch, Mode(training=False))[name].numpy()}


def judge_metric(*, precision: str, reference: Scores, found: Scores, samples: int, ran: str) -> Gate:
    """Hold right answers, which are counted, against those of fp32."""
    right = [round(scores.values["accuracy"] * samples) for scores in (reference, found)]
    return judge_accuracy(precision=precision, reference_right=right[0], right=right[1], samples=samples, ran=ran)


def write_bundle(
    folder: Path, checkpoint: CheckpointManifest, signature: Signature, *, model_name: str, max_batch: int
) -> list[str]:
    """Write labels.json, preprocess.json and predict.py into a folder; return their names.

    Args:
        folder: Where the graphs lie.
        checkpoint: Its classes and its evaluation transform.
        signature: Names of input and output.
        model_name: File name of the graph that ships.
        max_batch: Most images at a time.
    """
    (input_name,), (output_name,) = signature.inputs, signature.outputs
    preprocessing = {
        "format_version": 1,
        "model": model_name,
        "labels": LABELS_NAME,
        "input": input_name,
        "output": output_name,
        "max_batch": max_batch,
        "color": "RGB",
        "crop": "center",
        "image_size": checkpoint.data["image_size"],
        "filter": "bilinear",
        "range": [0, 1],
        "mean": list(checkpoint.data["mean"]),
        "std": list(checkpoint.data["std"]),
        "layout": "NCHW",
        "dtype": "float32",
    }
    (folder / LABELS_NAME).write_bytes(_as_json(checkpoint.classes))
    (folder / PREPROCESS_NAME).write_bytes(_as_json(preprocessing))
    (folder / PREDICT_NAME).write_bytes(Path(__file__).with_name(PREDICT_NAME).read_bytes())
    return [LABELS_NAME, PREPROCESS_NAME, PREDICT_NAME]


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
    tried = work / GATE_NAME
    tried.mkdir()
    for name in (model_name, LABELS_NAME, PREPROCESS_NAME, document.graph().name):
        if not (tried / name).exists():
            (tried / name).symlink_to(folder / name)
    (tried / PREDICT_NAME).write_bytes(Path(__file__).with_name(PREDICT_NAME).read_bytes())
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


def read_inputs(
    folder: Path, document: ExportManifest, shards_uri: str, shards: ShardManifest, work: Path
) -> StoredArrays:
    """Return the images of the test split as preprocess.json says."""
    import numpy as np

    from records.decode import Pixels, UndecodableImage
    from trainer.data.reader import ShardReader
    from trainer.export.arrays import store_arrays
    from trainer.tasks.image_classification.predict import Preprocessing
    from trainer.tasks.image_classification.transforms import EvaluationTransform

    said = Preprocessing.read(folder / PREPROCESS_NAME)
    mean, std = said.mean, said.std
    transform = EvaluationTransform(said.image_size, (mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))
    reader = ShardReader(shards_uri, shards, "test")

    def decode(place: int) -> Pixels:
        try:
            return transform.decode(reader.sample(place)["image"])
        except UndecodableImage as error:
            raise reader.undecodable(place, error) from None

    def batches() -> Iterator[Arrays]:
        for start in range(0, len(reader), _READ_IMAGES):
            places = list(range(start, min(start + _READ_IMAGES, len(reader))))
            reader.prepare(places)
            pixels = np.stack([decode(place) for place in places])
            yield {said.input: transform.normalise(pixels).numpy()}

    return store_arrays(work / "test-inputs", batches())


def find_contradictions(folder: Path, document: ExportManifest) -> list[str]:
    """Compare preprocess.json with the manifest, and the labels with the outputs."""
    named, ships = json.loads((folder / PREPROCESS_NAME).read_bytes()).get("model"), document.graph().name
    return [] if named == ships else [f"{PREPROCESS_NAME} names the model {named}, {ships} is what ships"]


def read_labels(folder: Path) -> list[str] | None:
    """Return the names of the classes."""
    return [str(label) for label in json.loads((folder / LABELS_NAME).read_text(encoding="utf-8"))]


def introduce(document: ExportManifest, checkpoint: CheckpointManifest | None) -> tuple[str, list[str]]:
    """Return what the model card calls the model, and what it says of it: normalisation and classes."""
    lines = ["An image in, one score (logit) for each class out; the largest is the answer."]
    if checkpoint is None:
        return "image classifier", lines
    classes = checkpoint.classes
    mean, std = checkpoint.data["mean"], checkpoint.data["std"]
    lines.append(f"Pixels / 255 are normalised with mean {mean}, std {std}.")
    shown = ", ".join(f"`{' '.join(name.replace('|', BAR).split())}`" for name in classes[:_MOST_CLASSES])
    more = f" and {len(classes) - _MOST_CLASSES} more" if len(classes) > _MOST_CLASSES else ""
    lines.append(f"{len(classes)} classes, in the order of the scores: {shown}{more} (`labels.json`).")
    return "image classifier", lines


def describe_use() -> list[str]:
    """Return what the model card says of predict.py and `shardline predict`."""
    return [
        "On any machine, with numpy, Pillow and onnxruntime (CPU):",
        "    python predict.py IMAGE...",
        "With shardline, on a GPU that an engine was built for with that engine, elsewhere with the graph:",
        "    shardline predict FOLDER IMAGE...",
        _USE_PREPROCESSING,
    ]


def describe_limits() -> list[str]:
    """Return what the model card warns of."""
    return [
        "Accuracy is that of images like those of the test split; nothing is known of others.",
        "Scores are not calibrated probabilities: a large one is no promise.",
        "It always names one of its classes, also for an image of none of them.",
    ]


def predict(folder: CheckedFolder, options: argparse.Namespace) -> int:
    """Print the labels of images."""
    # Here: it imports numpy and Pillow.
    from trainer.tasks.image_classification.answers import print_labels

    return print_labels(folder, options)


def mean_score(outputs: StoredArrays, samples: int) -> float:
    """Return the average over the first samples of the largest probability that logits [N, classes] give."""
    import numpy as np

    scores = []
    for batch in outputs.batches(_CHUNK_IMAGES, most=samples):
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
        return Gate(
            name=GATE_NAME, precision=precision, status="not decidable", ran=f"not run: {reason}", reason=reason
        )
    found = _run(folder, shards_uri, shards, data, model_name=model_name, threads=threads)
    figures = found.figures() | expected | _look_at_paths(shards_uri, shards)
    reasons, limits = list(found.reasons()), {"right_difference": 0.0}
    difference = max(abs(found.right - int(count or 0)) for count in expected.values())
    figures["right_difference"] = difference
    # Of a program that failed, its own words say more than what it did not count.
    if difference and not found.failure:
        told = ", ".join(f"{name} is {count}" for name, count in expected.items())
        reasons.append(f"{found.right} of {found.images} answers are right, {told}")
    if expected_score is not None:
        apart = None if found.mean_score is None else abs(found.mean_score - expected_score)
        figures |= {"expected_score": expected_score, "score_difference": apart}
        limits["score_difference"] = MAX_SCORE_DIFFERENCE
        if (apart is None or apart > MAX_SCORE_DIFFERENCE) and not found.failure:
            reasons.append(f"the average probability is {found.mean_score}, expected {expected_score}")
    status: Literal["passed", "failed", "not decidable"] = "failed" if reasons else "passed"
    if not reasons and len(found.predicted) < 2:
        status = "not decidable"
        reasons.append("every answer names one class: it says nothing about pixels")
    elif found.images and not found.coloured:
        reasons.append("no test image is coloured: channels in another order may not be seen")
    return Gate(
        name=GATE_NAME,
        precision=precision,
        status=status,
        ran=f"the shipped {PREDICT_NAME} with {_versions()}, on the source's files",
        figures=figures,
        limits=limits,
        reason="; ".join(reasons),
    )


@dataclass(frozen=True)
class _Asked:
    """One image that the program is asked about."""

    truth: str
    coloured: bool


@dataclass
class _Findings:
    """What came back."""

    images: int = 0
    right: int = 0
    coloured: int = 0
    unanswered: int = 0
    first_error: str = ""
    failure: str = ""
    """Why the program came to no end."""
    predicted: set[str] = field(default_factory=set)
    scores: float = 0.0

    @property
    def mean_score(self) -> float | None:
        answered = self.images - self.unanswered
        return self.scores / answered if answered else None

    def add(self, asked: _Asked, answer: dict[str, Any]) -> None:
        self.images += 1
        self.coloured += asked.coloured
        if "error" in answer:
            self.unanswered += 1
            self.first_error = self.first_error or str(answer["error"])
            return
        best = answer["predictions"][0]
        self.predicted.add(best["label"])
        self.right += best["label"] == asked.truth
        self.scores += best["score"]

    def reasons(self) -> Iterator[str]:
        if self.failure:
            yield self.failure
        if self.unanswered:
            yield f"{self.unanswered} images got no answer, the first: {self.first_error}"

    def figures(self) -> dict[str, Figure]:
        return {
            "images": self.images,
            "right": self.right,
            "coloured_images": self.coloured,
            "classes_predicted": len(self.predicted),
            "unanswered": self.unanswered,
            "mean_score": self.mean_score,
        }


def _run(
    folder: Path, shards_uri: str, shards: ShardManifest, data: DataSection, *, model_name: str, threads: int
) -> _Findings:
    """Ask the shipped program about every file of the test split."""
    found, asked = _Findings(), deque[_Asked]()
    with tempfile.TemporaryDirectory(prefix="shardline-bundle-") as work:
        chunks = _write_images(Path(work), shards_uri, shards, data, asked)
        try:
            with contextlib.closing(chunks):
                for answer in ask_shipped(folder, Path(work), chunks, model_name=model_name, threads=threads):
                    found.add(asked.popleft(), answer)
        except ShippedFailed as failure:
            found.failure = str(failure)
    return found


def _write_images(
    work: Path, shards_uri: str, shards: ShardManifest, data: DataSection, asked: deque[_Asked]
) -> Generator[list[str]]:
    """Write the files of the test split under names that tell nothing, and yield these a chunk at a time.

    What is to be known of each file is appended to `asked`.
    """
    # Here: it brings the cache of a bucket with it.
    from trainer.data.reader import ShardReader

    reader = ShardReader(shards_uri, shards, "test", data)
    names: list[str] = []
    num_bytes = 0
    with reader.read_ahead() as advance:
        for place in range(len(reader)):
            if place % _CHUNK_IMAGES == 0:
                reader.prepare(list(range(place, min(place + _CHUNK_IMAGES, len(reader)))))
                advance(place)
            sample = reader.sample(place)
            content, label = sample["image"], sample["label"]
            names.append(f"{place:09d}")
            (work / names[-1]).write_bytes(content)
            asked.append(_Asked(shards.classes[label], _is_coloured(content)))
            num_bytes += len(content)
            if len(names) == _CHUNK_IMAGES or num_bytes > _CHUNK_BYTES:
                yield names
                names, num_bytes = [], 0
    if names:
        yield names


def _is_coloured(content: bytes) -> bool:
    """Whether an image has a pixel that is not grey: only there another order of channels shows.

    A JPEG is looked at by averages of 8 x 8 pixels, at a part of the cost.
    """
    from records.decode import UndecodableImage, decode_rgb, reducible_size

    try:
        pixels = decode_rgb(content, reduction=8 if reducible_size(content) else 1)
    except UndecodableImage:
        # Sharded without a look at it; the program will say so too.
        return False
    return bool((pixels != pixels[..., :1]).any())


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


def _versions() -> str:
    named = {}
    for package in ("onnxruntime", "numpy", "Pillow"):
        try:
            named[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            # onnxruntime-gpu and others bring the same module.
            named[package] = "of another distribution"
    return ", ".join(f"{name} {version}" for name, version in named.items())


def _as_json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


if TYPE_CHECKING:
    from trainer.tasks.image_classification import bundle

    _is_bundle: Bundle = bundle
