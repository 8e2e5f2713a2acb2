"""A full and an empty view of each template of `shardline ui`."""

from __future__ import annotations

from pages.chart import Sparkline
from pages.markup import Html
from pages.rendering import View
from pages.ui.comparison import (
    ComparisonHeader,
    CurvesPlace,
    Difference,
    Origin,
    OriginsSection,
    Result,
    ResultsSection,
    Setting,
    SettingsSection,
)
from pages.ui.history import HistoryPage, HistoryRow
from pages.ui.run_list import Cell, Head, RunListPage, RunRow
from pages.ui.shell import FailurePage, LiveContent, LogPage, LogTail, UiBody

_CURVE = Sparkline("validation/accuracy: first 95 %, last 99 %, best 99 %", "M0 0L2000 1000")
_CELLS = (
    Cell("state", beside="train 40 %", state="running", sort=0.0, is_words=True),
    Cell("started", "2026-11-22 07:00:00", moment="2026-11-22T07:00:00Z", sort=1.0, is_words=True),
    Cell("duration", "3 s", "so far", clock="roses/1", sort=3.0),
    Cell("metric", "99.43 %", "of 875 samples", beside="accuracy", sort=0.9943),
    Cell("curve", curve=_CURVE, sort=0.9943),
    Cell("export", "fp16, proven", state="proven", sort="fp16, proven", is_words=True),
)
_COLUMNS = ("when", "run", "state", "data", "result", "decision")
_LETTERS = ("A", "B")

EXAMPLES: dict[type[View], tuple[View, View]] = {
    UiBody: (UiBody(Html("<main>all</main>")), UiBody(Html(""))),
    HistoryPage: (
        HistoryPage(
            "roses",
            "runs/roses",
            "in production: run 1",
            False,
            dict.fromkeys(_COLUMNS, "title"),
            (
                HistoryRow(
                    "1",
                    "/run/roses/1",
                    "succeeded",
                    "warn",
                    ("brightness has drifted",),
                    True,
                    {
                        "when": "today",
                        "run": "1",
                        "state": "succeeded",
                        "data": "warn",
                        "result": "99 %",
                        "decision": "1: promoted",
                    },
                    _CURVE,
                ),
                HistoryRow("1", "", "", "", (), False, dict.fromkeys(_COLUMNS, "")),
            ),
        ),
        HistoryPage("", "", "", True, {}, ()),
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
    ResultsSection: (
        ResultsSection(
            "results",
            "Results",
            _LETTERS,
            (
                Result("State", _CELLS[:2], (None, None)),
                Result("Cost", (Cell("cost", "2 USD"), Cell("cost")), (None, Difference("+1 USD, worse", "bad"))),
                Result("Duration", (_CELLS[2], _CELLS[2]), (None, Difference("the same"))),
            ),
            "Two are left out.",
        ),
        ResultsSection("data", "", ("A",), ()),
    ),
    CurvesPlace: (CurvesPlace("No curves yet."), CurvesPlace("")),
    SettingsSection: (
        SettingsSection(
            "choice",
            "Choice",
            "All settings",
            _LETTERS,
            (Setting("train.seed", ("1", None), True), Setting("run.name", ("a", "a"), False)),
            "Two more.",
        ),
        SettingsSection("choice", "", "", ("A",), ()),
    ),
    OriginsSection: (
        OriginsSection(
            _LETTERS,
            (
                Origin("shards", "same", ("ab", "ab")),
                Origin("engine", "different", ("ab", "cd")),
                Origin("checkpoint", "unknown", ("ab", "")),
            ),
        ),
        OriginsSection(("A",), ()),
    ),
}
