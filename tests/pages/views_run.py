"""Views of a run's page, with all that they can show and with nothing."""

from __future__ import annotations

from pages.chart import Axis, Line, make_plot
from pages.markup import Html
from pages.parts import (
    Chip,
    Code,
    Drawing,
    Figure,
    Fold,
    Grid,
    Inline,
    Link,
    Listing,
    Notice,
    Pairs,
    Parts,
    Piece,
    Pieces,
    Sheet,
    Stack,
    Strips,
    Table,
    Text,
    Tile,
    Tiles,
    Title,
    Words,
    Worst,
    WorstSample,
    absent,
    usd,
)
from pages.rendering import View
from pages.run.classification import ConfusionMatrix
from pages.run.curves import MarkStrip
from pages.run.frame import Body, Header, Navigation
from pages.run.multilabel import LabelRow, MultilabelResults
from pages.run.picture import Picture

PICTURE = Picture("AAAA", "image labelled cat", "cat, train, 0001", 72, 54)
AXIS = Axis(0.0, 1.0, [(0.0, "0"), (1.0, "1")])
PLOT = make_plot(
    [Line("<b>", [0.0, 1.0], [0.0, 1.0], 0)],
    AXIS,
    AXIS,
    label='"><script>',
    rules=[("crash", [0.5])],
)
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
CELLS = (
    "<i>",
    Figure("a", 0.5, "percent", note="note", bar=0.5, mark=0.8),
    Figure("b", None),
    Figure("c", 2.0, shown="two"),
    Words("text", "more", "code", star=True, swatch="p0", name="text", shape="proven", title="hover"),
    Inline(["a", Link("log", "https://console.cloud.google.com/1", "gs://bucket/log.txt"), Link("b")]),
    (Chip("done"), Chip("failed", "refused")),
    Pieces([Piece("train", "p0", 0.5, "3")]),
    usd("cost", 0.5, 1.5),
)
EVERYTHING = Parts(
    [
        Html("<p></p>"),
        Title("Title"),
        absent("data", "it is gone"),
        Text(CELLS, "note", "name", {"a": "b"}),
        Tiles([Tile("Cost", CELLS[1], "note", "alarm")], "wide"),
        Table("table", "Cells", ["cell"] * len(CELLS), [CELLS], 2, "1 more", [{"stage": "train"}]),
        Listing(["one", CELLS], "list", "legend", ordered=True),
        Code("a: <b>", "YAML"),
        Pairs([("name", "value")], "pairs"),
        Drawing(PLOT, CELLS[:1], [("train", 0.5), ("test", None)], "area", "square", ["diverged"], {"chart": "ROC"}),
        Stack("What it is made of", [("rank 0", [Piece("copy", "c-copy", 0.5, "3 ms", "copy")])], "stack"),
        Strips([("train", "3 shards", "M0 0z"), ("", "residuals", "M0 0z")], "strips"),
        Sheet([(PICTURE, "cat", "train"), (PICTURE, "dog", "")], "sheet"),
        WORST,
        Fold("Folded", [Title("Within")], "fold", opened=True, data={"rank": "0"}),
        Notice("bad", CELLS[:1], [Text("why")], "failed", {"error": "train"}),
        Grid([Title("Beside")], "duo"),
    ],
    "section",
    "Section",
)

EXAMPLES: dict[type[View], tuple[View, View]] = {
    Parts: (EVERYTHING, Parts([])),
    Navigation: (Navigation((("overview", "Overview"),)), Navigation(())),
    Body: (
        Body(Html("<header></header>"), (Html("<section></section>"),), "read", "overview", Html("<nav></nav>")),
        Body(Html(""), (), ""),
    ),
    Header: (
        Header("flowers", ("local run", "page of today"), "1", "running", "/runs", "https://console"),
        Header("", ()),
    ),
    MarkStrip: (
        MarkStrip(
            "What happened",
            (("runs", 11.0),),
            66,
            ((0.1, 0.2),),
            (("crash", "M0 0z", 0.5, 11.0, "crash, step 7"),),
            (("0", 0.0),),
            (("crash", "M0 0z", "1 crash"),),
        ),
        MarkStrip("", (), 0, (), (), (), ()),
    ),
    ConfusionMatrix: (
        ConfusionMatrix(("cat", "long name"), (((5, "h8"), (1, "h1 off")), ((0, "none"), (4, "h8"))), True),
        ConfusionMatrix((), ()),
    ),
    MultilabelResults: (
        MultilabelResults(
            "average_precision_binned",
            0.5,
            True,
            0.5,
            0.5,
            1,
            2,
            0.25,
            (LabelRow(0, "cat", 3, 0.5, 0.4, 0.5, 0.5, 0.5, (0.25, None)),),
            "Of 9 labels",
            WORST,
        ),
        MultilabelResults("average_precision", None, False, None, None, 0, 0, 0.0, (), "", None),
    ),
}
