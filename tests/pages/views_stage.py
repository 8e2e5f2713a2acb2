"""Summaries of stages: views with all that they can show, and with nothing."""

from __future__ import annotations

from pages.markdown import Markdown
from pages.rendering import View
from pages.stage import Block, First, Summary, first
from pages.stage.page import PlainPage, StageSummary
from pages.stage.tasks import HardLabel, MultilabelSummary

EXAMPLES: dict[type[View], tuple[View, View]] = {
    Summary: (
        Summary(
            [
                Block(
                    "Rows", ["above", Markdown("**b**")], ("name", "a|b"), 1, First((("<i>", "2"),), 9), ["below"]
                ),
                Block("List", rows=first([("item", "a line", "another"), ("x",)])),
            ]
        ),
        Summary(()),
    ),
    MultilabelSummary: (
        MultilabelSummary(
            (HardLabel("cat", 3, 0.5, 0.5, 0.5, 0.5, 0.5), HardLabel("dog", 3, 0.5, 0.5, None, None, None))
        ),
        MultilabelSummary(()),
    ),
    StageSummary: (
        StageSummary(
            "shard", True, Markdown("**all**"), "gs://b/o", "sha256:ab", "cd", First((("graph", "ef"),), 2),
            first([("listing", "01")]), 3,
        ),
        StageSummary("", False, Markdown(), "", "", "", First(), First(), 0),
    ),
    PlainPage: (PlainPage("Stage shard", "gone"), PlainPage("", "")),
}  # fmt: skip
