"""Options of `shardline rehearse`, validated before heavy imports.

An option without effect fails the command: here, or at the end (result.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.errors import ConfigError

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from rehearsal.gcs import Rule


@dataclass(frozen=True)
class RehearsalOptions:
    """Options of a rehearsal."""

    source: Path | None = None
    """Local data in place of a remote source."""
    weights: Path | None = None
    """Local weights in place of remote ones."""
    samples: int | None = None
    """Most files of the source to copy; None: all."""
    preemptions: int = 0
    """Number of preemptions."""
    stockouts: tuple[str, ...] = ()
    """Regions without machines."""
    faults: Path | None = None
    """File of fault rules for the bucket server."""
    storage_fault_rate: float = 0.0
    """Share of bucket requests that fail with 503."""
    schedule_days: float = 0.0
    time_scale: float = 0.1
    """Real seconds per simulated second of waiting: at 0.1, the 30 s of a preemption notice take 3 s."""
    seed: int | None = None
    """Random seed of preemptions and storage faults; None: 0."""
    processes: int | None = None
    """Training processes per machine; None: as many as fit."""
    clock_rate: float = 1.0
    """Simulated seconds per real second of a served cloud's clock, which schedules use."""

    def check(self, *, has_config: bool, serve: bool) -> None:
        """Check the options without the configuration.

        Raises:
            ConfigError: An option without effect, a value out of range, or unreadable fault rules.
        """
        if not has_config and not serve:
            raise ConfigError(
                "shardline rehearse without CONFIG",
                allowed="a configuration, or --serve",
                todo="name the YAML file that is to be rehearsed",
            )
        if self.clock_rate != 1 and not serve:
            raise ConfigError(
                f"--clock-rate {self.clock_rate:g} without --serve",
                allowed="with --serve a number above 0; 1 is the real time",
                todo="leave it out; a rehearsal of a configuration has --schedule-days",
            )
        if serve and self.schedule_days:
            raise ConfigError(
                "--schedule-days with --serve", allowed="--clock-rate", todo="let the served clock run faster instead"
            )
        if not has_config and any(
            (self.source, self.weights, self.samples, self.preemptions, self.stockouts, self.storage_fault_rate)
        ):
            raise ConfigError(
                "--serve without CONFIG, with an option that needs one",
                allowed="--faults, --clock-rate, --time-scale, --processes, --keep",
                todo="leave the other options out, or name the configuration whose cloud is to be served",
            )
        if self.seed is not None and not (self.preemptions or self.storage_fault_rate):
            raise ConfigError(
                f"--seed {self.seed} without --preempt and --storage-faults",
                allowed="--seed beside what it decides",
                todo="leave --seed out; rules of --faults have seeds of their own",
            )
        if self.faults is not None:
            _read_rules(self.faults)

    def check_for(self, config: RunConfig) -> None:
        """Check the options with the configuration.

        Raises:
            ConfigError: An option has no effect with it.
        """
        from pipelines.rehearse.config import REGION
        from pipelines.rules import find_regions

        regions, resources = [region or REGION for region in find_regions(config)], config.resources
        for region in self.stockouts:
            if region not in regions:
                raise ConfigError(
                    f"--stockout {region}",
                    allowed=f"a region in which the run is tried: {', '.join(regions)}",
                    todo="correct --stockout, or resources.regions",
                )
        if self.schedule_days and not config.schedule.cron:
            raise ConfigError(
                f"--schedule-days {self.schedule_days:g} without schedule.cron",
                allowed="a configuration with a schedule",
                todo="set schedule.cron and schedule.time_zone, or leave --schedule-days out",
            )
        if self.preemptions and resources.strategy != "SPOT":
            raise ConfigError(
                f"--preempt {self.preemptions}, and resources.strategy = {resources.strategy}",
                allowed="SPOT: other machines are not taken away",
                todo="leave --preempt out, or set resources.strategy=SPOT",
            )
        if self.processes is not None and resources.ranks != "auto":
            raise ConfigError(
                f"--processes {self.processes}, and resources.ranks = {resources.ranks}",
                allowed="--processes where resources.ranks is auto: what is rehearsed is what is submitted",
                todo="leave --processes out, or resources.ranks",
            )

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules of the bucket server: those of --faults, then that of --storage-faults.

        Raises:
            ConfigError: --faults cannot be read, or holds something else.
        """
        from rehearsal.gcs import Rule

        rules = _read_rules(self.faults) if self.faults is not None else ()
        if not self.storage_fault_rate:
            return rules
        return (*rules, Rule(probability=self.storage_fault_rate, status=503, seed=self.seed or 0))


def _read_rules(path: Path) -> tuple[Rule, ...]:
    from pydantic import TypeAdapter, ValidationError

    from rehearsal.gcs import Rule

    try:
        rules = tuple(TypeAdapter(list[Rule]).validate_json(path.read_bytes()))
        problem = "" if rules else "there is no rule in it"
    except (OSError, ValidationError) as error:
        problem = str(error).splitlines()[0]
    if problem:
        raise ConfigError(
            f"--faults {path}: {problem}",
            allowed='a JSON list of rules, e.g. [{"operation": "objects.media", "probability": 0.01, "status": 503}]',
            todo="see rehearsal/gcs/faults.py for the fields of a rule",
        )
    return rules
