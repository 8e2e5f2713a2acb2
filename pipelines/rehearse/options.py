"""What the options of `shardline rehearse` mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from contracts.errors import ConfigError

if TYPE_CHECKING:
    from rehearsal.gcs import Rule
    from rehearsal.jobs.restarts import Reading
    from rehearsal.machines.network import Mode


def parse_preempt(text: str) -> tuple[int, float]:
    """Return a number of preemptions, and a rate an hour and machine; one of them is 0.

    Raises:
        ConfigError: It is neither.
    """
    number, slash, unit = text.strip().partition("/")
    try:
        if slash:
            rate = float(number)
            if unit == "h" and 0 < rate <= 3600:
                return 0, rate
        elif 0 <= int(number) <= 100:
            return int(number), 0.0
    except ValueError:
        pass
    raise ConfigError(
        f"--preempt {text}",
        allowed="a whole number from 0 to 100, or a rate as 0.5/h (machines taken away an hour, each)",
        todo="correct --preempt",
    )


def parse_reading(text: str) -> Reading:
    """Return a reading of the rules for restarts.

    Raises:
        ConfigError: There is no such reading.
    """
    from rehearsal.jobs.restarts import READINGS

    for reading in READINGS:
        if text == reading:
            return reading
    raise ConfigError(f"--restarts {text}", allowed=" or ".join(READINGS), todo="correct --restarts")


def parse_network(text: str) -> Mode:
    """Return a kind of network of machines.

    Raises:
        ConfigError: There is no such kind.
    """
    from rehearsal.machines.network import MODES

    for mode in MODES:
        if text == mode:
            return mode
    raise ConfigError(f"--network {text}", allowed=", ".join(MODES), todo="correct --network")


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
