"""Pictures for TensorBoard, light and of bounded size: a sheet of images with captions, and a confusion matrix."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from records.decode import Pixels

# Side of an image on a sheet: larger ones are made smaller, small ones larger by a whole factor.
THUMBNAIL = 128
COLUMNS = 4
_GAP, _LINE = 10, 15
# Classes of a confusion matrix that can still be read; of more, those that are confused most, and the rest as one.
MOST_CLASSES = 32
_REST = "all others"
_PAPER, _INK, _SOFT, _GRID = (255, 255, 255), (22, 27, 34), (86, 96, 112), (219, 224, 230)
_RIGHT, _WRONG = (31, 95, 191), (179, 38, 30)


def png(image: Image.Image) -> bytes:
    """Return a picture as a PNG file; equal pictures are equal bytes."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def draw_sheet(images: Sequence[Pixels], captions: Sequence[Sequence[str]]) -> Image.Image:
    """Return images in rows of four, each above its lines of text.

    Args:
        images: [H, W, 3] uint8 each.
        captions: Of each image, at most two lines.
    """
    font = _font(12)
    columns, rows = min(COLUMNS, len(images)), -(-len(images) // COLUMNS)
    width, height = THUMBNAIL + _GAP, THUMBNAIL + 2 * _LINE + _GAP
    sheet = Image.new("RGB", (columns * width + _GAP, rows * height + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, (pixels, lines) in enumerate(zip(images, captions, strict=True)):
        left, top = _GAP + number % COLUMNS * width, _GAP + number // COLUMNS * height
        thumbnail = _thumbnail(pixels)
        sheet.paste(thumbnail, (left + (THUMBNAIL - thumbnail.width) // 2, top + THUMBNAIL - thumbnail.height))
        for line, text in enumerate(lines[:2]):
            fitting = _fit(draw, printable(text), font, THUMBNAIL)
            draw.text((left, top + THUMBNAIL + 2 + line * _LINE), fitting, _INK, font)
    return sheet


def _thumbnail(pixels: Pixels) -> Image.Image:
    image = Image.fromarray(pixels)
    longest = max(image.size)
    if longest <= THUMBNAIL:
        # By a whole factor, each pixel as it is: what was trained on is to be seen.
        factor = THUMBNAIL // longest
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    width, height = (max(1, side * THUMBNAIL // longest) for side in image.size)
    return image.resize((width, height), Image.Resampling.BOX)


@dataclass(frozen=True)
class Confusion:
    """A matrix that can be drawn."""

    names: list[str]
    counts: npt.NDArray[np.int64]
    """[label, predicted]"""
    left_out: int
    """Classes that are one of the rows together."""


def choose_classes(names: Sequence[str], cells: Sequence[tuple[int, int, int]]) -> Confusion:
    """Return the matrix of all classes, or of those that were confused most, with the rest together as the last.

    Args:
        names: Of all classes.
        cells: Label, predicted class and samples of each cell that is not empty.
    """
    chosen = list(range(len(names)))
    if len(names) > MOST_CLASSES:
        wrong = np.zeros(len(names), np.int64)
        for label, predicted, samples in cells:
            if label != predicted:
                wrong[label] += samples
                wrong[predicted] += samples
        # Of equal ones the first: the choice hangs on nothing else.
        chosen = sorted(np.argsort(-wrong, kind="stable")[: MOST_CLASSES - 1].tolist())
    place = {number: row for row, number in enumerate(chosen)}
    size = len(chosen) + (len(chosen) < len(names))
    counts = np.zeros((size, size), np.int64)
    for label, predicted, samples in cells:
        counts[place.get(label, size - 1), place.get(predicted, size - 1)] += samples
    shown = [printable(names[number]) for number in chosen]
    return Confusion([*shown, _REST] if size > len(chosen) else shown, counts, len(names) - len(chosen))


def draw_confusion(confusion: Confusion) -> Image.Image:
    """Return a confusion matrix: rows are labels, columns predictions, shades shares of the row.

    What is right is blue, what is wrong is red; every cell that is not empty has its count in it. That of the other
    classes among each other is grey: it holds both.
    """
    size = len(confusion.names)
    cell = 44 if size <= 12 else 34
    font, small = _font(13), _font(12 if size <= 12 else 10)
    measure = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    names = [_fit(measure, name, font, 150) for name in confusion.names]
    margin = 34 + int(max((measure.textlength(name, font) for name in names), default=0))
    sheet = Image.new("RGB", (margin + size * cell + 12, margin + size * cell + 12), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((margin, 6), "predicted", _SOFT, font)
    draw.text((6, margin - 18), "label", _SOFT, font)
    totals = confusion.counts.sum(axis=1)
    for row in range(size):
        y = margin + row * cell
        draw.text((margin - 6, y + cell / 2), names[row], _INK, font, anchor="rm")
        column_name = Image.new("RGB", (margin - 30, 18), _PAPER)
        ImageDraw.Draw(column_name).text((0, 9), names[row], _INK, font, anchor="lm")
        sheet.paste(column_name.rotate(90, expand=True), (y + cell // 2 - 9, 26))
        for column in range(size):
            x, count = margin + column * cell, int(confusion.counts[row, column])
            share = count / totals[row] if totals[row] else 0.0
            # A single mistake among thousands is still to be seen.
            shade = 0.12 + 0.88 * share if count else 0.0
            right = _SOFT if confusion.left_out and row == size - 1 else _RIGHT
            colour = _mix(right if row == column else _WRONG, shade)
            draw.rectangle((x, y, x + cell, y + cell), colour, _GRID)
            if count:
                ink = _PAPER if shade > 0.5 else _INK
                draw.text((x + cell / 2, y + cell / 2), _short(count), ink, small, anchor="mm")
    return sheet


def printable(text: str) -> str:
    """Return text on one line, without characters that turn or hide what stands beside them."""
    return "".join(character if character.isprintable() else "·" for character in text[:200])


def _mix(colour: tuple[int, int, int], share: float) -> tuple[int, int, int]:
    red, green, blue = (round(paper + (own - paper) * share) for paper, own in zip(_PAPER, colour, strict=True))
    return red, green, blue


def _short(count: int) -> str:
    """Return a count in at most four characters, up to a billion."""
    for limit, divisor, unit in ((10_000, 1, ""), (1_000_000, 1_000, "k"), (1_000_000_000, 1_000_000, "M")):
        if count < limit:
            return f"{count // divisor}{unit}"
    return "≥1G"


def _fit(draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """Return text, cut where it is wider than so many pixels."""
    if draw.textlength(text, font) <= width:
        return text
    while text and draw.textlength(text + "…", font) > width:
        text = text[:-1]
    return text + "…"


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    # Pillow's own: the same on every machine.
    return ImageFont.load_default(size)
