"""What the training's machines cost, and what the same hours would have cost on demand. All of it is an estimate."""

from __future__ import annotations

from contracts.artifacts import GoodputRecord
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.machines import AS_OF, PRICE_SOURCE, Machine, find_machine
from inspection.run.door import first_line
from inspection.run.view import MoneyView

CONFIGURED = "resources.price_usd_per_h"
_SCOPE = "only the training's machines: not Dataflow, profiling, export, storage and the wait for machines"


def find_money(config: RunConfig, goodput: GoodputRecord | None) -> tuple[MoneyView | None, str]:
    """Return what the training cost, or None with the reason why that is unknown.

    Args:
        config: Of the run.
        goodput: Whose node-hours count: of all attempts, also of those whose work was lost.
    """
    if goodput is None:
        return None, "no training has begun"
    resources, hours, wall_h = config.resources, goodput.node_hours, goodput.wall_s / 3600
    machine: Machine | None = None
    if resources.machine.type:
        try:
            machine = find_machine(resources.machine)
        except ConfigError as error:
            return None, first_line(error)
    elif resources.price_usd_per_h is None:
        return None, "no machine is named, and no price: set resources.machine.type, or resources.price_usd_per_h"
    region = config.cloud.region
    each = machine.price(resources.strategy, region) if machine is not None else None
    on_demand = machine.price("STANDARD", region) if machine is not None else None
    if (own := resources.price_usd_per_h) is not None:
        # It is of all machines. How many `auto` has come to is in the hours: the price is of what was there all along.
        cost = own * wall_h if resources.nodes == "auto" else own / resources.nodes * hours
        source = CONFIGURED
    elif each is not None:
        cost, source = each * hours, PRICE_SOURCE
    else:
        label = machine.label if machine is not None else "the machine"
        return None, f"no price of {label} is known: set resources.price_usd_per_h"
    return (
        MoneyView(
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
