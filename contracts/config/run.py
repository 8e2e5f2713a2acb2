"""Sections `run`, `inspect` and `schedule`: where a line lives, what it shows, and when it runs by itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from contracts.config.base import Section


class RunSection(Section):
    """Where a line lives and what its randomness starts from."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")] = "line"
    """Name of the line: lower-case letters, digits, '-' and '_'."""
    root: str = "runs"
    """Folder or URI that holds lines; this line's files are below root/name."""
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    """Start of all randomness but that of the shards (`sharding.seed`): order of samples, initial weights,
    augmentation."""


class InspectSection(Section):
    """What pages and artifacts show. Nothing here changes a result."""

    samples: Literal["show", "hide"] = "show"
    """Whether pictures, text and rows of samples are shown; `hide` keeps them off every page and artifact."""


class ScheduleSection(Section):
    """When the line runs by itself (`shardline schedule`)."""

    cron: str = ""
    """Minute, hour, day, month, weekday, e.g. `0 6 * * 1`; unset: it is not scheduled."""
    time_zone: str = "Etc/UTC"
    """Zone of `cron`, by its name in the IANA database, e.g. Europe/Berlin."""
    start: str = ""
    """First moment, ISO 8601 with an offset, e.g. 2026-12-01T00:00:00Z; unset: at once."""
    end: str = ""
    """Last moment; unset: none."""
