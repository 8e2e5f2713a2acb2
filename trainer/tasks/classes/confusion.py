"""A confusion matrix as a picture, light and of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from trainer.report.drawing import INK, PAPER, fit, font_of_size, printable

# Classes of a confusion matrix that can still be read; of more, those that are confused most, and the rest as one.
MOST_CLASSES = 32
_REST = "all others"
_SOFT, _GRID = (86, 96, 112), (219, 224, 230)
_RIGHT, _WRONG = (31, 95, 191), (179, 38, 30)


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
    font, small = font_of_size(13), font_of_size(12 if size <= 12 else 10)
    measure = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    names = [fit(measure, name, font, 150) for name in confusion.names]
    margin = 34 + int(max((measure.textlength(name, font) for name in names), default=0))
    sheet = Image.new("RGB", (margin + size * cell + 12, margin + size * cell + 12), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((margin, 6), "predicted", _SOFT, font)
    draw.text((6, margin - 18), "label", _SOFT, font)
    totals = confusion.counts.sum(axis=1)
    for row in range(size):
        y = margin + row * cell
        draw.text((margin - 6, y + cell / 2), names[row], INK, font, anchor="rm")
        column_name = Image.new("RGB", (margin - 30, 18), PAPER)
        ImageDraw.Draw(column_name).text((0, 9), names[row], INK, font, anchor="lm")
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
                ink = PAPER if shade > 0.5 else INK
                draw.text((x + cell / 2, y + cell / 2), _short(count), ink, small, anchor="mm")
    return sheet


def _mix(colour: tuple[int, int, int], share: float) -> tuple[int, int, int]:
    red, green, blue = (round(paper + (own - paper) * share) for paper, own in zip(PAPER, colour, strict=True))
    return red, green, blue


def _short(count: int) -> str:
    """Return a count in at most four characters, up to a billion."""
    for limit, divisor, unit in ((10_000, 1, ""), (1_000_000, 1_000, "k"), (1_000_000_000, 1_000_000, "M")):
        if count < limit:
            return f"{count // divisor}{unit}"
    return "≥1G"
