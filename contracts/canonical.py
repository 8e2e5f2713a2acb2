"""The canonical form of a JSON document: what is submitted, rehearsed and compiled is compared by its hash.

A compiled pipeline is YAML in a file and a protobuf Struct on the wire, where every number is a double: bytes differ,
and so does sorted JSON. The canonical form is JSON with sorted keys in which whole numbers are integers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def canonical(value: Any) -> Any:
    """Return a JSON value with every whole number as an integer: protobuf's Struct makes doubles of all of them."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: canonical(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(inner) for inner in value]
    return value


def canonical_hash(value: Any) -> str:
    """Return the sha256 of the canonical form, in hex digits."""
    text = json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
