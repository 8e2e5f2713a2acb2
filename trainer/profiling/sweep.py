"""The sweep: measure the parts, predict the whole, measure the best of it end to end, take the cheapest of the equal.

    parts.py     the loader alone, the steps alone, memory
    predict.py   the rate of a whole, with one joint run for what hides behind what
    finals.py    the finalists end to end, window by window in turn (pairs.py), and the choice
    grid.py      every combination end to end instead, for comparison

It knows nothing of torch or processes: what measures is a Probe (measure.py).
"""

from __future__ import annotations

from trainer.profiling.finals import Finals
from trainer.profiling.grid import full_grid
from trainer.profiling.ledger import Ledger, Result, Tell, silent
from trainer.profiling.measure import Probe
from trainer.profiling.pairs import FINALISTS
from trainer.profiling.parts import Parts
from trainer.profiling.predict import Predictor
from trainer.profiling.space import Space

__all__ = ["Result", "full_grid", "sweep"]


def sweep(
    space: Space,
    probe: Probe,
    *,
    budget_s: float,
    tell: Tell = silent,
    price_usd_per_h: float | None = None,
    start_s: float = 0.0,
    reserved_s: float = 0.0,
) -> Result:
    """Find the cheapest configuration within TOLERANCE of the fastest.

    Args:
        space: What may be tried.
        probe: What measures.
        budget_s: Seconds that it may take, on the probe's clock; then the best that was found is taken, or the defaults
            where fewer than two configurations were compared, with a warning.
        tell: Is told (measurements done, about how many there will be, what came out).
        price_usd_per_h: What all machines cost in an hour, in US dollars.
        start_s: Seconds of the budget that the start of the processes took.
        reserved_s: Seconds of it that are kept for traces and the report.

    Raises:
        ConfigError: Nothing could be measured end to end.
    """
    ledger = Ledger(
        space,
        probe,
        budget_s=budget_s,
        tell=tell,
        price_usd_per_h=price_usd_per_h,
        start_s=start_s,
        reserved_s=reserved_s,
    )
    predictor = Predictor(space)
    parts = Parts(space, ledger, predictor)
    ledger.expected = len(space.num_workers) + min(4, len(space.slot_sizes)) + len(space.threads) + 1 + FINALISTS
    parts.measure()
    final = Finals(space, ledger, predictor, parts)
    final.fit_overlap()
    final.measure()
    return final.result()
