"""Estimated cost of a training's machines, and of the same hours on demand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from contracts.artifacts import GoodputRecord
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.machines import AS_OF, Machine, find_machine
from inspection.documents import first_line
from inspection.view import Money

CONFIGURED = "resources.price_usd_per_h"
_SCOPE = "only the training's machines: not Dataflow, profiling, export, storage and the wait for machines"


def find_money(config: Mapping[str, Any], goodput: GoodputRecord | None) -> tuple[Money | None, str]:
    """Return the cost of the training, or None with the reason why it is unknown.

    Args:
        config: Of the run, with the sections `resources` and `cloud`; empty if unknown.
        goodput: Account with the node-hours of all attempts, including lost work.
    """
    if goodput is None:
        return None, "training has not started"
    if not config:
        return None, "the configuration is unknown"
    try:
        sections = json.dumps({name: config[name] for name in ("resources", "cloud") if name in config})
        priced = _parse_sections(sections)
    except (ValueError, RecursionError):
        return None, "the configuration cannot be read"
    resources, hours, wall_h = priced.resources, goodput.node_hours, goodput.wall_s / 3600
    machine: Machine | None = None
    if resources.machine.type:
        try:
            machine = find_machine(resources.machine)
        except ConfigError as error:
            return None, first_line(error)
    elif resources.price_usd_per_h is None:
        return None, "no machine or price is configured: set resources.machine.type, or resources.price_usd_per_h"
    region = priced.cloud.region
    each = machine.price(resources.strategy, region) if machine is not None else None
    on_demand = machine.price("STANDARD", region) if machine is not None else None
    if (price := resources.price_usd_per_h) is not None:
        # The price is of all machines. With `auto` their number is unknown, so wall time is used.
        cost = price * wall_h if resources.nodes == "auto" else price / resources.nodes * hours
        source = CONFIGURED
    elif each is not None:
        cost, source = each * hours, machine.price_source if machine is not None else ""
    else:
        label = machine.label if machine is not None else "the machine"
        return None, f"no price of {label} is known: set resources.price_usd_per_h"
    return (
        Money(
            node_hours=hours,
            machine=machine.label if machine is not None else "this machine",
            strategy=resources.strategy if machine is not None else "",
            cost_usd=cost,
            on_demand_usd=None if on_demand is None else on_demand * hours,
            source=source,
            as_of="" if source == CONFIGURED else f"read {AS_OF}",
            assumptions=[_SCOPE],
        ),
        "",
    )


@lru_cache(maxsize=1000)
def _parse_sections(sections: str) -> RunConfig:
    """Parse a configuration with these sections; cached, since most runs of a list share them."""
    return RunConfig.model_validate_json(sections)
