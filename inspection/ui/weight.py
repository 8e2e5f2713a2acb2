"""What a document of ours takes in memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from pydantic import BaseModel

_NUMBER_BYTES = sys.getsizeof(1.0) + 8


def weigh(value: object) -> int:
    """Return the bytes that a value and all it holds take, about: what two parts share is counted for each."""
    total = 0
    # No recursion: a configuration may be nested as deep as somebody likes.
    rest = [value]
    while rest:
        each = rest.pop()
        total += sys.getsizeof(each)
        if isinstance(each, BaseModel):
            rest.append(each.__dict__)
        elif isinstance(each, Mapping):
            rest += each.keys()
            rest += each.values()
        elif isinstance(each, (list, tuple)):
            if each and isinstance(each[0], (int, float)):
                # A curve has hundreds of points, and a run hundreds of curves.
                total += _NUMBER_BYTES * len(each)
            else:
                rest += each
    return total
