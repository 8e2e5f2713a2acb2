"""Sections of a run's page on the sweep and the export: views with all that they can show, and with nothing."""

from __future__ import annotations

from pages.links import Link
from pages.markup import Html
from pages.rendering import View
from pages.run.export import (
    EngineRow,
    ExportSection,
    GateRow,
    Gates,
    Latencies,
    LatencyRow,
    MetricRow,
    ParityRow,
    Tried,
)
from pages.run.sweep import Chosen, SweepSection

GATES = Gates(
    "gates", "Gates", (
        GateRow("parity", "fp16", "passed", (("error 1", "2"),), ("samples 3",), "ort", "near"),
        GateRow("engine", "fp16", "not run", (), (), "no GPU", ""),
    ), "1 more",
)  # fmt: skip
SPEEDS = Latencies("latency", "Latency", (LatencyRow("ort", "fp16", "cpu", 1, 1.0, 12.0, None, 9.0),), "1 more")

EXAMPLES: dict[type[View], tuple[View, View]] = {
    SweepSection: (
        SweepSection(
            "Sweep", "fast", Chosen(8, 2, 4, "bf16", 9.0, (("tokens", 90.0),), 0.1), "sure",
            Html("<p>map</p>"), "sweep",
            60.0, 3, 2, 1, 0.1, (("slot size 8", "hung", "why"),), "1 more", Html("<p>finding</p>"), "2 more",
            Html("<p>wanted</p>"), Link("The whole profile", "#"),
        ),
        SweepSection(
            "", "", Chosen(0, 0, 0, "", None, (), None), "", Html(""), "", None, 0, 0, 0, None, (), "", Html(""), "",
            Html(""), None,
        ),
    ),
    ExportSection: (
        ExportSection(
            title="Export", verdict="unproven", served="a graph", nothing_proves=("all",), not_shown=("fp16",),
            engines_not_run=("sm80",), precision="fp16", asked_precision="int8", metric="accuracy",
            metric_title="Accuracy", unit="exact_percent", is_share=True, shipped=0.9, reference=0.91, samples=9,
            gates_passed=1, num_gates=2, other_gates=((1, "not run"),), num_engines=1, builders=("trt",),
            tried=(Tried("fp16", "kept", "ships", "why", ("node",), 21), Tried("int8", "failed", "refused", "", (), 0)),
            parity=(
                ParityRow("onnx.fp16", "onnx fp16", "passed", "ort", 1e-4, 0.9, 0.9, True, 9),
                ParityRow("onnx.int8", "onnx int8", "not run", "", None, None, None, False, None),
            ),
            parity_left_out="1 more",
            metrics=(MetricRow("fp16", 0.9, 0.004, (("conv", 0.5),)), MetricRow("torch", 0.91, None, ())),
            gates=GATES, latency=SPEEDS, not_measured=(("torch", "no"),),
            engines=(EngineRow("sm80", "unproven", "A100", "trt", 9, (1, 8, 64), 9.0),), engines_left_out="1 more",
            verifications=((GATES, SPEEDS), (GATES, None)), registration=(("verdict", "upload"), ("upload", "")),
        ),
        ExportSection(
            title="", verdict="proven", served="", nothing_proves=(), not_shown=(), engines_not_run=(), precision="",
            asked_precision="", metric="", metric_title="", unit="number", is_share=False, shipped=None, reference=None,
            samples=0, gates_passed=0, num_gates=0, other_gates=(), num_engines=0, builders=(), tried=(), parity=(),
            parity_left_out="", metrics=(), gates=Gates("", "", (), ""), latency=None, not_measured=(), engines=(),
            engines_left_out="", verifications=(), registration=(),
        ),
    ),
}  # fmt: skip
