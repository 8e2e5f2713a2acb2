"""Scalars of a training as lines of JSON: the files that curves are read from, beside TensorBoard's.

    TRAINING/scalars/scalars-000002-00000.jsonl     attempt 2 at the training, its first part
    {"start":60,"time":1795742731.52}               first line of an attempt: it went on from this step
    {"step":80,"time":1795742738.1,"scalars":{"train/loss":0.25,"train/gradient_norm":"NaN"}}

The first rank writes one line per report, whole. A part that has PART_BYTES is never changed again, so that of a long
training only the last part is copied to a bucket anew. What an attempt wrote beyond the step that a later one went on
from is void. A process that is killed may leave a part of a line at the end of a file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

SCALARS_FOLDER = "scalars"
PART_BYTES = 1_000_000
PART_NAME = re.compile(r"scalars-(\d{6,})-(\d{5,})\.jsonl")
# Encoded as text, since JSON lacks them.
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def part_name(attempt: int, part: int) -> str:
    """Return the name of a part; names sort chronologically."""
    return f"scalars-{attempt:06d}-{part:05d}.jsonl"


def start_line(step: int, time: float) -> bytes:
    """Return the first line of an attempt, with the step that it resumed from."""
    return json.dumps({"start": step, "time": time}, separators=(",", ":")).encode() + b"\n"


def scalars_line(step: int, time: float, values: Mapping[str, float]) -> bytes:
    """Return the line of a step: values with nine digits, as many as a float32 has; NaN and infinities as words."""
    scalars = {name: _plain(float(value)) for name, value in values.items()}
    line = {"step": step, "time": round(time, 3), "scalars": scalars}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def scalar_of(value: object) -> float | None:
    """Return the value of a scalar in a line; None if it is invalid."""
    if isinstance(value, str):
        return _NON_FINITE.get(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _plain(value: float) -> float | str:
    if math.isfinite(value):
        return float(f"{value:.9g}")
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
