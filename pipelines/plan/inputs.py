"""Inputs of a plan beside the configuration: the user's own prices, a profile report, finished trainings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from contracts import storage
from contracts.config import RunConfig
from contracts.machines import PriceBook, read_price_file
from pipelines.plan.estimate import Profile, find_profile, read_profile
from pipelines.plan.measured import Measurement, find_measurements


@dataclass(frozen=True)
class PlanInputs:
    """What a plan goes by beside the configuration."""

    book: PriceBook | None = None
    """The user's own prices."""
    profile: Profile | None = None
    """Decides the time, where it was measured on the same kind of machine."""
    measurements: tuple[Measurement, ...] = ()
    """Finished trainings of the line, the newest first; they decide the time where no profile does."""


def read_inputs(
    config: RunConfig, *, prices: Path | None = None, profile: str | None = None, online: bool = False
) -> PlanInputs:
    """Return what is known for a plan.

    Args:
        config: Resolved.
        prices: The user's own price file.
        profile: Path or URI of a report; None: the line's own, where the line may be looked at.
        online: Whether a line in a bucket may be looked at; one on this machine always is.

    Raises:
        ConfigError: The price file cannot be used.
        DataError: There is no such report.
    """
    line = storage.join(storage.normalise(config.run.root), config.run.name)
    may_look = online or storage.is_local(line)
    found = read_profile(profile) if profile is not None else find_profile(line, config) if may_look else None
    return PlanInputs(
        book=read_price_file(prices) if prices is not None else None,
        profile=found,
        measurements=tuple(find_measurements(line, config)) if may_look else (),
    )
