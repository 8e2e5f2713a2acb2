"""What `shardline run` leaves: a record of one execution of the line."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError

from contracts.artifacts.document import Contract, Document
from contracts.artifacts.evaluation import Headline
from contracts.artifacts.goodput import GoodputRecord


class StageRecord(Document):
    """What one stage of a run did."""

    name: str
    state: Literal["done", "reused", "failed", "interrupted", "not started"]
    wall_s: float = 0.0
    start_s: float = 0.0
    """Part of wall_s spent on process starts and imports."""
    uri: str | None = None
    """Folder of the stage's document."""
    manifest_sha256: str | None = None
    made: str = ""
    """What it made, in words."""


class RunRecord(Contract):
    """One execution of the line."""

    FORMAT_VERSION: ClassVar[int] = 2

    format_version: int = 2
    kind: Literal["run"] = "run"
    id: str
    state: Literal["succeeded", "failed", "interrupted"]
    """interrupted: a user's signal (Ctrl-C, SIGTERM) ended it; the same command continues."""
    error: str = ""
    started_at: str
    """UTC, ISO 8601."""
    config: dict[str, Any]
    """The resolved configuration."""
    stages: list[StageRecord]
    wall_s: float
    """Whole run: everything from the command's first line to this record."""
    process_start_s: float
    """Process starts and imports of the stages."""
    results: dict[str, Any]
    """Metrics and the headline one, how the global batch was cut, the engine and its parity."""
    row: dict[str, float] = Field(default={})
    """Metrics of the run's row in an experiment, by name: those of the run itself, its time among them."""
    goodput: GoodputRecord | None = None
    """Where the time of the training that it used went, over all attempts; None: training was never started."""

    def find_headline(self) -> tuple[Headline, float] | None:
        """Return the headline metric and its value on the test split; None: it was not measured."""
        metrics, found = self.results.get("metrics"), self.results.get("headline")
        if not isinstance(metrics, dict) or not isinstance(found, dict):
            return None
        try:
            headline = Headline.model_validate(found)
        except ValidationError:
            return None
        value = metrics.get(f"test_{headline.metric}")
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return headline, float(value)
