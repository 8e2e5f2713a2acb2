"""A full and an empty view of each template of `shardline ui`."""

from __future__ import annotations

from pages.chart import Sparkline
from pages.markup import Html
from pages.parts import Clock
from pages.rendering import View
from pages.ui.history import HistoryPage
from pages.ui.run_list import Cell, ComparisonHeader, Head, RunListPage, RunRow
from pages.ui.shell import FailurePage, LiveContent, LogPage, LogTail, UiBody

_CURVE = Sparkline("validation/accuracy: first 95 %, last 99 %, best 99 %", "M0 0L2000 1000")
_CELLS = (
    Cell("train 40 %", sort=0.0, is_words=True),
    Cell(Clock("roses/1", "3 s"), sort=3.0),
    Cell(_CURVE),
)

EXAMPLES: dict[type[View], tuple[View, View]] = {
    UiBody: (UiBody(Html("<main>all</main>")), UiBody(Html(""))),
    HistoryPage: (
        HistoryPage("roses", "runs/roses", "in production: run 1", False, Html("<table></table>")),
        HistoryPage("", "", "", True, Html("")),
    ),
    FailurePage: (FailurePage("Not here", "There is no page."), FailurePage("", "")),
    LiveContent: (
        LiveContent(
            Html("<header></header>"),
            (Html("<section></section>"),),
            "/api/run/roses/1",
            "a.b",
            True,
            '{"overview.duration": 1.0}',
            "/api/curves/roses/1",
        ),
        LiveContent(Html(""), (), "", "", False, "{}", ""),
    ),
    LogTail: (LogTail("train", "", "step 1\nstep 2"), LogTail()),
    LogPage: (
        LogPage("train", "/run/roses/1", "a1", "/run/roses/1/log/train/a1", 100, 200, 4_000, "step 1"),
        LogPage("", "", "", "", 0, 0, 0, ""),
    ),
    RunRow: (
        RunRow("roses/1", "roses", "1", "running", _CELLS, '{"metrics":{}}', ("team=vision",)),
        RunRow("", "", "", "", ()),
    ),
    RunListPage: (
        RunListPage(
            "gs://bucket/lines",
            (Head("run", "Run", True), Head("cost", "Cost", False)),
            (Html("<tr></tr>"),),
            "a.1",
            '{"roses/1": 3.0}',
            "The bucket lists nothing.",
        ),
        RunListPage("", (), (), "", "{}"),
    ),
    ComparisonHeader: (ComparisonHeader((("A", "roses 1", "/run/roses/1"), ("B", "2", "/"))), ComparisonHeader(())),
}
