"""Classify image files with the ONNX model of this export.

    python predict.py PATH... [--top K] [-o table|json|csv]

PATH is an image file, or a folder: all images in and below it, but those that sharding ignores by name. A row per image
has its path, its labels and their scores. Where an image has one class, these are the K likeliest (1) with their
probabilities, the softmax of the model's outputs. Where it may have several (labels.json has thresholds), they are all
classes whose score, the sigmoid, reaches their threshold; with --top the K highest. Unusable files are
named on stderr, and the exit code is then 2.

Pillow is not as strict as training with damaged files, and refuses some JPEGs that sharding repaired: those with stray
bytes, odd scan parameters or no end marker.

It needs Python 3.10, numpy, Pillow and onnxruntime, and beside it answers.py, pixels.py (the rule for pixels that
training has too), preprocess.json, labels.json and the model that preprocess.json names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import ImageColor

if TYPE_CHECKING or __package__:
    from records import pixels
    from trainer.predict import answers
    from trainer.predict.answers import Array, Row
else:
    # Shipped file: python -I does not search its folder, and bytecode must not be written there.
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import answers
    import pixels

HEADER = ("file", "labels", "scores")
# Names of files and folders that are no images, in lower case, besides hidden ones: those of sharding/names.py.
IGNORED_NAMES = {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir", "$recycle.bin"}
IGNORED_NAMES |= {"system volume information", "lost+found"}


@dataclass(frozen=True)
class Preprocessing:
    """Content of preprocess.json."""

    model: str
    """Path of the ONNX file below this folder."""
    optimization: str
    """ONNX Runtime's GraphOptimizationLevel."""
    input: str
    output: str
    image_size: int
    """Side of the model's input in pixels."""
    mean: list[float]
    std: list[float]
    background: str | None
    """Background colour of transparent images; None: transparency is dropped."""
    convert: list[str]
    """Changes of sharding: cmyk, depth, orientation."""
    resize: int | None
    """Shorter side that sharding shrank larger images to."""
    jpeg_quality: int
    max_pixels: int


@dataclass(frozen=True)
class ImageModel:
    """Preprocessing and labels of a model; without its graph."""

    preprocessing: Preprocessing
    labels: list[str]
    thresholds: list[float] | None
    """By label, where an image may have several."""

    @classmethod
    def open(cls, folder: Path) -> ImageModel:
        """Read preprocess.json and labels.json."""
        labels = json.loads((folder / "labels.json").read_bytes())
        thresholds = None
        if isinstance(labels[0], dict):
            thresholds = [entry["threshold"] for entry in labels]
            labels = [entry["label"] for entry in labels]
        preprocessing = Preprocessing(**json.loads((folder / "preprocess.json").read_bytes()))
        return cls(preprocessing, labels, thresholds)

    def prepare(self, content: bytes) -> pixels.Pixels:
        """Map an image file to pixels [S, S, 3] uint8, changed as sharding does.

        Raises:
            ValueError: It is no image that can be used.
        """
        settings = self.preprocessing
        changes = pixels.Changes(
            **dict.fromkeys(settings.convert, True), shorter_side=settings.resize, jpeg_quality=settings.jpeg_quality
        )
        background = None if settings.background is None else ImageColor.getrgb(settings.background)[:3]
        try:
            image = pixels.load_as_sharded(content, changes, background, settings.max_pixels)
        except pixels.UndecodableImage as error:
            raise ValueError(str(error)) from error
        return pixels.centre_square(image, settings.image_size)

    def collate(self, images: Sequence[pixels.Pixels]) -> dict[str, Array]:
        """Return the model's input for images [S, S, 3] uint8."""
        settings = self.preprocessing
        return {settings.input: pixels.normalise(np.stack(images), settings.mean, settings.std)}

    def answer(self, outputs: Mapping[str, Array], top: int | None) -> list[Row | None]:
        """Return labels and scores of each image of a batch, the highest first; None: outputs are not finite."""
        logits = outputs[self.preprocessing.output].astype(np.float64)
        scores = answers.softmax(logits) if self.thresholds is None else sigmoid(logits)
        rows: list[Row | None] = []
        for row, row_logits in zip(scores, logits, strict=True):
            if not np.isfinite(row_logits).all():
                rows.append(None)
                continue
            places = np.argsort(-row_logits, kind="stable").tolist()
            if self.thresholds is not None and top is None:
                places = [place for place in places if row[place] >= self.thresholds[place]]
            else:
                places = places[: top or 1]
            rows.append(([self.labels[place] for place in places], [float(row[place]) for place in places]))
        return rows


def sigmoid(logits: Array) -> npt.NDArray[np.float64]:
    """Map each logit to a probability, without overflow; training uses this function too."""
    powers: npt.NDArray[np.float64] = np.exp(-np.abs(logits.astype(np.float64)))
    return np.where(logits >= 0, 1.0, powers) / (1.0 + powers)


def main() -> int:
    """Run the command (see the top of this file); return the exit code."""
    parser = answers.make_parser("Classify image files.")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="image files, or folders of them")
    options = parser.parse_args()
    folder = Path(__file__).resolve().parent
    model = ImageModel.open(folder)
    run = answers.open_graph(folder / (options.model or model.preprocessing.model), model.preprocessing.optimization)
    unusable: list[str] = []
    files = find_images(options.paths)
    rows = answers.predict(model, run, files, lambda path: Path(path).read_bytes(), options.top, unusable)
    answers.write_rows(HEADER, rows, options.output)
    return answers.EXIT_UNUSABLE if unusable else 0


def list_folder(path: str) -> list[str] | None:
    """Return the files below a folder, relative to it; None: it is no folder."""
    folder = Path(path)
    if not folder.is_dir():
        return None
    return [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]


def find_images(paths: Sequence[str], list_folder: Callable[[str], list[str] | None] = list_folder) -> list[str]:
    """Return files, and the sorted images in folders; stderr has the number of files ignored by name."""
    files: list[str] = []
    left_out = 0
    for path in paths:
        names = list_folder(path)
        images = [name for name in names or () if not any(map(_is_ignored, name.split("/")))]
        left_out += len(names or ()) - len(images)
        # An empty folder is reported as an unreadable file.
        files += [f"{path.rstrip('/')}/{name}" for name in sorted(images)] or [path]
    if left_out:
        sys.stderr.write(f"{left_out} files were left out by their names, as sharding does\n")
    return files


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name.lower() in IGNORED_NAMES


if __name__ == "__main__":
    sys.exit(main())
