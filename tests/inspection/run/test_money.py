"""What a training has cost, at a price that the configuration gives."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.config import RunConfig
from inspection.run.money import find_money
from tests.inspection.planted import make_goodput

# Half an hour on four machines.
ACCOUNT = make_goodput(wall_s=1800.0, node_hours=2.0)


@pytest.mark.parametrize("nodes", ["auto", 4])
def test_a_price_is_of_all_machines_together(nodes: Any) -> None:
    config = RunConfig.model_validate({"resources": {"nodes": nodes, "price_usd_per_h": 40.0}})
    money, reason = find_money(config, ACCOUNT)
    assert money is not None and reason == ""
    assert money.cost_usd == pytest.approx(20.0)
    assert money.node_hours == 2.0


def test_without_a_price_it_says_what_to_set() -> None:
    money, reason = find_money(RunConfig.model_validate({}), ACCOUNT)
    assert money is None
    assert "resources.machine.type" in reason and "resources.price_usd_per_h" in reason
