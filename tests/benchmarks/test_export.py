from __future__ import annotations

import re
from pathlib import Path

from benchmarks.export import GATES, SERVING_GATES, gate_seconds
from contracts.artifacts import ExportManifest

STEPS = Path(__file__).parents[2] / "trainer" / "export"


def test_only_what_is_named_as_a_gate_is_left_out_of_the_export_s_time() -> None:
    gates = [
        "torch",
        "fp32 outputs",
        "fp16 outputs",
        "batches",
        "engine metrics",
        "engine speed",
        "program",
        "bench",
    ]
    serving = ["samples"]
    making = ["trace", "fp16", "int8", "engine sm89", "repository", "a step of tomorrow"]
    names = [*gates, "engine sm89 outputs", *serving, *making]
    steps = {name: {"seconds": float(2**place), "peak_bytes": 0.0} for place, name in enumerate(names)}
    found = gate_seconds(ExportManifest.model_construct(steps=steps))
    assert found == (sum(2**place for place in range(9)), 2**9)


def test_every_gate_s_name_is_a_step_of_the_export() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in STEPS.rglob("*.py"))
    # "torch" is no process of its own: its share of "trace" is kept under this name.
    named = {"torch"} | set(re.findall(r"""\bstep\(\s*"([^"]+)",""", source))
    assert set(GATES) | set(SERVING_GATES) <= named
