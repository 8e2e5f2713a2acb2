"""What a schedule's firing has found: whether there is anything to train on that the last run did not have."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import NonNegativeInt

from contracts.artifacts.document import Document

FIRING_NAME = "firing.json"
"""In the results of a run whose schedule has `schedule.when`."""

Verdict = Literal["go", "nothing to do"]
NOTHING: Final = "nothing to do"
GO: Final = "go"


class Firing(Document):
    """Whether a run goes on beyond its listing, and why."""

    verdict: Verdict
    reason: str
    since: str = ""
    """Id of the run that the source is compared with: the newest that succeeded; empty: there is none."""
    samples: NonNegativeInt | None = None
    """In the source now, those that cannot be read included; None: it was not listed."""
    new: NonNegativeInt | None = None
    """Of these, the ones that are new or changed since that run."""
    samples_before: NonNegativeInt | None = None
    """The same when that run listed it."""
