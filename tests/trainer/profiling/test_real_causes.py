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
    planted = {"data": {"num_workers": 0}, **planted, "profile": {"trace_steps": 4, "slot_sizes": [4]}}
    assert profile(small_shards, tmp_path / "out", ranks=ranks, **planted) == 0
    found = report_of(tmp_path / "out").findings
    assert found and found[0].rule == rule


@pytest.mark.slow
def test_a_limit_of_memory_comes_first(small_shards: str, tmp_path: Path) -> None:
    """A sample takes 16 MB, and slots of 16 just fit."""
    planted = {**network(bytes_per_sample=16_000_000), "data": {"num_workers": 0}}
    once = {"slot_sizes": [16], "trace_steps": 2}
    assert profile(small_shards, tmp_path / "free", **planted, profile=once) == 0
    found = report_of(tmp_path / "free")
    assert "R5" not in {finding.rule for finding in found.findings}
    peak = found.indicators.memory_peak_bytes
    assert peak is not None
    limited = {**once, "memory_bytes": int(peak * 1.05)}
    assert profile(small_shards, tmp_path / "limited", **planted, profile=limited) == 0
    first, *_ = report_of(tmp_path / "limited").findings
    assert first.rule == "R5" and first.command.startswith("shardline profile CONFIG parallel.slot_size=")
