"""What an export of a task of images has beside graphs: labels.json, preprocess.json and predict.py.

Here: the functions of trainer/export/bundle/bundles.py that are the same for all such tasks, and what the others are
made of. predict.py is copied from this package byte for byte and knows nothing of it. Its gate is in gate.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from contracts import storage
from contracts.artifacts import CheckpointManifest, ExportManifest, Prepared
from contracts.artifacts.signature import Signature
from contracts.config import RunConfig, ShardingSection
from contracts.errors import ConfigError, StorageError
from pages.markdown import code
from trainer.export.bundle import shipped as programs
from trainer.export.bundle.bundles import PREDICT_NAME
from trainer.export.bundle.shipped import Shipped
from trainer.tasks.classes.labels import LABELS_NAME, list_classes, write_json
from trainer.tasks.images.names import PREPROCESS_NAME, class_of

if TYPE_CHECKING:
    from trainer.export.gates.arrays import Arrays, StoredArrays
    from trainer.predict.checked_folder import CheckedFolder
    from trainer.tasks.protocol import Task

# Of images that are read at a time for an engine.
_READ_IMAGES = 32
_NOISE_SEED = 0
# Of changed JPEGs where sharding changes none.
_JPEG_QUALITY = 90
_USE_PREPROCESSING = (
    "Preprocessing is part of the model: `preprocess.json` says what it is, `predict.py` does it. Another resize or "
    "normalisation costs accuracy without an error."
)


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
    batch = {**task.example(samples), name: torch.from_numpy(pixels)}
    return {name: task.to_model(batch, Mode(training=False))[name].numpy()}


def write_files(
    folder: Path,
    checkpoint: CheckpointManifest,
    signature: Signature,
    *,
    prepared: Prepared | None,
    labels: Sequence[object],
    activation: Literal["softmax", "sigmoid"],
    model_name: str,
    max_batch: int,
) -> list[str]:
    """Write labels.json, preprocess.json and predict.py into a folder; return their names.

    Args:
        folder: Where the graphs lie.
        checkpoint: Its evaluation transform.
        signature: Names of input and output.
        prepared: What sharding did to the pixels; None: nothing.
        labels: Entries of labels.json.
        activation: What makes scores of logits.
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
        "background": prepared.background if prepared is not None else None,
        "convert": prepared.convert if prepared is not None else [],
        "resize": prepared.resize if prepared is not None else None,
        "jpeg_quality": prepared.jpeg_quality if prepared is not None else _JPEG_QUALITY,
        "max_pixels": prepared.max_pixels if prepared is not None else ShardingSection().max_pixels,
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
    if activation != "softmax":
        # Without the entry softmax is meant.
        preprocessing["activation"] = activation
    write_json(folder / LABELS_NAME, labels)
    write_json(folder / PREPROCESS_NAME, preprocessing)
    return [LABELS_NAME, PREPROCESS_NAME, *programs.write_program(folder, _own_program())]


def lay_out_again(shipped: Shipped, document: ExportManifest, work: Path) -> Shipped:
    """Return the same with this package's own predict.py in a new folder (trainer/export/bundle/shipped.py)."""
    return programs.lay_out_again(shipped, document, work, (LABELS_NAME, PREPROCESS_NAME), program=_own_program())


def read_inputs(shipped: Shipped, document: ExportManifest, work: Path) -> StoredArrays:
    """Return the images that the gates took of the test split, as preprocess.json says."""
    import numpy as np

    from records.decode import Pixels, UndecodableImage
    from trainer.data.reader import ShardReader
    from trainer.export.gates.arrays import store_arrays
    from trainer.export.gates.samples import samples_of
    from trainer.tasks.images.predict import Preprocessing
    from trainer.tasks.images.transforms import EvaluationTransform

    said = Preprocessing.read(shipped.folder / PREPROCESS_NAME)
    mean, std = said.mean, said.std
    transform = EvaluationTransform(
        said.image_size, (mean[0], mean[1], mean[2]), (std[0], std[1], std[2]), said.max_pixels
    )
    chosen = samples_of(document, shipped.shards_uri, shipped.shards)
    reader = ShardReader(shipped.shards_uri, shipped.shards, "test", scattered=chosen is not None)
    wanted = range(len(reader)) if chosen is None else chosen

    def decode(place: int) -> Pixels:
        try:
            return transform.decode(reader.sample(place)["image"])
        except UndecodableImage as error:
            raise reader.undecodable(place, error) from None

    def batches() -> Iterator[Arrays]:
        for start in range(0, len(wanted), _READ_IMAGES):
            places = list(wanted[start : start + _READ_IMAGES])
            reader.prepare(places)
            pixels = np.stack([decode(place) for place in places])
            yield {said.input: transform.normalise(pixels).numpy()}

    return store_arrays(work / "test-inputs", batches())


def read_labels(folder: Path) -> list[str] | None:
    """Return the names of the classes."""
    return [class_of(entry) for entry in json.loads((folder / LABELS_NAME).read_text(encoding="utf-8"))]


def describe_classes(checkpoint: CheckpointManifest) -> list[str]:
    """Return what the model card says of normalisation and classes."""
    mean, std = checkpoint.data["mean"], checkpoint.data["std"]
    return [
        f"Pixels / 255 are normalised with mean {code(str(mean))}, std {code(str(std))}.",
        list_classes(checkpoint.classes),
    ]


def describe_use() -> list[str]:
    """Return what the model card says of predict.py and `shardline predict`."""
    return [
        "On any machine, with numpy, Pillow and onnxruntime (CPU):",
        "    python predict.py IMAGE...",
        "With shardline, on a GPU that an engine was built for with that engine, elsewhere with the graph:",
        "    shardline predict FOLDER IMAGE...",
        _USE_PREPROCESSING,
    ]


def predict(folder: CheckedFolder, options: argparse.Namespace) -> int:
    """Print the labels of images."""
    # Here: it imports numpy and Pillow.
    from trainer.predict.predict_task import answer_samples
    from trainer.tasks.images.predict import KIND, Classifier, open_files

    def open_remote(take: Callable[[str], Path]) -> Classifier:
        return replace(open_files(take), read=_read, list_files=_list_files)

    return answer_samples(folder, options, KIND, open_remote)


def _read(image: str) -> bytes:
    """Return the content of an image at a path or URI; OSError where it cannot be read."""
    if "://" not in image:
        return Path(image).read_bytes()
    try:
        return storage.read_bytes(storage.normalise(image))
    except StorageError as error:
        raise OSError(error.given) from None


def _list_files(image: str) -> list[str] | None:
    """Return the files of a folder (of a bucket: a URI that ends with /); None: it is none."""
    from trainer.tasks.images.predict import list_folder

    if "://" not in image:
        return list_folder(image)
    if not image.endswith("/"):
        return None
    uri = storage.normalise(image)
    return [storage.join(uri, *entry.name.split("/")) for entry in storage.list_objects(uri)]


def _own_program() -> Path:
    return Path(__file__).with_name(PREDICT_NAME)
