"""What was planted in a real run on a CPU is its first finding.

Small kernels, copies to a GPU and waits for one need a GPU: they are planted in synthetic traces only (test_rules.py).
"""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.profiling.test_task import PLANTED, profile, report_of

# A whole profile each, with traces: 20 to 60 s on two cores.
pytestmark = pytest.mark.line


def network(**arguments: Any) -> dict[str, Any]:
    return {"model": {"architecture": f"{PLANTED}:PlantedNetwork", "arguments": arguments}}


@pytest.mark.parametrize(
    ("rule", "ranks", "planted"),
    [
        pytest.param(
            "R1", 1, {"data": {"transform": f"{PLANTED}:slow_image", "num_workers": 0}}, marks=pytest.mark.slow
        ),
        ("R4", 1, {**network(turns=12), "data": {"image_size": 96, "num_workers": 0}}),
        pytest.param("R10", 2, network(slow_rank=1, busy_s=0.2), marks=pytest.mark.slow),
    ],
)
def test_what_was_planted_comes_first(
    small_shards: str, tmp_path: Path, rule: str, ranks: int, planted: dict[str, Any]
) -> None:
    planted = {"data": {"num_workers": 0}, **planted, "profile": {"slot_sizes": [4]}}
    assert profile(small_shards, tmp_path / "out", ranks=ranks, traced=True, **planted) == 0
    found = report_of(tmp_path / "out").findings
    assert found and found[0].rule == rule
