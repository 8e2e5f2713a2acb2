"""What is told of a stage, whichever it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Told:
    """What a stage's report says."""

    numbers: Mapping[str, float]
    """Its metrics: the stage stands in front of each name, since a comparison of runs shows those of all stages."""
    lines: list[str]
    """Its summary, in Markdown, below the heading."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Of what it made, beside its document's own, by name."""


def several(count: int, thing: str, things: str = "") -> str:
    """Return a number of things: 1 shard, 2 shards."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {things or thing + 's'}"
