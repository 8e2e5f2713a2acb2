"""Reading of small JSON documents of a run, with a size limit."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any
from urllib.parse import unquote

from contracts import storage
from contracts.errors import ShardlineError

# A manifest of 100,000 shards has some 40 MB; parsed it takes ten times that.
MANIFEST_BYTES = 96 << 20
# Start documents, records and errors, which a list reads for every run.
SMALL_BYTES = 4 << 20
READ_ERRORS = (OSError, ShardlineError, ValueError, LookupError, ArithmeticError, RecursionError, ImportError)
"""Errors of reading a damaged document; pydantic's ValidationError is a ValueError."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type without a message."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def is_inside(uri: str, folder: str) -> bool:
    """Return whether a URI lies below a folder, by its text."""
    return uri.startswith(folder + "/") and ".." not in unquote(uri).split("/")


def read_small(uri: str, most_bytes: int = SMALL_BYTES) -> bytes:
    """Return the content of a file.

    Raises:
        ValueError: It is longer than `most_bytes`.
        OSError: It does not exist, or is not a regular file.
    """
    content = storage.read_range(uri, 0, most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"{storage.display(uri)} has more than the {most_bytes} bytes that are read")
    return content


def parse_json(content: bytes, where: str) -> Any:
    """Parse JSON; raises ValueError, with `where`, for invalid JSON."""
    try:
        return json.loads(content.decode(errors="replace"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: {first_line(error)}") from None


def read_object(uri: str) -> dict[str, Any]:
    """Return the JSON object of a small file; raises as `read_small`, and ValueError if it is no JSON object."""
    value = parse_json(read_small(uri), storage.display(uri))
    if not isinstance(value, dict):
        raise ValueError(f"{storage.display(uri)} is not a JSON object")
    return value


def as_object(value: object) -> dict[str, Any]:
    """Return the value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_number(value: object) -> float | None:
    """Return the value if it is a finite number, else None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def as_time(text: object) -> float | None:
    """Parse a time of ISO 8601 to seconds since the epoch; None if it is invalid."""
    try:
        return datetime.datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return None


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")
