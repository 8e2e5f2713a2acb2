"""What the profile stage leaves: what was measured, and what was chosen."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from contracts.artifacts.document import Contract, Document


class ProfilePoint(Document):
    """One measured configuration."""

    slot_size: int
    num_workers: int
    samples_per_s: float
    """Median over the windows, for one rank."""
    samples_per_s_min: float
    samples_per_s_max: float
    data_time_fraction: float = Field(ge=0, le=1)
    """Share of the step spent waiting for the loader."""


class ProfileChoice(Document):
    """How to cut the global batch, and how to load."""

    slot_size: int
    num_workers: int
    reason: str


class ProfileReport(Contract):
    """What the profiling run measured and chose."""

    kind: Literal["profile"] = "profile"
    model_fingerprint: str
    """Hash of the model section that was measured."""
    shards_fingerprint: str
    hardware: dict[str, str]
    torch_version: str
    ranks: int
    threads_per_rank: int
    global_batch_size: int
    points: list[ProfilePoint]
    choice: ProfileChoice
