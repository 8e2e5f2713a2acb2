"""Classify image files with the ONNX model that lies beside this file.

    python predict.py IMAGE... [--top K] [--json] [--threads N] [--model FILE]
    python predict.py --paths-from FILE        one path a line; - is standard input, an empty line asks for answers now

It needs Python 3.10 or newer, numpy, Pillow and onnxruntime, and three files in its own folder: preprocess.json (what
is done with pixels), labels.json (names of the classes) and the model that preprocess.json names. It prints a line for
each image, in their order. Where an image has one class, these are the K likeliest with their probabilities (softmax of
the model's outputs). Where it may have several (preprocess.json: activation sigmoid), labels.json has a threshold for
each class, and the answer is every class whose score is at or above its threshold; with --top the K with the highest
scores, whether they reach their threshold or not. Exit codes: 0; 2 for a bad argument, a folder that is not whole, or
an image that cannot be used: all others are answered first.

Pixels are those that the model was evaluated with, to the bit: the whole image is decoded (orientation tags are not
applied, transparency is dropped, 16-bit grey is scaled), cut and resized by Pillow, normalised in float32. ONNX Runtime
runs on the CPU without graph optimisation, as in the model's proof: its fusions were seen to change what a sound
quantised model computes. Batches are cut to `max_batch` of preprocess.json.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import BmpImagePlugin as Bmp
from PIL import GifImagePlugin as Gif
from PIL import Image
from PIL import JpegImagePlugin as Jpeg
from PIL import PngImagePlugin as Png
from PIL import PpmImagePlugin as Ppm
from PIL import TiffImagePlugin as Tiff
from PIL import WebPImagePlugin as WebP

PREPROCESS_NAME = "preprocess.json"
LABELS_NAME = "labels.json"
EXIT_BAD_INPUT = 2

Pixels = npt.NDArray[np.uint8]
Array = npt.NDArray[np.float32]
Runner = Callable[[Array], Array]
"""Maps images [B, 3, S, S] or [B, S, S, 3] (preprocess.json: layout) float32 to logits [B, classes] float32."""

# A quarter of a GiB as RGB: Pillow's own threshold, at which Image.open warns.
_MAX_PIXELS = (1 << 30) // 4 // 3
# A CPU gains nothing from more images at a time, and they take memory.
_BATCH = 16
# Labels of an image without thresholds.
_TOP = 3

_FILTERS = {name.lower(): Image.Resampling[name] for name in Image.Resampling.__members__}
# What each of these entries of preprocess.json may say.
_CHOICES: dict[str, list[Any]] = {
    "format_version": [1],
    "color": ["RGB", "BGR"],
    "crop": ["center", "none"],
    "filter": list(_FILTERS),
    "range": [[0, 1], [0, 255]],
    "layout": ["NCHW", "NHWC"],
    "dtype": ["float32"],
    "activation": ["softmax", "sigmoid"],
}

# By the first bytes, and Pillow's class for each. Not Image.open: it would guess among forty formats.
_FORMATS: list[tuple[tuple[bytes, ...], Callable[[io.BytesIO], Image.Image]]] = [
    ((b"\xff\xd8\xff",), Jpeg.JpegImageFile),
    ((b"\x89PNG\r\n\x1a\n",), Png.PngImageFile),
    ((b"RIFF",), WebP.WebPImageFile),
    ((b"GIF87a", b"GIF89a"), Gif.GifImageFile),
    ((b"BM",), Bmp.BmpImageFile),
    ((b"II*\0", b"MM\0*"), Tiff.TiffImageFile),
    ((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"), Ppm.PpmImageFile),
]
# What Pillow's parsers raise on damaged files.
_PILLOW_ERRORS: tuple[type[Exception], ...] = (OSError, SyntaxError, ValueError, TypeError, LookupError, AttributeError)
_PILLOW_ERRORS += (ArithmeticError, EOFError, RuntimeError, struct.error, zlib.error, Image.DecompressionBombError)


class BadFolder(Exception):
    """The files beside this one cannot be used; the message says what was found, what is allowed and what to do."""

    def __init__(self, found: str, *, allowed: str, todo: str = "export again, or copy the whole folder again") -> None:
        super().__init__(f"{found}\n  allowed: {allowed}\n  to do: {todo}")


class BadImage(Exception):
    """A file that is no image which can be used; the message is the reason, without the file's name."""


@dataclass(frozen=True)
class Preprocessing:
    """What preprocess.json says; every entry is obeyed, and one that is not known is refused."""

    format_version: int
    model: str
    """File name of the ONNX model."""
    labels: str
    """File name of the list of class names, in the order of the logits."""
    input: str
    """Name of the model's input."""
    output: str
    """Name of the model's output."""
    max_batch: int
    """Most images at a time."""
    color: str
    """Order of the channels."""
    crop: str
    """center: the square in the centre, its side the shorter one's; none: all of the image, whatever its shape."""
    image_size: int
    """Side of the model's input in pixels."""
    filter: str
    """Pillow's filter that resizes (with antialiasing)."""
    range: list[int]
    """What 0 and 255 become before mean and std are applied."""
    mean: list[float]
    """By channel, subtracted."""
    std: list[float]
    """By channel, divided by."""
    layout: str
    """Order of the input's dimensions: N images, C channels, H rows, W columns."""
    dtype: str
    """Of the input."""
    activation: str = "softmax"
    """What makes scores of the output: softmax, where an image has one class; sigmoid, where it may have several."""

    @classmethod
    def read(cls, path: Path) -> Preprocessing:
        """Read preprocess.json.

        Raises:
            BadFolder: It is missing, is no JSON, lacks an entry, or has one that is not known or not allowed.
        """
        values = _read_json(path)
        names = [field.name for field in fields(cls)]
        needed = [field.name for field in fields(cls) if field.default is MISSING]
        found = set(values) if isinstance(values, dict) else set()
        if not isinstance(values, dict) or not set(needed) <= found <= set(names):
            missing, unknown = sorted(set(needed) - found), sorted(found - set(names))
            raise BadFolder(f"{path}: missing: {missing}; not known: {unknown}", allowed=", ".join(names))
        rules = {name: rule for name, rule in _RULES.items() if name in values}
        if wrong := [f"{name} {json.dumps(values[name])}" for name, rule in rules.items() if not rule(values[name])]:
            allowed = "; ".join(f"{name} one of {json.dumps(choices)}" for name, choices in _CHOICES.items())
            raise BadFolder(
                f"{path}: {', '.join(wrong)}", allowed=f"{allowed}; names, sizes from 1, numbers by channel"
            )
        return cls(**values)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of one image as the model takes it."""
        size = self.image_size
        return (3, size, size) if self.layout == "NCHW" else (size, size, 3)

    def load(self, content: bytes) -> Pixels:
        """Map an image file to pixels [S, S, 3] uint8 RGB, cut and resized.

        Raises:
            BadImage: It is no image that can be used.
        """
        pixels = decode_rgb(content)
        height, width = pixels.shape[:2]
        size = self.image_size
        box = (0, 0, width, height)
        if self.crop == "center":
            side = min(height, width)
            top, left = (height - side) // 2, (width - side) // 2
            box = (left, top, left + side, top + side)
        return np.asarray(Image.fromarray(pixels).resize((size, size), _FILTERS[self.filter], box=box))

    def normalise(self, images: Pixels) -> Array:
        """Map images [B, S, S, 3] uint8 RGB to the model's input.

        (x / 255 - mean) / std, in this order, each rounded to float32.
        """
        ordered = images if self.color == "RGB" else images[..., ::-1]
        channels: tuple[int, ...] = (3,)
        if self.layout == "NCHW":
            ordered, channels = ordered.transpose(0, 3, 1, 2), (3, 1, 1)
        values = np.array(ordered, dtype=np.float32, order="C")
        if self.range[1] == 1:
            values /= np.float32(255)
        values -= np.array(self.mean, np.float32).reshape(channels)
        values /= np.array(self.std, np.float32).reshape(channels)
        return values


class Prediction(NamedTuple):
    """What is said of one class."""

    label: str
    score: float
    """Probability of the class."""
    threshold: float | None = None
    """Score from which on an image has the class; None: it has one class, the likeliest."""

    def to_text(self) -> str:
        """Return it as text that is part of a line."""
        is_below = self.threshold is not None and self.score < self.threshold
        return f"{self.label} {self.score:.4f}" + (f" (below {self.threshold:.4f})" if is_below else "")


@dataclass(frozen=True)
class Answer:
    """What is said of one image."""

    path: str
    predictions: list[Prediction]
    """The highest score first."""
    error: str = ""
    """Why there is none."""

    def to_json(self) -> str:
        """Return one line of JSON."""
        found = [
            {name: value for name, value in one._asdict().items() if value is not None} for one in self.predictions
        ]
        return json.dumps({"file": self.path, **({"error": self.error} if self.error else {"predictions": found})})

    def to_text(self) -> str:
        """Return one line to be read."""
        line = f"{self.path}: " + (", ".join(one.to_text() for one in self.predictions) or "none")
        # The bytes of a path need not be text.
        return line.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class Classifier:
    """A model with its preprocessing and labels."""

    preprocessing: Preprocessing
    labels: list[str]
    runner: Runner
    thresholds: list[float] = field(default_factory=list)
    """Of each label, where an image may have several."""

    def run(self, images: Pixels) -> Array:
        """Map a batch [B, S, S, 3] uint8 RGB to logits [B, classes].

        Raises:
            ValueError: B is more than the model takes.
            BadFolder: There are more or fewer logits than labels.
        """
        if len(images) > self.preprocessing.max_batch:
            raise ValueError(f"{len(images)} images in a batch: the model takes {self.preprocessing.max_batch} at most")
        logits = self.runner(self.preprocessing.normalise(images))
        if logits.shape != (len(images), len(self.labels)):
            raise BadFolder(
                f"the model gave {list(logits.shape)} for {len(images)} images, there are {len(self.labels)} labels",
                allowed="a logit for each label",
            )
        return logits

    def classify(
        self, paths: Iterable[str | None], *, top: int | None = None, read: Callable[[str], bytes]
    ) -> Iterator[Answer]:
        """Yield an answer for each path, in order; a batch of images at a time is in memory.

        Args:
            paths: Of image files; None asks for the answers to those before it.
            top: Most labels an image; None: all that reach their threshold, or without thresholds 3.
            read: Returns the content of a path; OSError: it cannot be read.
        """
        waiting: list[tuple[str, Pixels | str]] = []
        for path in paths:
            if path is not None:
                waiting.append((path, self._load(path, read)))
            if path is None or len(waiting) == min(_BATCH, self.preprocessing.max_batch):
                yield from self._answer(waiting, top)
                waiting = []
        yield from self._answer(waiting, top)

    def _load(self, path: str, read: Callable[[str], bytes]) -> Pixels | str:
        try:
            return self.preprocessing.load(read(path))
        except BadImage as error:
            return str(error)
        except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
            return f"cannot be read: {getattr(error, 'strerror', None) or error}"

    def _answer(self, waiting: list[tuple[str, Pixels | str]], top: int | None) -> Iterator[Answer]:
        images = [pixels for _, pixels in waiting if not isinstance(pixels, str)]
        rows: Iterator[Array] = iter(self.run(np.stack(images)) if images else ())
        for path, pixels in waiting:
            if isinstance(pixels, str):
                yield Answer(path, [], pixels)
                continue
            logits = next(rows)
            if not np.isfinite(logits).all():
                yield Answer(path, [], "the model's outputs for it are not finite numbers")
                continue
            yield Answer(path, self.predict(logits, top))

    def predict(self, logits: Array, top: int | None) -> list[Prediction]:
        """Return what is said of one image.

        Args:
            logits: [classes].
            top: As for `classify`.
        """
        # By the logits: in float64 two scores of one rounding would be a tie. Of equal ones the first counts.
        places = np.argsort(-logits, kind="stable")
        if not self.thresholds:
            scores = softmax(logits)
            return [Prediction(self.labels[place], float(scores[place])) for place in places[: top or _TOP]]
        scores, limits = sigmoid(logits), self.thresholds
        chosen = places[:top] if top else [place for place in places if scores[place] >= limits[place]]
        return [Prediction(self.labels[place], float(scores[place]), limits[place]) for place in chosen]


def open_folder(folder: Path, *, model: str | None = None, threads: int = 1) -> Classifier:
    """Open what lies in a folder: preprocess.json, the labels and the model.

    Args:
        folder: Of this file's neighbours.
        model: File name of another model than preprocess.json names.
        threads: Intra-op threads of ONNX Runtime.

    Raises:
        BadFolder: A file is missing or cannot be used, or they contradict each other.
    """
    preprocessing = Preprocessing.read(folder / PREPROCESS_NAME)
    labels, thresholds = read_labels(folder / preprocessing.labels, preprocessing)
    if not (folder / preprocessing.model).is_file():
        raise BadFolder(
            f"{folder / preprocessing.model} is not there", allowed=f"the model that {PREPROCESS_NAME} names"
        )
    runner = open_model(folder / (model or preprocessing.model), preprocessing, threads)
    return Classifier(preprocessing, labels, runner, thresholds)


def read_labels(path: Path, preprocessing: Preprocessing) -> tuple[list[str], list[float]]:
    """Read the names of the classes, and their thresholds where an image may have several.

    Raises:
        BadFolder: The file is missing, or is no list of names, or of names with thresholds.
    """
    labels = _read_json(path)
    is_list = isinstance(labels, list) and bool(labels)
    if preprocessing.activation == "softmax":
        if not is_list or not all(isinstance(label, str) for label in labels):
            raise BadFolder(f"{path} is no list of names", allowed="a JSON list of texts")
        return labels, []
    if not is_list or not all(_is_label(label) for label in labels):
        raise BadFolder(
            f"{path} is no list of names and thresholds",
            allowed='a JSON list of {"label": TEXT, "threshold": NUMBER} with numbers from 0 to 1',
        )
    return [label["label"] for label in labels], [float(label["threshold"]) for label in labels]


def open_model(path: Path, preprocessing: Preprocessing, threads: int) -> Runner:
    """Return a function that runs an ONNX file on the CPU, with graph optimisation off (see the top of this file).

    Raises:
        BadFolder: The file is missing, is no model, or does not take what preprocess.json describes.
    """
    if not path.is_file():
        raise BadFolder(f"{path} is not there", allowed="the ONNX model beside predict.py")
    # Else it reports its use to its maker while it is loaded.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors: they are raised as well
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - its exceptions have no class in common
        raise BadFolder(f"{path} does not load: {error}", allowed="a whole ONNX model") from None
    inputs = {item.name: item.shape for item in session.get_inputs()}
    outputs = [item.name for item in session.get_outputs()]
    names = preprocessing.input, preprocessing.output
    shape = list(preprocessing.input_shape)
    taken = inputs.get(names[0], [])
    # A dimension that is a text is free.
    fits = len(taken) == 4 and all(
        isinstance(one, str) or one == two for one, two in zip(taken[1:], shape, strict=True)
    )
    if list(inputs) != [names[0]] or names[1] not in outputs or not fits:
        raise BadFolder(
            f"{path.name} takes {inputs} and gives {outputs}, {PREPROCESS_NAME} says {names[0]} ['batch', "
            f"{', '.join(map(str, shape))}] (layout {preprocessing.layout}) and {names[1]}",
            allowed="a model and a preprocess.json of one export",
        )

    def run(images: Array) -> Array:
        logits: Array = session.run([names[1]], {names[0]: images})[0]
        return logits

    return run


def decode_rgb(content: bytes) -> Pixels:
    """Return the pixels of an image file: [H, W, 3] uint8 RGB. The format is found by content, never by the name.

    Raises:
        BadImage: It is empty, of no known format, damaged, or too large.
    """
    if not content:
        raise BadImage("the file is empty")
    opener = next((opener for starts, opener in _FORMATS if content.startswith(starts)), None)
    if opener is None:
        raise BadImage("not an image of a known format (jpeg, png, webp, gif, bmp, tiff, ppm)")
    try:
        with opener(io.BytesIO(content)) as image:
            width, height = image.size
            if width * height > _MAX_PIXELS:
                raise BadImage(f"{width} x {height} pixels are more than the limit of {_MAX_PIXELS}")
            image.load()
            return _to_rgb(image)
    except _PILLOW_ERRORS as error:
        raise BadImage(f"damaged image: {error or type(error).__name__}") from None


def softmax(logits: Array) -> npt.NDArray[np.float64]:
    """Map logits [..., classes] to probabilities."""
    powers: npt.NDArray[np.float64] = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def sigmoid(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Map each logit to a probability of its own."""
    # Of numbers below 0 alone: powers of others leave the range of floats.
    powers: npt.NDArray[np.float64] = np.exp(-np.abs(logits.astype(np.float64)))
    return np.where(logits >= 0, 1.0, powers) / (1.0 + powers)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line (see the top of this file); return the exit code."""
    options = _parse(arguments)
    failed = False
    try:
        # Not the link's folder, where this file is reached by one.
        classifier = open_folder(Path(__file__).resolve().parent, model=options.model, threads=options.threads)
        for answer in classifier.classify(_paths(options), top=options.top, read=lambda path: Path(path).read_bytes()):
            failed |= bool(answer.error)
            if options.json:
                print(answer.to_json(), flush=True)
            elif not answer.error:
                print(answer.to_text(), flush=True)
            if answer.error:
                print(f"error: {answer.path}: {answer.error}", file=sys.stderr)
    except BadFolder as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    if failed:
        print("  allowed: image files in jpeg, png, webp, gif, bmp, tiff or ppm", file=sys.stderr)
        print("  to do: correct the paths, or leave these files out", file=sys.stderr)
    return EXIT_BAD_INPUT if failed else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Classify image files.", allow_abbrev=False)
    parser.add_argument("images", nargs="*", metavar="IMAGE")
    parser.add_argument("--paths-from", metavar="FILE", help="a file with one path a line; - is standard input")
    parser.add_argument(
        "--top", type=int, metavar="K", help="most labels an image [3; with thresholds all that reach theirs]"
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each image, also for a bad one")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of ONNX Runtime [1]")
    parser.add_argument("--model", metavar="FILE", help="another model of the same folder")
    options = parser.parse_args(arguments)
    for name in ("top", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} {value}: allowed are whole numbers from 1")
    if not options.images and options.paths_from is None:
        parser.error("no image was given: name image files, or a list of them with --paths-from")
    return options


def _paths(options: argparse.Namespace) -> Iterator[str | None]:
    """Yield the paths that were given; None for an empty line."""
    yield from options.images
    if options.paths_from is None:
        return
    source = 0 if options.paths_from == "-" else options.paths_from
    try:
        with open(source, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                yield line.rstrip("\n") or None
    except OSError as error:
        raise BadFolder(
            f"--paths-from {source}: {error.strerror}", allowed="a file with one path a line, or -", todo="correct it"
        ) from None


def _to_rgb(image: Image.Image) -> Pixels:
    """Convert a loaded image of any mode to [H, W, 3] uint8."""
    if image.mode.startswith("I;16") or image.mode == "I":
        values = np.asarray(image).astype(np.int64)
        if values.size and (values.min() < 0 or values.max() > 0xFFFF):
            raise BadImage("32-bit grey values outside of 0..65535 have no agreed scale")
        # 65535 / 257 = 255: the nearest 8-bit value, where Pillow's own conversion would clip at 255.
        grey = ((values + 128) // 257).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode == "F":
        raise BadImage("floating-point pixels have no agreed scale")
    if image.mode == "P" and "transparency" in image.info:
        # Straight to RGB, Pillow warns about transparency in a palette.
        image = image.convert("RGBA")
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise BadFolder(f"{path} cannot be read: {error.strerror}", allowed="it beside predict.py") from None
    except ValueError as error:
        raise BadFolder(f"{path} is no JSON: {error}", allowed="the file that the export wrote") from None


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and value not in ("", ".", "..") and Path(value).name == value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_label(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"label", "threshold"} or not isinstance(value["label"], str):
        return False
    return type(value["threshold"]) in (int, float) and 0 <= value["threshold"] <= 1


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 1


def _are_channels(values: Any, least: float) -> bool:
    # A NaN is not between anything.
    numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
    return numbers and len(values) == 3 and all(least <= value <= 1e6 for value in values)


_RULES: dict[str, Callable[[Any], bool]] = {
    **{name: choices.__contains__ for name, choices in _CHOICES.items()},
    "model": _is_file_name,
    "labels": _is_file_name,
    "input": _is_text,
    "output": _is_text,
    "max_batch": _is_size,
    "image_size": _is_size,
    "mean": lambda values: _are_channels(values, -1e6),
    "std": lambda values: _are_channels(values, 1e-30),
}


if __name__ == "__main__":
    try:
        code = main()
    except BrokenPipeError:
        # Whoever reads the answers has seen enough: nothing is left to be flushed at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_BAD_INPUT
    sys.exit(code)
