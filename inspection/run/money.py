"""What the training's machines cost, and what the same hours would have cost on demand. All of it is an estimate."""

from __future__ import annotations

import math

from contracts.artifacts import GoodputRecord
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.machines import PriceRange, find_machine, hourly_price
from inspection.run.door import first_line
from inspection.run.view import MoneyView

CONFIGURED = "resources.price_usd_per_h"


def find_money(config: RunConfig, goodput: GoodputRecord | None) -> tuple[MoneyView | None, str]:
    """Return what the training cost, or None with the reason why that is unknown.

    Args:
        config: Of the run.
        goodput: Whose node-hours count: of all attempts, also of those whose work was lost.
    """
    if goodput is None:
        return None, "no training has begun"
    resources, hours, wall_h = config.resources, goodput.node_hours, goodput.wall_s / 3600
    if not resources.machine.type:
        if resources.price_usd_per_h is None:
            return None, "no machine is named, and no price: set resources.machine.type, or resources.price_usd_per_h"
        return _configured(config, hours, wall_h, label="this machine"), ""
    try:
        machine = find_machine(resources.machine)
    except ConfigError as error:
        return None, first_line(error)
    rungs = [(rung.strategy, rung.region or config.cloud.region) for rung in resources.ladder]
    rungs = rungs or [(resources.strategy, config.cloud.region)]
    prices = [price for strategy, region in rungs if (price := hourly_price(machine, strategy, region)) is not None]
    standard = hourly_price(machine, "STANDARD", config.cloud.region)
    strategy = " or ".join(dict.fromkeys(strategy for strategy, _ in rungs))
    if len(prices) < len(rungs) or _is_own_price(config, prices):
        if resources.price_usd_per_h is None:
            return None, f"no price of {machine.label} is known: set resources.price_usd_per_h"
        return _configured(config, hours, wall_h, label=machine.label, strategy=strategy, standard=standard), ""
    low, high = min(price.low_usd_per_h for price in prices), max(price.high_usd_per_h for price in prices)
    assumptions = [text for price in prices for text in price.assumptions]
    if len(rungs) > 1:
        assumptions.insert(0, "which rung of the ladder ran is not known: the range is over all of them")
    return (
        MoneyView(
            node_hours=hours,
            machine=machine.label,
            strategy=strategy,
            cost_low_usd=low * hours,
            cost_high_usd=high * hours,
            on_demand_low_usd=standard.low_usd_per_h * hours if standard else None,
            on_demand_high_usd=standard.high_usd_per_h * hours if standard else None,
            source=prices[0].source,
            as_of=prices[0].as_of,
            assumptions=[_SCOPE, *dict.fromkeys(assumptions)],
        ),
        "",
    )


_SCOPE = "only the training's machines: not Dataflow, profiling, export, storage and the wait for machines"


def _is_own_price(config: RunConfig, prices: list[PriceRange]) -> bool:
    """Whether the configuration's price is the user's own: `submit` fills in the dearest of the table's."""
    own, nodes = config.resources.price_usd_per_h, config.resources.nodes
    if own is None or nodes == "auto":
        return own is not None
    return not math.isclose(own, nodes * max(price.high_usd_per_h for price in prices), rel_tol=1e-3)


def _configured(
    config: RunConfig,
    hours: float,
    wall_h: float,
    *,
    label: str,
    strategy: str = "",
    standard: PriceRange | None = None,
) -> MoneyView:
    """Return the cost at the price that the configuration gives, which is of all machines together."""
    nodes, price = config.resources.nodes, config.resources.price_usd_per_h or 0.0
    # How many `auto` has come to is in the hours, however often it changed: what the price is of was there all along.
    cost = price * wall_h if nodes == "auto" else price / nodes * hours
    return MoneyView(
        node_hours=hours,
        machine=label,
        strategy=strategy,
        cost_low_usd=cost,
        cost_high_usd=cost,
        on_demand_low_usd=standard.low_usd_per_h * hours if standard else None,
        on_demand_high_usd=standard.high_usd_per_h * hours if standard else None,
        source=CONFIGURED,
        as_of="",
        assumptions=[_SCOPE],
    )
