"""Classify image files with the ONNX model of this export.

    python predict.py PATH... [--top K] [-o table|json|csv]

PATH is an image file, or a folder: all images in and below it, but those that sharding ignores by name. A row per image
has its path, its labels and their scores. Where an image has one class, these are the K likeliest (1) with their
probabilities, the softmax of the model's outputs. Where it may have several (labels.json has thresholds), they are all
classes whose score, the sigmoid, reaches their threshold; with --top the K highest. A file that cannot be used is named
on stderr, all others are answered, and the exit code is 2.

Pillow is not as strict as training with damaged files, and refuses some JPEGs that sharding repaired: those with stray
bytes, odd scan parameters or no end marker.

It needs Python 3.10, numpy, Pillow and onnxruntime, and beside it pixels.py (the rule for pixels that training has
too), preprocess.json, labels.json and the model that preprocess.json names.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import ImageColor

if TYPE_CHECKING or __package__:
    from records import pixels
else:
    # The shipped file, isolated (python -I): its folder is not searched, and no bytecode is to be written there.
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import pixels

Array = npt.NDArray[Any]
Runner = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Maps inputs of the model to its outputs, by name."""
Row = Sequence[Any]

HEADER = ("file", "labels", "scores")
EXIT_UNUSABLE = 2
# Names of files and folders that are no images, in lower case, besides hidden ones: those of sharding/names.py.
IGNORED_NAMES = {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir", "$recycle.bin"}
IGNORED_NAMES |= {"system volume information", "lost+found"}
# A CPU gains nothing from more images at a time, and they take memory.
_BATCH = 16
_MOST_PADDED = 60


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
    """Colour that a transparent image is laid on; None: transparency is dropped."""
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
            UndecodableImage: It is no image that can be used.
        """
        settings = self.preprocessing
        changes = pixels.Changes(
            **dict.fromkeys(settings.convert, True), shorter_side=settings.resize, jpeg_quality=settings.jpeg_quality
        )
        background = None if settings.background is None else ImageColor.getrgb(settings.background)[:3]
        image = pixels.load_as_sharded(content, changes, background, settings.max_pixels)
        return pixels.centre_square(image, settings.image_size)

    def collate(self, images: Sequence[pixels.Pixels]) -> dict[str, Array]:
        """Return the model's input for images [S, S, 3] uint8."""
        settings = self.preprocessing
        return {settings.input: pixels.normalise(np.stack(images), settings.mean, settings.std)}

    def answer(self, outputs: Mapping[str, Array], top: int | None) -> list[Row | None]:
        """Return labels and scores of each image of a batch, the highest first; None: outputs are no finite numbers."""
        logits = outputs[self.preprocessing.output].astype(np.float64)
        if self.thresholds is None:
            scores = np.exp(logits - logits.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
        else:
            scores = sigmoid(logits)
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
    """Map each logit to a probability of its own, without overflow; training uses this function too."""
    powers: npt.NDArray[np.float64] = np.exp(-np.abs(logits.astype(np.float64)))
    return np.where(logits >= 0, 1.0, powers) / (1.0 + powers)


def main() -> int:
    """Run the command (see the top of this file); return the exit code."""
    if hasattr(signal, "SIGPIPE"):
        # End quietly where whoever reads the rows has seen enough (| head).
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description="Classify image files.", allow_abbrev=False)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="image files, or folders of them")
    parser.add_argument("--top", type=int, metavar="K", help="number of labels per image")
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table", help="[table]")
    parser.add_argument("--model", metavar="FILE", help="another ONNX file of this folder")
    options = parser.parse_args()
    if options.top is not None and options.top < 1:
        parser.error(f"--top {options.top}: allowed are whole numbers from 1")
    folder = Path(__file__).resolve().parent
    model = ImageModel.open(folder)
    run = open_graph(folder / (options.model or model.preprocessing.model), model.preprocessing.optimization)
    files = find_images(options.paths)
    unusable: list[str] = []
    rows = predict(model, run, files, lambda path: Path(path).read_bytes(), options.top, unusable)
    write_rows(HEADER, rows, options.output)
    return EXIT_UNUSABLE if unusable else 0


def open_graph(path: Path, optimization: str) -> Runner:
    """Return a function that runs an ONNX file on the CPU."""
    # Else it reports its use to its maker while it is loaded.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime  # type: ignore[import-untyped]

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, optimization)
    settings.log_severity_level = 3  # errors: they are raised as well
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def list_folder(path: str) -> list[str] | None:
    """Return the files in and below a folder, relative to it; None: it is no folder."""
    folder = Path(path)
    if not folder.is_dir():
        return None
    return [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]


def find_images(paths: Sequence[str], list_folder: Callable[[str], list[str] | None] = list_folder) -> list[str]:
    """Return files, and of folders the files that sharding takes, by name; say on stderr how many were left out."""
    files: list[str] = []
    left_out = 0
    for path in paths:
        names = list_folder(path)
        images = [name for name in names or () if not any(map(_is_ignored, name.split("/")))]
        left_out += len(names or ()) - len(images)
        # An empty folder is told as a file that cannot be read.
        files += [f"{path.rstrip('/')}/{name}" for name in sorted(images)] or [path]
    if left_out:
        sys.stderr.write(f"{left_out} files were left out by their names, as sharding does\n")
    return files


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name.lower() in IGNORED_NAMES


def predict(
    model: Any,
    run: Runner,
    names: Sequence[str],
    read: Callable[[str], Any],
    top: int | None,
    unusable: list[str],
) -> Iterator[Row]:
    """Yield the row of each sample, a batch at a time.

    Args:
        model: With the methods `prepare`, `collate` and `answer` of `ImageModel`.
        run: Runs its graph.
        names: Of the samples.
        read: Returns the argument of `prepare` for a name.
        top: Number of labels.
        unusable: Gets the names of samples that cannot be used, which are told on stderr.
    """

    def reject(name: str, reason: object) -> None:
        unusable.append(name)
        sys.stderr.write(f"error: {name}: {reason}\n")

    for start in range(0, len(names), _BATCH):
        usable, samples = [], []
        for name in names[start : start + _BATCH]:
            try:
                samples.append(model.prepare(read(name)))
                usable.append(name)
            except IsADirectoryError:
                reject(name, "the folder has no file that sharding takes")
            except (OSError, ValueError, pixels.UndecodableImage) as error:
                reject(name, getattr(error, "strerror", None) or error)
        answers = model.answer(run(model.collate(samples)), top) if samples else []
        for name, answer in zip(usable, answers, strict=True):
            if answer is None:
                reject(name, "the model's outputs for it are not finite numbers")
            else:
                yield (name, *answer)


def write_rows(header: Sequence[str], rows: Iterable[Row], output: str) -> None:
    """Write rows to stdout: as JSON one document per line, as CSV, or as a table, which is padded at the end."""
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    if output == "json":
        for row in rows:
            sys.stdout.write(json.dumps(dict(zip(header, row, strict=True))) + "\n")
            sys.stdout.flush()
    elif output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([cell(value, ".9g") for value in row] for row in rows)
    else:
        table = [header, *([" ".join(cell(value, ".4f").split()) for value in row] for row in rows)]
        widths = [min(_MOST_PADDED, max(map(len, column))) for column in zip(*table, strict=True)]
        for row in table:
            line = "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True))
            sys.stdout.write(line.rstrip() + "\n")


def cell(value: Any, number: str) -> str:
    """Return a value of a row as text, entries of a list separated by `; `."""
    if isinstance(value, list):
        return "; ".join(cell(entry, number) for entry in value)
    return format(value, number) if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


if __name__ == "__main__":
    sys.exit(main())
