"""The one door to a run's documents: of bounded size, and really in the line. Whoever wrote them is not trusted.

What stands in a line may be a link that leads out of it, a name that decodes to `..`, or a file of any length; special
files are refused by the store itself.
"""

from __future__ import annotations

import datetime
import math
import os
import re
from dataclasses import dataclass
from functools import cached_property
from json import JSONDecoder
from typing import Any

from contracts import storage
from contracts.errors import ShardlineError

# What a document may have at most. A manifest of 100,000 shards has some 40 MB; parsed it takes ten times that.
MANIFEST_BYTES = 96 << 20
# Of a run: what it was given, its record, errors and results. They are read for every run of a list.
SMALL_BYTES = 4 << 20
# JSON that goes deeper is none of ours, and what walks through it must not run out of stack.
MOST_DEPTH = 60
# Seeds have up to 19; with more than 300 no float is near to it.
_MOST_DIGITS = 300

HARM = (
    OSError,
    ShardlineError,
    ValueError,
    LookupError,
    ArithmeticError,
    RecursionError,
    ImportError,
)
"""What reading documents of others may end in. pydantic's ValidationError is a ValueError."""


def first_line(error: Exception) -> str:
    """Return the first line of what an error says; its kind where it says nothing."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__


@dataclass(frozen=True)
class Door:
    """Reads files of one line."""

    line: str
    """URI of the line's folder."""

    @cached_property
    def _real_line(self) -> str:
        return os.path.realpath(storage.local_path(self.line))

    def inside(self, uri: str) -> bool:
        """Whether something lies in the line, also when links in its path are followed."""
        if not uri.startswith(self.line + "/"):
            return False
        if not storage.is_local(uri):
            parts = uri.split("/")
            return ".." not in parts and "." not in parts
        # Decoded first: a URI of a file is percent-encoded.
        real = os.path.realpath(storage.local_path(uri))
        return real.startswith(self._real_line + os.sep)

    def require(self, uri: str) -> None:
        """Raise ValueError unless something lies in the line."""
        if not self.inside(uri):
            raise ValueError(f"{storage.display(uri)} is not below {storage.display(self.line)}")

    def read(self, uri: str, most: int) -> bytes:
        """Return the content of a file.

        Raises:
            ValueError: It is longer than `most` bytes, or not in the line.
            OSError: It is not there, or no ordinary file.
        """
        self.require(uri)
        content = storage.read_range(uri, 0, most + 1)
        if len(content) > most:
            raise ValueError(f"{storage.display(uri)} has more than the {most} bytes that are read")
        return content


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits; up to {_MOST_DIGITS} are read")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


# An escape of half of a surrogate pair, or of a whole one.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_DECODER = JSONDecoder(parse_constant=_refuse, parse_int=_integer, parse_float=_number)


def parse_json(content: bytes) -> Any:
    """Return the value of JSON whose numbers are finite.

    Raises:
        ValueError: It is none, or goes too deep.
    """
    try:
        value = _DECODER.decode(content.decode(errors="replace"))
        if _SURROGATE.search(content) is not None:
            return plain(value)
        # Nothing else of `plain` can be in JSON with finite numbers: building it anew took half of a list's time.
        _require_flat(value)
        return value
    except RecursionError:
        raise ValueError("it goes too deep") from None


def _require_flat(value: Any, depth: int = 0) -> None:
    """Refuse a value that goes deeper than MOST_DEPTH, as `plain` does.

    Raises:
        ValueError: It does.
    """
    if depth > MOST_DEPTH:
        raise ValueError("it goes too deep")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        # What is neither is as deep as what holds it, and one more.
        if isinstance(inner, (dict, list)):
            _require_flat(inner, depth + 1)
        elif depth == MOST_DEPTH:
            raise ValueError("it goes too deep")


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value of JSON as every JSON writer takes it: no NaN, no halves of surrogate pairs, not too deep.

    Raises:
        ValueError: It goes deeper than MOST_DEPTH.
    """
    if depth > MOST_DEPTH:
        raise ValueError("it goes too deep")
    if isinstance(value, dict):
        return {plain(name, depth): plain(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner, depth + 1) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str) and not value.isascii():
        return value.encode(errors="replace").decode() if _has_surrogate(value) else value
    return value


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def as_object(value: object) -> dict[str, Any]:
    """Return a value of a document that should be an object; an empty one where it is none."""
    return value if isinstance(value, dict) else {}


def as_number(value: object) -> float | None:
    """Return a value of a document that should be a number; None where it is none."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def finite(value: float | None) -> float | None:
    """Return a number that a float is near to; None: it is none."""
    try:
        return value if value is not None and math.isfinite(value) else None
    except OverflowError:
        return None


def as_moment(text: object) -> float | None:
    """Return the time of ISO 8601 in seconds since the epoch; None where it is none."""
    try:
        return datetime.datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return None
