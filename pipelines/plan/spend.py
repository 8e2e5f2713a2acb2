"""A cap on what a training may cost: it refuses a submission, and ends the job that would go beyond it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.config import RunConfig
from contracts.machines import PriceRange
from pipelines.rules.problem import Problem

# A job that may not live this long has not begun to train when it ends.
LEAST_S = 600


@dataclass(frozen=True)
class Cap:
    """What follows from `resources.max_cost_usd`, `timeout_hours` and the price."""

    timeout_s: int
    price_usd_per_h: float | None
    """The dearest end of the dearest rung: only then no rung costs more than the cap. None: unknown."""
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


def find_cap(config: RunConfig, prices: Sequence[PriceRange | None], hours: float | None) -> Cap:
    """Return the time-out of each rung's training job, and why it may not be submitted.

    A job of another rung, or of a run that is submitted again, has the time-out anew: the cap bounds each job, not all.

    Args:
        config: Resolved.
        prices: Of all training machines together, by rung; None: unknown.
        hours: How long training takes; None: unknown.
    """
    resources = config.resources
    timeout_s = int(resources.timeout_hours * 3600)
    price = resources.price_usd_per_h
    if price is None and prices and all(found is not None for found in prices):
        price = max(found.high_usd_per_h for found in prices if found is not None)
    cap = resources.max_cost_usd
    if cap is None:
        return Cap(timeout_s, price)
    if price is None:
        return Cap(timeout_s, None, problems=(_no_price(cap),))
    affordable_s = math.floor(cap / price * 3600)
    if hours is not None and hours * price > cap:
        return Cap(
            timeout_s,
            price,
            problems=(
                Problem(
                    f"training takes {hours:.1f} h at up to {price:.2f} USD/h: {hours * price:.2f} USD, and "
                    f"resources.max_cost_usd = {cap:g}",
                    f"up to {cap:g} USD at the upper end of the price",
                    "raise resources.max_cost_usd, train fewer epochs, take cheaper machines, or give your own prices "
                    "(--prices FILE, resources.price_usd_per_h)",
                ),
            ),
        )
    if affordable_s < LEAST_S:
        return Cap(
            timeout_s,
            price,
            problems=(
                Problem(
                    f"resources.max_cost_usd = {cap:g} at up to {price:.2f} USD/h ends the job after {affordable_s} s",
                    f"at least {price * LEAST_S / 3600:.2f} USD: {LEAST_S} s",
                    "raise resources.max_cost_usd, or take fewer or cheaper machines",
                ),
            ),
        )
    if affordable_s >= timeout_s:
        return Cap(timeout_s, price)
    warning = (
        f"resources.max_cost_usd = {cap:g} at up to {price:.2f} USD/h: the training job's time-out is {affordable_s} s"
    )
    if hours is None:
        warning += "; whether training is done by then is unknown"
    return Cap(affordable_s, price, warnings=(warning,))


def _no_price(cap: float) -> Problem:
    return Problem(
        f"resources.max_cost_usd = {cap:g}, and the price of the machines is unknown on some rung",
        "a cap together with a price",
        "give --prices FILE, or set resources.price_usd_per_h to what all training machines cost in an hour",
    )
