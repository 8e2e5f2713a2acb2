"""Summaries of stages: views with all that they can show, and with nothing."""

from __future__ import annotations

from contracts.artifacts import Gate, ProfilePoint
from pages.markdown import Markdown
from pages.rendering import View
from pages.stage import First, first
from pages.stage.export import ExportSummary, Precision, SharedMetric
from pages.stage.page import PlainPage, StageSummary
from pages.stage.profile import FoundSlow, ProfileSummary
from pages.stage.shard import Classes, Column, DataCard, Images
from pages.stage.tasks import ClassificationSummary, HardClass, HardLabel, MultilabelSummary, RegressionSummary
from pages.stage.train import Metric, Money, TrainSummary
from tests.inspection.planted import make_export, make_goodput

WORDS = First(("<one>", "two"), 9)
PAIRS = First((("cat", 3),), 4)
EXPORT = make_export()
POINT = ProfilePoint(slot_size=8, num_workers=2, samples_per_s=10.0, data_time_fraction=0.5)

EXAMPLES: dict[type[View], tuple[View, View]] = {
    DataCard: (
        DataCard(
            9, 2, 1, "tfrecord", 10, WORDS,
            First((Column("age", "numbers", "number", (1.0, None, 0.0, 2.0), 1, None, (("test", 1), ("x", 2))),), 2),
            First((("train", 9, 1, 10),), 2), True,
            Classes(First(("train",), 2), (("cat", (9,)), ("dog", (None,))), 9, "x"),
            Images(PAIRS, PAIRS, (1, 2, 3, 4), (0.5,), (0.5,), PAIRS, "decode"), 3, 1,
            First((("a|b.jpg", "bad"),), 3), 2, (1, 1, True), True,
        ),
        DataCard(0, 0, 0, "", 0, First(), First(), First(), False, None, None, 0, 0, First(), 0, None, False),
    ),
    ProfileSummary: (
        ProfileSummary(
            "this", "fast", "why", False, First((FoundSlow("R1", "slow", WORDS),), 2), WORDS,
            First((POINT, ProfilePoint(slot_size=8, num_workers=2, outcome="hung")), 9), WORDS,
            "much",
        ),
        ProfileSummary("off", "not measured", "off", True, First(), First(), First(), First(), ""),
    ),
    TrainSummary: (
        TrainSummary(
            (("Cost", "1 USD", "estimate"),), First((Metric("test accuracy", 0.9, "exact_percent"),), 2), 9, 1, 8, 0,
            "weights", "train.epochs", WORDS,
            make_goodput(), (("productive steps", 6.0),), "",
            Money("1 USD", "a table", "2 USD"), Markdown("## Of the task"), "", First((("torch", "2"),), 2),
        ),
        TrainSummary((), First(), 0, 0, 0, 0, "", "", First(), None, (), "none", None, Markdown(), "none", First()),
    ),
    ExportSummary: (
        ExportSummary(
            "fp16", "proven", "a graph", "a server", "int8", First((("int8", "off"),), 2), "accuracy", "exact_percent",
            First(
                (
                    Precision("fp16", 0.9, 1e-3, 0.9, 0.9, "1 ms", (1, 2)),
                    Precision("int8", None, None, None, None, "", (0, 0)),
                ),
                3,
            ),
            9, First(((EXPORT.engines[0], "A100", "passed"),), 2), First(tuple(EXPORT.latency), 2),
            First((SharedMetric("p50", 2, "ort", "cpu"),), 2), First((("torch", "no"),), 2),
            First((Gate(name="parity", precision="fp16", status="passed", ran="ort", reason="near"),), 2),
        ),
        ExportSummary(
            "fp16", "unproven", "", "", "fp16", First(), "accuracy", "number", First(), 0, First(), First(), First(),
            First(), First(),
        ),
    ),
    ClassificationSummary: (
        ClassificationSummary(
            (HardClass("cat", 3, 0.5, None, None), HardClass("dog", 3, 0.5, 0.5, 0.5)), (("cat", "dog", 1),)
        ),
        ClassificationSummary((), ()),
    ),
    MultilabelSummary: (
        MultilabelSummary(
            (HardLabel("cat", 3, 0.5, 0.5, 0.5, 0.5, 0.5), HardLabel("dog", 3, 0.5, 0.5, None, None, None))
        ),
        MultilabelSummary(()),
    ),
    RegressionSummary: (RegressionSummary((("0001", 1.0, 2.0),)), RegressionSummary(())),
    StageSummary: (
        StageSummary(
            "shard", True, Markdown("**all**"), "gs://b/o", "sha256:ab", "cd", First((("graph", "ef"),), 2),
            first([("listing", "01")]), 3,
        ),
        StageSummary("", False, Markdown(), "", "", "", First(), First(), 0),
    ),
    PlainPage: (PlainPage("Stage shard", "gone"), PlainPage("", "")),
}  # fmt: skip
