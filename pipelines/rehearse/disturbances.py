"""Disturbances of a rehearsal beside preemptions: options, what the local cloud makes of them, and what they struck."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.config import RunConfig
from contracts.errors import ConfigError
from pipelines.rules import find_regions

if TYPE_CHECKING:
    from rehearsal.cloud import LocalCloud
    from rehearsal.gcs import Rule

# More would strike the clients' own retries too: six tries of a request, all in vain, once in 64 requests.
MAX_FAULT_RATE = 0.5


@dataclass(frozen=True)
class Disturbances:
    """What is to go wrong, as the options say it."""

    stockouts: tuple[str, ...] = ()
    """Regions without machines."""
    storage_fault_rate: float = 0.0
    """Share of the requests to buckets that are answered with 503."""

    def rules(self, seed: int) -> tuple[Rule, ...]:
        """Return what the bucket server is to play.

        Raises:
            ConfigError: The rate is none.
        """
        from rehearsal.gcs import Rule

        if not 0 <= self.storage_fault_rate <= MAX_FAULT_RATE:
            raise ConfigError(
                f"--storage-faults {self.storage_fault_rate:g}",
                allowed=f"share of the requests to buckets, from 0 to {MAX_FAULT_RATE:g}",
                todo="correct --storage-faults",
            )
        if not self.storage_fault_rate:
            return ()
        return (Rule(probability=self.storage_fault_rate, status=503, seed=seed),)

    def places(self, config: RunConfig) -> tuple[str, ...]:
        """Return the regions without machines.

        Raises:
            ConfigError: The run is not tried in such a region.
        """
        regions = find_regions(config)
        for region in self.stockouts:
            if region not in regions:
                raise ConfigError(
                    f"--stockout {region}",
                    allowed=f"a region in which the run is tried: {', '.join(regions)}",
                    todo="correct --stockout, or resources.regions",
                )
        return self.stockouts

    def find_struck(self, cloud: LocalCloud) -> list[str]:
        """Return what happened, in words."""
        return [words for words, _ in self._happened(cloud) if words]

    def find_idle(self, cloud: LocalCloud) -> list[str]:
        """Return the options that struck nothing."""
        happened = list(self._happened(cloud))
        idle = {option for words, option in happened if not words} - {option for words, option in happened if words}
        return sorted(idle)

    def _happened(self, cloud: LocalCloud) -> Iterator[tuple[str, str]]:
        """Yield what each option has struck, with the option; the empty text where it struck nothing."""
        for region in self.stockouts:
            jobs = cloud.market.without_machines.get(region, [])
            words = f"no machines in {region}: {', '.join(dict.fromkeys(jobs))}"
            yield words if jobs else "", f"--stockout {region}"
        if self.storage_fault_rate:
            # The last of the rules, behind those of --faults.
            hits = cloud.buckets.faults.hits()[-1]
            words = f"{hits} requests to buckets were answered with 503"
            yield words if hits else "", f"--storage-faults {self.storage_fault_rate:g}"


def read_rules(path: Path | None) -> tuple[Rule, ...]:
    """Return the rules in a file.

    Raises:
        ConfigError: It cannot be read, or holds something else.
    """
    if path is None:
        return ()
    from pydantic import TypeAdapter, ValidationError

    from rehearsal.gcs import Rule

    try:
        return tuple(TypeAdapter(list[Rule]).validate_json(path.read_bytes()))
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"--faults {path}: {str(error).splitlines()[0]}",
            allowed='a JSON list of rules, e.g. [{"operation": "objects.media", "probability": 0.01, "status": 503}]',
            todo="see rehearsal/gcs/faults.py for the fields of a rule",
        ) from None
