"""Task-specific files of an export: labels, preprocessing, predict.py; and model inputs prepared with them.

Images and texts have labels.json, preprocess.json and predict.py (program.py, byte for byte), images pixels.py too,
texts tokenizer.json; an own task has none of them. numpy and the program are imported inside functions: stages that
reuse their output import this module too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from contracts import storage
from contracts.artifacts import ExportManifest, ShardManifest
from contracts.artifacts.multilabel import thresholds_of
from contracts.artifacts.shards import Prepared
from contracts.artifacts.signature import Signature
from contracts.config import ShardingSection
from contracts.serving import graph_level
from trainer.export.samples import SPLIT, draw_samples
from trainer.tasks.shard_checks import FIELDS

if TYPE_CHECKING:
    from trainer.export.arrays import Arrays
    from trainer.export.inputs import Inputs

PROGRAM_NAME, LABELS_NAME = "predict.py", "labels.json"
PREPROCESS_NAME, TOKENIZER_NAME = "preprocess.json", "tokenizer.json"
BUNDLE_NAMES = {
    "images": (LABELS_NAME, PREPROCESS_NAME),
    "texts": (LABELS_NAME, PREPROCESS_NAME, TOKENIZER_NAME),
}
"""Files that a program reads, besides the graph, by kind."""
_CHANGES = ("background", "convert", "resize", "jpeg_quality", "max_pixels")
_UNCHANGED = Prepared(
    background=None, convert=[], resize=None, jpeg_quality=90, max_pixels=ShardingSection().max_pixels, changed={}
)


@dataclass(frozen=True)
class ExportedFiles:
    """An export's folder on this machine, and the shards that it was made from."""

    folder: Path
    task: str
    graph: str
    """Path of the fp32 graph below the folder."""
    shards_uri: str
    shards: ShardManifest
    places: Sequence[int]
    """Samples of the test split that the gates ran."""

    @property
    def samples(self) -> int:
        """Number of samples that the gates ran."""
        return len(self.places)

    @classmethod
    def of(cls, folder: Path, document: ExportManifest, shards_uri: str, shards: ShardManifest) -> ExportedFiles:
        """Return those of a finished export."""
        places = draw_samples(shards_uri, shards, most=document.proof_samples, seed=document.proof_seed)
        return cls(folder, document.task, document.graph("fp32").name, shards_uri, shards, places)


def kind_of(task: str) -> Literal["images", "texts", "own"]:
    """Return the kind of samples of a task, by task.name."""
    if task not in FIELDS:
        return "own"
    return "images" if "image" in FIELDS[task] else "texts"


# --- files ------------------------------------------------------------------------------------------------------------


def write_bundle(folder: Path, inputs: Inputs, signature: Signature, *, model_name: str, precision: str) -> None:
    """Write the files of the task's kind into a folder.

    Args:
        folder: Folder of the graphs.
        inputs: Of the export.
        signature: Of the model.
        model_name: Path of the graph that ships, below the folder.
        precision: Of this graph.
    """
    kind, checkpoint = kind_of(inputs.config.task.name), inputs.checkpoint
    if kind == "own":
        return
    labels: Sequence[object] = checkpoint.classes
    if inputs.config.task.name == "image_multilabel":
        thresholds = thresholds_of(checkpoint.calibration, len(checkpoint.classes))
        pairs = zip(checkpoint.classes, thresholds, strict=True)
        labels = [{"label": name, "threshold": threshold} for name, threshold in pairs]
    _write_json(folder / LABELS_NAME, labels)
    (output,) = signature.outputs
    graph = {"model": model_name, "optimization": graph_level(precision), "output": output}
    if kind == "images":
        (input_name,) = signature.inputs
        prepared = inputs.shards.prepared or _UNCHANGED
        settings = {
            **graph,
            "input": input_name,
            **{name: checkpoint.data[name] for name in ("image_size", "mean", "std")},
            **prepared.model_dump(include=set(_CHANGES)),
        }
    else:
        tokens, mask = signature.inputs
        entry = inputs.shards.tokenizer
        assert entry is not None
        settings = {
            **graph,
            "tokens": tokens,
            "mask": mask,
            "max_length": checkpoint.data["max_length"],
            "padding": entry.padding,
            "multiple": signature.dimensions["length"].multiple,
        }
        (folder / TOKENIZER_NAME).write_bytes(storage.read_bytes(entry.uri(inputs.shards_uri)))
    _write_json(folder / PREPROCESS_NAME, settings)
    write_program(folder, kind)


def write_program(folder: Path, kind: str) -> None:
    """Copy the program of a kind into a folder."""
    package = Path(__file__).parent
    sources = {PROGRAM_NAME: package / "program.py"}
    if kind == "images":
        sources["pixels.py"] = package.parents[1] / "records" / "pixels.py"
    for name, source in sources.items():
        (folder / name).write_bytes(source.read_bytes())


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def class_names(labels: Sequence[Any]) -> list[str]:
    """Return the names of the classes in labels.json, in the order of the model's outputs."""
    return [entry["label"] if isinstance(entry, dict) else entry for entry in labels]


def read_labels(folder: Path) -> list[str] | None:
    """Return the names of the classes of an export, in the order of its outputs; None without labels.json."""
    path = folder / LABELS_NAME
    return class_names(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def shards_uri_of(export_uri: str, document: ExportManifest) -> str:
    """Return the folder of an export's shards: LINE/shard/FINGERPRINT.

    Args:
        export_uri: Its folder.
        document: Its manifest.
    """
    line = export_uri.rpartition("/")[0].rpartition("/")[0]
    return storage.join(line, "shard", document.shards_fingerprint)


def change_as_sharded(content: bytes, prepared: Prepared) -> tuple[bytes, bool]:
    """Return an image file as sharding stores it, and whether it is a JPEG that needed repair.

    Raises:
        UndecodableImage: Sharding would reject the image.
    """
    from PIL import ImageColor

    from records.decode import decode
    from records.pixels import Changes, change

    changes = Changes(
        **dict.fromkeys(prepared.convert, True), shorter_side=prepared.resize, jpeg_quality=prepared.jpeg_quality
    )
    background = None if prepared.background is None else ImageColor.getrgb(prepared.background)[:3]
    image = decode(content, background=background, max_pixels=prepared.max_pixels)
    changed, _ = change(image.repaired or content, image, changes)
    return changed, image.repaired is not None


# --- inputs of the model ----------------------------------------------------------------------------------------------


def read_inputs(files: ExportedFiles, rows: Sequence[int], size: int) -> Iterator[Arrays]:
    """Yield model inputs of samples in the shards, decoded as in training.

    Args:
        files: The export.
        rows: Of the samples among the gates' samples.
        size: Samples in a batch.
    """
    from records.decode import decode_rgb
    from records.pixels import centre_square
    from trainer.predict.program import open_model

    model: Any = open_model(files.folder)
    for start in range(0, len(rows), size):
        values = [value for value, _ in read_samples(files, rows[start : start + size])]
        if kind_of(files.task) == "texts":
            yield model.collate(values)
            continue
        side = model.settings["image_size"]
        yield model.collate([centre_square(decode_rgb(value, max_pixels=None), side) for value in values])


def read_samples(files: ExportedFiles, rows: Sequence[int]) -> Iterator[tuple[Any, str | None]]:
    """Yield the image file or text of each sample, and its path in the source."""
    from records.fields import FieldReader, path_in
    from records.index import SampleIndex
    from records.index import read_samples as read_stored

    first, field = files.shards.splits[SPLIT].first, "image" if kind_of(files.task) == "images" else "text"
    reader = FieldReader(files.shards, [field])
    index = SampleIndex(files.shards, files.shards_uri)
    places = [first + files.places[row] for row in rows]
    for stored in read_stored(index, files.shards_uri, places):
        yield reader.read(stored, 0)[field], path_in(stored, files.shards.format)
