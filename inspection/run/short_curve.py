"""The short curve of a run: its headline metric on validation while it trained, in its record and in lists.

    results["curve"] = {"name": "validation/accuracy", "direction": "max", "values": [0.31, null, 0.9375]}

`record_curve` makes it out of a training's scalars when the run ends; a list reads it by `find_curve`, and no scalars.
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, ValidationError

from contracts import storage
from contracts.artifacts import Headline
from contracts.artifacts.document import Document
from contracts.artifacts.evaluation import LOSS, Direction
from contracts.scalars import SCALARS_FOLDER
from inspection.run.curves import CurveReader, Part
from inspection.run.data import evenly
from inspection.run.door import HARM

MOST_VALUES = 24
# Of a value that is drawn: differences of two such ones are finite.
_LARGEST = 1e30
_LONGEST_NAME = 200

_Value = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]


class ShortCurve(Document):
    """A few values of a scalar."""

    name: Annotated[str, Field(max_length=_LONGEST_NAME)]
    """Of the scalar: validation/accuracy."""
    direction: Direction
    """Which values are better."""
    values: Annotated[list[_Value | None], Field(max_length=MOST_VALUES)]
    """At even distances, in the order of their steps, the best of all among them; None: no number, or too large."""

    def known(self) -> list[float]:
        """Return the values that are numbers."""
        return [value for value in self.values if value is not None]

    def best(self) -> float:
        """Return the best value."""
        return max(self.known()) if self.direction == "max" else min(self.known())


def record_curve(training_uri: str, headline: Headline | None) -> ShortCurve | None:
    """Return the curve of a training: its headline metric on validation, else the loss there, else the training loss.

    It reads as many scalars as a page does at most (inspection/run/curves.py), and never raises for what it finds.

    Args:
        training_uri: Folder of the training.
        headline: Metric that tells how good its model is; None: not known.

    Returns:
        None: the training left no such scalar with a number in it, or they cannot be read.
    """
    wanted: list[tuple[str, Direction]] = [(f"validation/{LOSS}", "min"), (f"train/{LOSS}", "min")]
    if headline is not None:
        wanted.insert(0, (f"validation/{headline.metric}", headline.direction))
    reader = CurveReader(storage.join(training_uri, SCALARS_FOLDER))
    try:
        reader.poll()
        parts = reader.parts()
    except HARM:
        return None
    for name, direction in wanted:
        values = _values(parts.get(name, ()))
        curve = find_curve({"name": name, "direction": direction, "values": _thin(values, direction)})
        if curve is not None:
            return curve
    return None


def find_curve(value: object) -> ShortCurve | None:
    """Return the curve that a record holds; None: it holds none, or one that cannot be drawn."""
    try:
        curve = ShortCurve.model_validate(value)
    except ValidationError:
        return None
    return curve if curve.known() else None


def _values(parts: Sequence[Part]) -> list[float | None]:
    """Return the values of a scalar in the order of its steps, with four significant digits."""
    steps, values = array("q"), array("d")
    for more_steps, _, more_values in parts:
        steps += more_steps
        values += more_values
    ordered = (values[place] for place in sorted(range(len(steps)), key=steps.__getitem__))
    return [float(f"{value:.4g}") if abs(value) < _LARGEST else None for value in ordered]


def _thin(values: Sequence[float | None], direction: Direction) -> list[float | None]:
    """Return values at even distances, the first, the last and the best among them."""
    places = evenly(list(range(len(values))), MOST_VALUES)
    sign = 1 if direction == "min" else -1
    known = [(sign * value, place) for place, value in enumerate(values) if value is not None]
    if known and (best := min(known)[1]) not in places:
        # In place of the one beside it, and of neither end.
        places[min(bisect(places, best), MOST_VALUES - 2)] = best
    return [values[place] for place in places]
