"""Sections of a run's page on data, curves and results: views with all that they can show, and with nothing."""

from __future__ import annotations

from pages.chart import Axis, Line, make_plot
from pages.links import Link
from pages.markup import Html
from pages.rendering import View
from pages.run.classification import (
    ClassificationResults,
    ConfusedPair,
    ConfusedPairs,
    ConfusionMatrix,
    OutcomeRow,
    Roc,
)
from pages.run.curves import ChartBox, ChartData, CurveRow, CurvesSection, MarkShape, MarkStrip, OverTime
from pages.run.data import (
    Changes,
    Classes,
    ClassRow,
    Columns,
    DataSection,
    FieldChange,
    FirstRows,
    Lengths,
    RejectedFiles,
    Sheet,
    Strip,
)
from pages.run.multilabel import LabelRow, MultilabelResults
from pages.run.picture import Picture
from pages.run.regression import FarRow, RegressionResults, Residuals
from pages.run.results import (
    BestCheckpoint,
    MetricRow,
    MetricTiles,
    ResultsSection,
    Worst,
    WorstSample,
)

PICTURE = Picture("AAAA", "image labelled cat", "cat, train, 0001", 72, 54)
AXIS = Axis(0.0, 1.0, [(0.0, "0"), (1.0, "1")])
PLOT = make_plot(
    [Line("<b>", [0.0, 1.0], [0.0, 1.0], 0)],
    AXIS,
    AXIS,
    label='"><script>',
    gaps=[(0.2, 0.4)],
    rules=[("crash", [0.5])],
)
BOX = ChartBox(
    "Loss",
    "Loss",
    "train/loss",
    "number",
    '["train/loss"]',
    (("train", 0.25),),
    ("train/loss: 1 value is not finite",),
    PLOT,
)
TWO = ChartBox("Both", "Both", "", "percent", "[]", (("train", 0.25), ("validation", None)), (), PLOT)
MARK = MarkShape("crash", "M0 0z", 0.5, 11.0, "crash, step 7")
STRIP = MarkStrip(
    "What happened", (("runs", 11.0),), 66, ((0.1, 0.2),), (MARK,), (("0", 0.0),), (("crash", "M0 0z", "1 crash"),),
    ("crash, step 7",), 2, 3,
)  # fmt: skip
WORST = Worst(
    "Worst classified",
    "the lowest first",
    (
        WorstSample(
            PICTURE,
            None,
            (("label", "cat", "plain", 0.1), ("predicted", "dog", "bad", 0.9)),
            "0001",
            Link("cat/1.jpg", "file:///cat/1.jpg"),
        ),
        WorstSample(None, "a text", (("labels", "none", "", None),), "0002"),
        WorstSample(None, "", (), "0003"),
        WorstSample(None, None, (), "0004"),
    ),
)

EXAMPLES: dict[type[View], tuple[View, View]] = {
    DataSection: (
        DataSection(
            title="Data", samples=9, splits=(("train", 6), ("test", 3)), num_classes=2, shards=2,
            shard_format="tfrecord", shard_bytes=4096, increments=1, rejected=2, ignored=1, copies=1, leaks=1,
            copies_searched=True, has_images=True,
            classes=Classes((ClassRow(0, "cat", (6, 3), 9, (0.6, 0.3)),), "Of 2 classes"),
            columns=Columns((("Mean", "mean", "number"),), (("age", "numbers", "number", (1.5,)),), "1 more"),
            sheet=Sheet(((PICTURE, "cat", "train"),), "train", "1 more"), first_slot=PICTURE,
            first_rows=FirstRows(("tokens", "label"), (("a <b>", "spam"),)),
            strips=(Strip("train", 2, 4096, (1.0, 2.0, 3.0), 1, "M0 0z"), Strip("test", 1, 10, None, 0, "M0 0z")),
            rejected_files=RejectedFiles((("damaged", 2, 1.0),), "rarer", (("a.jpg", "damaged"),), "1 more"),
            formats=(("JPEG", 8), ("PNG", 1)), spans=(("Width", 1, 9),), channels=(("Mean", (0.1, 0.2)),),
            lengths=(Lengths("text", ((0, 0, 0, 1, 0.5), (2, 2, 3, 2, 1.0))),),
            changes=(
                Changes("run 1", "", False, (
                    FieldChange("size", "fail", "drifted", 0.02, (0.0, 1.0, 2.0), (1.0, 2.0, 3.0), 0.3, 0.0),
                    FieldChange("label", "ok", "too few", 0.0, None, None, None, None),
                ), (("town", "d"),), (("town", "a"),), 3, "1 more"),
                Changes("run 2", "", True, (), (), (), 0),
                Changes("run 3", "it is gone", False, (), (), (), 0),
            ),
        ),
        DataSection(
            title="", samples=0, splits=(), num_classes=0, shards=0, shard_format="", shard_bytes=0, increments=0,
            rejected=0, ignored=0, copies=None, leaks=None, copies_searched=False, has_images=False, classes=None,
        ),
    ),
    CurvesSection: (
        CurvesSection(
            "Curves", rows=9, most_points=4, curves_left_out=1, charts=(BOX, TWO),
            flat=(("train/epoch", "number", 2.0),), over_time=OverTime(STRIP, 60.0),
            values=(CurveRow("train/loss", "train/loss", "number", 9, 2.0, 0.25, 0.1, 2.0, ((1, 2.0),)),),
            missing=("one file is damaged",),
        ),
        CurvesSection("", "there are none"),
    ),
    ChartData: (ChartData(Html('{"curves":[]}')), ChartData(Html("null"))),
    ResultsSection: (
        ResultsSection(
            "Results", task=Html("<p>of the task</p>"), pictures=(("first", PICTURE),), left_out="1 more",
            checkpoint=BestCheckpoint(
                3, 9, 1, "ema", "epochs", "random weights",
                (MetricRow("accuracy", "exact_percent", 0.9, 0.8), MetricRow("own", "number", None, None, 7.0)),
            ),
        ),
        ResultsSection("", "there are none"),
    ),
    MetricTiles: (MetricTiles(9, 0.25, (("Own", "own", 0.5, "metric_number"),)), MetricTiles(0, 0.0, ())),
    ClassificationResults: (
        ClassificationResults(
            0.9, (0.8, 0.95), 1, 10, 0.9, 0.9, 0.99, 0.25,
            ConfusionMatrix(("cat", "long name"), (((5, "h8"), (1, "h1 off")), ((0, "none"), (4, "h8")))), None, 3,
            (OutcomeRow(0, "cat", 6, 5, 0.8, (0.5, 0.9), 1.0, 0.9, 0.99, (0.7, None)),), "Of 2 classes",
            Roc(PLOT, (("micro-average", 0.99),), " Of 9 classes"), WORST, 0.8, True,
        ),
        ClassificationResults(
            None, None, 0, 0, None, None, None, 0.0, None,
            ConfusedPairs(2, (ConfusedPair("a", "b", "0.1", 1, None),), ""), 0, (), "", None, None,
        ),
    ),
    MultilabelResults: (
        MultilabelResults(
            "average_precision_binned", 0.5, True, 0.5, 0.5, 1, 2, 0.25,
            (LabelRow(0, "cat", 3, 0.5, 0.4, 0.5, 0.5, 0.5, (0.25, None)),), "Of 9 labels", WORST,
        ),
        MultilabelResults("average_precision", None, False, None, None, 0, 0, 0.0, (), "", None),
    ),
    RegressionResults: (
        RegressionResults(
            "price", 0.5, 1.0, 2.0, 0.25, Residuals("M0 0z", -1.0, 1.0, 3),
            (FarRow("age: 3", 1.0, 2.0), FarRow(None, 1.0, 2.0)), "1 more",
        ),
        RegressionResults("", None, None, None, 0.0, None),
    ),
}  # fmt: skip
