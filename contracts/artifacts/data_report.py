"""How the data of a run differs from that of an earlier one: LINE/runs/RUN/results/data-report.json."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt

from contracts.artifacts.document import Document

REPORT_NAME = "data-report.json"
Verdict = Literal["ok", "warn", "fail"]


class FieldReport(Document):
    """One field of the training samples: what it is now, and how far it is from the earlier data."""

    name: str
    kind: Literal["number", "category", "classes"]
    verdict: Verdict
    said: list[str] = Field(default=[])
    """What is remarkable, in words; first of all why it is not judged."""
    before: NonNegativeInt | None = None
    """Samples that were compared; None: not compared."""
    now: NonNegativeInt
    missing: float
    """Share of missing values."""
    quantiles: list[float] | None = None
    """Of numbers least, 5, 25, 50, 75, 95 % and most, with four digits; None where none is known."""
    earlier: list[float] | None = None
    """The same of the earlier data."""
    cells: NonNegativeInt | None = None
    """Cells that were compared."""
    psi: float | None = None
    """Population stability index; as the four below None where it was not judged."""
    excess: float | None = None
    """`psi` less what chance makes of it: this is judged."""
    p: float | None = None
    """Of the chi-square test, times the number of fields."""
    distance: float | None = None
    """Jensen-Shannon distance in [0, 1]: shown, and not judged."""


class DataComparison(Document):
    """The data beside that of an earlier manifest."""

    of: str
    """What the earlier data is of, in words: `run ID`."""
    uri: str
    """Folder of its shards."""
    not_compared: str = ""
    """Why it was not compared: its shards are gone or damaged; empty: it was."""
    same: bool = False
    """Whether they are the very same shards; nothing else is compared then."""
    samples: dict[str, NonNegativeInt] = Field(default={})
    """Of the earlier data, by split."""
    new_classes: dict[str, list[str]] = Field(default={})
    """By field: classes and categories in training that the earlier data had not; at most 100."""
    vanished_classes: dict[str, list[str]] = Field(default={})
    moved: NonNegativeInt = 0
    """Samples that are in another split than before."""
    fields: list[FieldReport] = Field(default=[])


class DataReport(Document):
    """What the shard stage says of the data of a run."""

    shards: str
    """Folder of the shards."""
    samples: dict[str, NonNegativeInt]
    """By split."""
    drawn: NonNegativeInt
    """Training samples that the figures of fields are of."""
    rejected: NonNegativeInt
    copies: NonNegativeInt
    """Samples beyond the first with the same bytes."""
    classes: dict[str, NonNegativeInt]
    """Training samples of each class of the label; of several thousand the first 1,000."""
    fields: list[FieldReport]
    """Held to the limits of `validate.fields` alone."""
    comparisons: list[DataComparison]
    verdict: Verdict
    problems: list[str]
    """Why it failed: field, value, limit."""
    warnings: list[str]
