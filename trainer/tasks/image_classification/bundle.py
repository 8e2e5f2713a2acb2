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
import json
import tempfile
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from contracts.artifacts import CheckpointManifest, ExportManifest, ShardManifest
from contracts.artifacts.export import Figure, Gate
from contracts.artifacts.signature import Signature
from contracts.config import DataSection, RunConfig
from contracts.errors import ConfigError
from trainer.export.bundles import GATE_NAME, PREDICT_NAME
from trainer.export.shipped import ShippedFailed, ShippedProgram, lay_out_again
from trainer.tasks.classes.accuracy import judge_accuracy
from trainer.tasks.classes.labels import LABELS_NAME, list_classes, write_json
from trainer.tasks.classes.labels import read_labels as read_labels
from trainer.tasks.classes.shipped_answers import (
    Expected,
    ShippedAnswers,
    add_reason,
    find_undecidable,
    judge_answers,
)

if TYPE_CHECKING:
    from trainer.export.arrays import Arrays, StoredArrays
    from trainer.export.bundles import Bundle
    from trainer.export.checked_folder import CheckedFolder
    from trainer.export.inputs import Inputs
    from trainer.export.proof import TestSplit
    from trainer.export.scores import Scores
    from trainer.tasks.protocol import Task

PREPROCESS_NAME = "preprocess.json"
# Images of which files lie on the disk at a time, and their bytes; twice as many, since the next are written meanwhile.
_CHUNK_IMAGES = 256
_CHUNK_BYTES = 1 << 26
# Images whose path in the source is looked at: of a bucket each one is a request.
_PATHS_LOOKED_AT = 32
# Of images that are read at a time for an engine.
_READ_IMAGES = 32
_NOISE_SEED = 0
# That the program needs.
_PACKAGES = ("onnxruntime", "numpy", "Pillow")
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


def write_bundle(folder: Path, inputs: Inputs, signature: Signature, *, model_name: str, max_batch: int) -> list[str]:
    """Write labels.json, preprocess.json and predict.py into a folder; return their names.

    Args:
        folder: Where the graphs lie.
        inputs: The checkpoint's classes and its evaluation transform.
        signature: Names of input and output.
        model_name: File name of the graph that ships.
        max_batch: Most images at a time.
    """
    checkpoint = inputs.checkpoint
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
    write_json(folder / LABELS_NAME, checkpoint.classes)
    write_json(folder / PREPROCESS_NAME, preprocessing)
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
    expected, missing = Expected.of_export(inputs, split, outputs, scores)
    gate = try_program(
        folder,
        inputs.shards_uri,
        inputs.shards,
        model_name=model_name,
        expected=expected,
        data=inputs.config.data,
        threads=threads,
    )
    return add_reason(gate, missing)


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
    tried = lay_out_again(
        folder,
        work / GATE_NAME,
        [model_name, LABELS_NAME, PREPROCESS_NAME, document.graph().name],
        program=Path(__file__).with_name(PREDICT_NAME),
    )
    return try_program(
        tried,
        shards_uri,
        shards,
        model_name=model_name,
        expected=Expected.of_finished(document),
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


def introduce(document: ExportManifest, checkpoint: CheckpointManifest | None) -> tuple[str, list[str]]:
    """Return what the model card calls the model, and what it says of it: normalisation and classes."""
    lines = ["An image in, one score (logit) for each class out; the largest is the answer."]
    if checkpoint is None:
        return "image classifier", lines
    mean, std = checkpoint.data["mean"], checkpoint.data["std"]
    lines.append(f"Pixels / 255 are normalised with mean {mean}, std {std}.")
    return "image classifier", [*lines, list_classes(checkpoint.classes)]


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


def try_program(
    folder: Path,
    shards_uri: str,
    shards: ShardManifest,
    *,
    model_name: str,
    expected: Expected,
    data: DataSection,
    threads: int,
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
        expected: What it should come to.
        data: How shards in a bucket are read.
        threads: Intra-op threads of ONNX Runtime.
        precision: Of the graph.

    Returns:
        The gate (trainer/tasks/classes/shipped_answers.py), with the figures coloured_images, source_paths and
        source_paths_with_class.

    Raises:
        DataError: A shard is damaged.
    """
    undecidable = find_undecidable(shards.splits["test"].samples, expected, precision=precision)
    if undecidable is not None:
        return undecidable
    found, coloured = _run(folder, shards_uri, shards, data, model_name=model_name, threads=threads)
    more = {"coloured_images": coloured, **_look_at_paths(shards_uri, shards)}
    gate = judge_answers(found, expected, precision=precision, packages=_PACKAGES, more=more)
    if gate.status != "not decidable" and found.samples and not coloured:
        return add_reason(gate, "no test image is coloured: channels in another order may not be seen")
    return gate


@dataclass(frozen=True)
class _Asked:
    """One image that the program is asked about."""

    truth: str
    coloured: bool


def _run(
    folder: Path, shards_uri: str, shards: ShardManifest, data: DataSection, *, model_name: str, threads: int
) -> tuple[ShippedAnswers, int]:
    """Ask the shipped program about every file of the test split; return its answers, and how many have a colour.

    The files of a chunk are asked for before the answers to the one before are read, and are deleted when they have
    been answered: two chunks lie on the disk at a time.
    """
    found, asked, coloured = ShippedAnswers("images"), deque[_Asked](), 0
    under_way: deque[Sequence[str]] = deque()
    with tempfile.TemporaryDirectory(prefix="shardline-bundle-") as name:
        work = Path(name)
        chunks = _write_images(work, shards_uri, shards, data, asked)
        options = ("--json", "--top=1", "--paths-from=-")
        program = ShippedProgram(folder, options, work=work, model_name=model_name, threads=threads)

        def take(names: Sequence[str]) -> None:
            nonlocal coloured
            for name, answer in zip(names, program.answers(names), strict=True):
                one = asked.popleft()
                coloured += one.coloured
                _take(found, one.truth, name, answer, program)
                (work / name).unlink()

        try:
            with contextlib.closing(chunks), program:
                for chunk in chunks:
                    program.ask(chunk)
                    under_way.append(chunk)
                    if len(under_way) > 1:
                        take(under_way.popleft())
                while under_way:
                    take(under_way.popleft())
                program.finish()
        except ShippedFailed as failure:
            found.failure = str(failure)
    return found, coloured


def _take(found: ShippedAnswers, truth: str, name: str, answer: dict[str, Any], program: ShippedProgram) -> None:
    """Take in what was said of an image: `file` and `predictions` (the likeliest class), or `error`."""
    try:
        if answer["file"] != name:
            raise program.misunderstood(name, answer)
        if "error" in answer:
            found.add_error(str(answer["error"]))
        else:
            best = answer["predictions"][0]
            found.add(truth, str(best["label"]), float(best["score"]))
    except (LookupError, TypeError, ValueError):
        raise program.misunderstood(name, answer) from None


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


if TYPE_CHECKING:
    from trainer.tasks.image_classification import bundle

    _is_bundle: Bundle = bundle
