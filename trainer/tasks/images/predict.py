"""Classify image files with the ONNX model of this export.

    python predict.py IMAGE... [--top K] [--format text|json|csv] [--url http://HOST:8000]
    python predict.py FOLDER                   the images in and below a folder
    python predict.py --lines FILE             one path a line; - is standard input
    python predict.py --manifest FILE.csv      paths in its column "file", or --column NAME

It needs Python 3.10 or newer, numpy, Pillow and onnxruntime, and beside it
serving.py, reading.py and runtimes.py (options, samples
and answers: serving.py says more), preprocess.json (what is done with pixels), labels.json (names of the classes) and
the model that preprocess.json names. Where an image has one class, the answer is the K likeliest with their
probabilities (softmax of the model's outputs). Where it may have several (preprocess.json: activation sigmoid),
labels.json has a threshold for each class, and the answer is every class whose score is at or above its threshold; with
--top the K with the highest scores, whether they reach their threshold or not. Exit codes: 0; 2 for a bad argument, a
folder that is not whole, or an image that cannot be used: all others are answered.

Pixels are those that the model was evaluated with: the whole image is decoded (16-bit grey is scaled to 8 bits),
changed as the training images were when they were sharded (preprocess.json: background, convert, resize, jpeg_quality),
cut and resized by Pillow, normalised in float32. Of a file that sharding kept or stored without loss they are equal to
the bit; one that it encoded again as JPEG is encoded again here, by the Pillow of this machine.
"""

from __future__ import annotations

import io
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from trainer.predict import runtimes, serving
else:
    # The shipped file: isolated (-I), Python does not look into its folder, and no file is to be written there.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    sys.dont_write_bytecode = True
    import reading

    # Before anything else imports them, which would find files of this folder first.
    reading.require_packages({"numpy": "numpy", "PIL": "Pillow"})
    import runtimes
    import serving

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
# Names of files and folders in a folder that are no images, in lower case, beside hidden ones: those of
# sharding/names.py. A file that is named is tried whatever it is called.
IGNORED_NAMES = frozenset(
    {
        "thumbs.db",
        "ehthumbs.db",
        "desktop.ini",
        "icon\r",
        "__macosx",
        "@eadir",
        "$recycle.bin",
        "system volume information",
        "lost+found",
    }
)
# Of files that were left out, in messages.
_MOST_NAMED = 3
KIND = serving.Kind(
    noun="images",
    argument="IMAGE",
    allowed="image files in jpeg, png, webp, gif, bmp, tiff or ppm",
    column="file",
    key="file",
)

Pixels = npt.NDArray[np.uint8]
Array = npt.NDArray[np.float32]

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
# Changes that sharding may have made; depth needs nothing here: pixels are 8-bit anyway, and its files are lossless.
_CHANGES = ["cmyk", "depth", "orientation"]
# What undoes each value of the tag (EXIF 2.32, 4.6.4): number of quarter turns counter-clockwise, then mirrored or not.
_TURNS = {2: (0, True), 3: (2, False), 4: (2, True), 5: (3, True), 6: (3, False), 7: (1, True), 8: (1, False)}
_ORIENTATION_TAG = 0x0112
_GREY_MODES = ("1", "L", "LA", "I", "F")

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


@dataclass(frozen=True)
class Preprocessing:
    """What preprocess.json says; every entry is obeyed, and one that is not known is refused."""

    format_version: int
    model: str
    """Path of the ONNX model, below this file's folder."""
    labels: str
    """File name of the list of class names, in the order of the logits."""
    input: str
    """Name of the model's input."""
    output: str
    """Name of the model's output."""
    max_batch: int
    """Most images at a time."""
    background: str | None
    """Colour that a transparent image is laid on: white, black or #rrggbb. None: transparency is dropped."""
    convert: list[str]
    """Of `_CHANGES` those that are made: CMYK to RGB, 16 bits to 8, turned as the EXIF orientation says."""
    resize: int | None
    """Shorter side in pixels that a larger image is shrunk to, before it is cut. None: it keeps its size."""
    jpeg_quality: int
    """Of a changed image that came with lossy compression, 1 to 100."""
    max_pixels: int
    """Most pixels, width times height, of an image."""
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
        allowed = "; ".join(f"{name} one of {choices}" for name, choices in _CHOICES.items())
        allowed += "; names, sizes from 1, numbers by channel"
        return cls(**runtimes.read_entries(path, _RULES, ["activation"], allowed))

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of one image as the model takes it."""
        size = self.image_size
        return (3, size, size) if self.layout == "NCHW" else (size, size, 3)

    def load(self, content: bytes) -> Pixels:
        """Map an image file to pixels [S, S, 3] uint8 RGB, cut and resized.

        Raises:
            BadSample: It is no image that can be used.
        """
        pixels = self.prepare(content)
        height, width = pixels.shape[:2]
        size = self.image_size
        box = (0, 0, width, height)
        if self.crop == "center":
            side = min(height, width)
            top, left = (height - side) // 2, (width - side) // 2
            box = (left, top, left + side, top + side)
        return np.asarray(Image.fromarray(pixels).resize((size, size), _FILTERS[self.filter], box=box))

    def prepare(self, content: bytes) -> Pixels:
        """Decode an image file, and change it as sharding did: [H, W, 3] uint8 RGB.

        Raises:
            BadSample: It is no image that can be used.
        """
        image = decode(content, self.background, self.max_pixels)
        pixels, changed = image.pixels, "cmyk" in self.convert and image.mode == "CMYK"
        if "orientation" in self.convert and (turn := _TURNS.get(image.orientation)):
            pixels = np.rot90(pixels, turn[0])
            pixels, changed = (pixels[:, ::-1] if turn[1] else pixels), True
        if self.resize is not None and min(pixels.shape[:2]) > self.resize:
            pixels, changed = _shrink(pixels, self.resize), True
        if changed and image.lossy and not image.transparent:
            return _through_jpeg(pixels, image.mode, self.jpeg_quality)
        return np.ascontiguousarray(pixels)

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


@dataclass(frozen=True)
class Classifier:
    """Preprocessing and labels of a model (serving.Model)."""

    preprocessing: Preprocessing
    labels: list[str]
    thresholds: list[float] = field(default_factory=list)
    """Of each label, where an image may have several."""
    read: Callable[[str], bytes] = lambda path: Path(path).read_bytes()
    """Returns the content of a path; OSError: it cannot be read."""
    list_files: Callable[[str], list[str] | None] = field(default_factory=lambda: list_folder)
    """Returns the files in and below a folder; None: it is none."""
    columns: tuple[str, ...] = ()
    left_out: list[str] = field(default_factory=list)
    """Files of folders that no image is called like."""

    @property
    def graph(self) -> runtimes.Graph:
        """What preprocess.json says of the graph."""
        said = self.preprocessing
        return runtimes.Graph(said.model, {said.input: (said.dtype, (None, *said.input_shape))}, [said.output])

    @property
    def batch(self) -> int:
        """Images at a time."""
        return min(_BATCH, self.preprocessing.max_batch)

    def expand(self, argument: str) -> Iterator[serving.Asked]:
        """Yield a file itself; of a folder the files in and below it that sharding takes, by name."""
        found = self.list_files(argument)
        if found is not None:
            found, left_out = choose_images(found, argument)
            self.left_out.extend(left_out)
        for file in [argument] if found is None else found:
            yield serving.Asked(file, file)

    def prepare(self, asked: serving.Asked) -> Pixels:
        """Return the pixels of a file."""
        try:
            return self.preprocessing.load(self.read(asked.value))
        except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
            raise serving.BadSample(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None

    def answer(self, samples: Sequence[Pixels], run: runtimes.Runner, top: int | None) -> list[dict[str, Any]]:
        """Return the labels of images [S, S, 3] uint8 RGB.

        Raises:
            ValueError: There are more than the model takes.
            BadFolder: There are more or fewer logits than labels.
        """
        said = self.preprocessing
        if len(samples) > said.max_batch:
            raise ValueError(f"{len(samples)} images in a batch: the model takes {said.max_batch} at most")
        logits = run({said.input: said.normalise(np.stack(samples))})[said.output]
        return [self.predict(row, top) for row in runtimes.check_logits(logits, len(samples), self.labels)]

    def predict(self, logits: Array, top: int | None) -> dict[str, Any]:
        """Return what is said of one image.

        Args:
            logits: [classes].
            top: Most labels; None: all that reach their threshold, or without thresholds 3.
        """
        if not np.isfinite(logits).all():
            return {"error": "the model's outputs for it are not finite numbers"}
        if not self.thresholds:
            return {"predictions": runtimes.likeliest(logits, self.labels, top or _TOP)}
        places = np.argsort(-logits, kind="stable")
        scores, limits = sigmoid(logits), self.thresholds
        chosen = places[:top] if top else [place for place in places if scores[place] >= limits[place]]
        found = [
            {"label": self.labels[place], "score": float(scores[place]), "threshold": limits[place]} for place in chosen
        ]
        return {"predictions": found}

    def notes(self) -> list[str]:
        """Return which files of folders were left out."""
        return [_describe_left_out(self.left_out)] if self.left_out else []


def list_folder(path: str) -> list[str] | None:
    """Return the files in and below a folder; None: it is none."""
    return [str(file) for file in Path(path).rglob("*") if file.is_file()] if Path(path).is_dir() else None


def choose_images(files: Sequence[str], folder: str) -> tuple[list[str], list[str]]:
    """Return the files of a folder that sharding would take, by name, and those that it leaves out.

    Raises:
        BadInput: There is none of the former.
    """
    images: list[str] = []
    left_out: list[str] = []
    for name in sorted(files):
        # Of a bucket they are URIs.
        below = name[len(folder.rstrip("/")) :].split("/") if "://" in folder else Path(name).relative_to(folder).parts
        (left_out if any(map(_is_ignored, below)) else images).append(name)
    if not images:
        raise runtimes.BadInput(
            f"folder {folder} holds no images" + (f": {_describe_left_out(left_out)}" if left_out else ""),
            allowed="image files, whatever they are called, but not hidden ones and what systems leave beside them",
            todo="correct the path, or name the files themselves",
        )
    return images, left_out


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name.lower() in IGNORED_NAMES


def _describe_left_out(files: Sequence[str]) -> str:
    named = ", ".join(files[:_MOST_NAMED]) + (", ..." if len(files) > _MOST_NAMED else "")
    return f"{len(files)} files were left out by their names, as sharding does: {named}"


def open_files(take: serving.Take) -> Classifier:
    """Open preprocess.json and the labels.

    Raises:
        BadFolder: A file is missing or cannot be used.
    """
    preprocessing = Preprocessing.read(take(PREPROCESS_NAME))
    labels, thresholds = read_labels(take(preprocessing.labels), preprocessing)
    return Classifier(preprocessing, labels, thresholds)


def read_labels(path: Path, preprocessing: Preprocessing) -> tuple[list[str], list[float]]:
    """Read the names of the classes, and their thresholds where an image may have several.

    Raises:
        BadFolder: The file is missing, or is no list of names, or of names with thresholds.
    """
    if preprocessing.activation == "softmax":
        return runtimes.read_labels(path), []
    labels = runtimes.read_json(path)
    is_list = isinstance(labels, list) and bool(labels)
    if not is_list or not all(_is_label(label) for label in labels):
        raise runtimes.BadFolder(
            f"{path} is no list of names and thresholds",
            allowed='a JSON list of {"label": TEXT, "threshold": NUMBER} with numbers from 0 to 1',
        )
    return [label["label"] for label in labels], [float(label["threshold"]) for label in labels]


@dataclass(frozen=True)
class Decoded:
    """An image file's pixels, and what it was stored as."""

    pixels: Pixels
    """[H, W, 3] RGB."""
    mode: str
    """Colour mode of the file, in Pillow's terms."""
    lossy: bool
    """Whether its format loses detail: JPEG, WebP."""
    transparent: bool
    """Whether it was laid on a background that shows."""
    orientation: int
    """By its EXIF tag, 1 to 8; 1: upright."""


def decode(content: bytes, background: str | None, max_pixels: int) -> Decoded:
    """Decode an image file. The format is found by content, never by the name.

    Args:
        content: The file.
        background: Colour that a transparent image is laid on; None: transparency is dropped.
        max_pixels: Most pixels of an image.

    Raises:
        BadSample: It is empty, of no known format, damaged, or too large.
    """
    if not content:
        raise serving.BadSample("the file is empty")
    opener = next((opener for starts, opener in _FORMATS if content.startswith(starts)), None)
    if opener is None:
        raise serving.BadSample("not an image of a known format (jpeg, png, webp, gif, bmp, tiff, ppm)")
    try:
        orientation = _read_orientation(content, opener)
        with opener(io.BytesIO(content)) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise serving.BadSample(f"{width} x {height} pixels are more than the limit of {max_pixels}")
            image.load()
            lossy, laid = opener in (Jpeg.JpegImageFile, WebP.WebPImageFile), _lay_on(background, image)
            pixels = _to_rgb(image) if laid is None else laid
            return Decoded(pixels, image.mode, lossy, laid is not None, orientation)
    except _PILLOW_ERRORS as error:
        raise serving.BadSample(f"damaged image: {error or type(error).__name__}") from None


def sigmoid(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Map each logit to a probability of its own."""
    # Of numbers below 0 alone: powers of others leave the range of floats.
    powers: npt.NDArray[np.float64] = np.exp(-np.abs(logits.astype(np.float64)))
    return np.where(logits >= 0, 1.0, powers) / (1.0 + powers)


def _read_orientation(content: bytes, opener: Callable[[io.BytesIO], Image.Image]) -> int:
    if opener is Tiff.TiffImageFile:
        # Pillow turns it while it is decoded.
        return 1
    try:
        with opener(io.BytesIO(content)) as image:
            value = image.getexif().get(_ORIENTATION_TAG, 1)
    except _PILLOW_ERRORS:
        return 1
    return value if value in range(1, 9) else 1


def _lay_on(background: str | None, image: Image.Image) -> Pixels | None:
    """Return a loaded image laid on a background, [H, W, 3] uint8; None where it is opaque everywhere."""
    if background is None or not image.has_transparency_data or image.mode.startswith("I"):
        return None
    image = image.convert("RGBA")
    alpha = image.getchannel("A")
    if alpha.getextrema() == (255, 255):
        return None
    laid = Image.new("RGB", image.size, background)
    laid.paste(image, mask=alpha)
    return np.array(laid)


def _shrink(pixels: Pixels, shorter_side: int) -> Pixels:
    height, width = pixels.shape[:2]
    scale = shorter_side / min(height, width)
    size = (max(shorter_side, round(width * scale)), max(shorter_side, round(height * scale)))
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize(size, Image.Resampling.LANCZOS))


def _through_jpeg(pixels: Pixels, mode: str, quality: int) -> Pixels:
    """Return what is left of pixels [H, W, 3] that are stored as a JPEG; grey ones as a grey one."""
    is_grey = mode in _GREY_MODES and bool((pixels[..., :1] == pixels).all())
    stream = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if is_grey else pixels))
    image.save(stream, "JPEG", quality=quality, subsampling="4:2:0")
    return np.array(Jpeg.JpegImageFile(io.BytesIO(stream.getvalue())).convert("RGB"))


def _to_rgb(image: Image.Image) -> Pixels:
    """Convert a loaded image of any mode to [H, W, 3] uint8."""
    if image.mode.startswith("I;16") or image.mode == "I":
        values = np.asarray(image).astype(np.int64)
        if values.size and (values.min() < 0 or values.max() > 0xFFFF):
            raise serving.BadSample("32-bit grey values outside of 0..65535 have no agreed scale")
        # 65535 / 257 = 255: the nearest 8-bit value, where Pillow's own conversion would clip at 255.
        grey = ((values + 128) // 257).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode == "F":
        raise serving.BadSample("floating-point pixels have no agreed scale")
    if image.mode == "P" and "transparency" in image.info:
        # Straight to RGB, Pillow warns about transparency in a palette.
        image = image.convert("RGBA")
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _is_label(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"label", "threshold"} or not isinstance(value["label"], str):
        return False
    return type(value["threshold"]) in (int, float) and 0 <= value["threshold"] <= 1


def _is_colour(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"#[0-9a-f]{6}|white|black", value) is not None


def _are_channels(values: Any, least: float) -> bool:
    # A NaN is not between anything.
    numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
    return numbers and len(values) == 3 and all(least <= value <= 1e6 for value in values)


_RULES: dict[str, Callable[[Any], bool]] = {
    **{name: choices.__contains__ for name, choices in _CHOICES.items()},
    "model": runtimes.is_path_below,
    "labels": runtimes.is_file_name,
    "input": runtimes.is_text,
    "output": runtimes.is_text,
    "max_batch": runtimes.is_size,
    "background": lambda value: value is None or _is_colour(value),
    "convert": lambda value: isinstance(value, list) and all(one in _CHANGES for one in value),
    "resize": lambda value: value is None or runtimes.is_size(value),
    "jpeg_quality": lambda value: runtimes.is_size(value) and value <= 100,
    "max_pixels": runtimes.is_size,
    "image_size": runtimes.is_size,
    "mean": lambda values: _are_channels(values, -1e6),
    "std": lambda values: _are_channels(values, 1e-30),
}


if __name__ == "__main__":
    sys.exit(serving.run_program(KIND, open_files, __file__, "Classify image files."))
