"""Views of a run's page, with all that they can show and with nothing."""

from __future__ import annotations

from pages.links import Link
from pages.markup import Html
from pages.rendering import View
from pages.run.absent import AbsentSection
from pages.run.configuration import ConfigurationSection
from pages.run.frame import Main, Navigation, RunBody, RunHeader, StageHeader
from pages.run.lineage import Entry, Hash, LineageSection
from pages.run.missing import MissingSection
from pages.run.overview import Attempt, Change, Failure, OverviewSection, Progress, Stage, Tile
from pages.run.time import Count, Goodput, Money, Part, TimeSection

NAN = float("nan")
LINK = Link("log", "https://console.cloud.google.com/1", "gs://bucket/log.txt")
MADE = Stage("train", "done", "a checkpoint", LINK, None, 60.0, 2.0, (0.5, 1.5), "this run", (LINK, Link("text")))

EXAMPLES: dict[type[View], tuple[View, View]] = {
    AbsentSection: (AbsentSection("missing", "Completeness", "all was read", calm=True), AbsentSection("", "", "")),
    ConfigurationSection: (ConfigurationSection("Configuration", "run: 1", 3), ConfigurationSection("", "")),
    LineageSection: (
        LineageSection(
            "Lineage",
            (
                Entry("shards", "shard", LINK, (Hash("content", ""),), (Hash("listing", "11", "content of listing"),)),
                Entry("engine", "", None, (), ()),
            ),
            1,
        ),
        LineageSection("", ()),
    ),
    Main: (Main((Html("<p></p>"),), "run"), Main(())),
    MissingSection: (MissingSection("Completeness", (("shards", "gone"),), "2 more"), MissingSection("", ())),
    Navigation: (Navigation((("overview", "Overview"),)), Navigation(())),
    OverviewSection: (
        OverviewSection(
            (
                Tile("state", "State", None, "failed", state="failed"),
                Tile("export", "Export", None, "fp16, unproven", state="unproven"),
                Tile("cost", "Cost", 1.0, "1 USD", "estimate"),
                Tile("metric", "Test result", None, ""),
            ),
            "not yet",
            failures=(
                Failure("train", "Train failed", "given", (("allowed", "1"), ("to do", "2")), (Link("log"),), "again"),
            ),
            warnings=("data: copies",),
            before="run-1",
            changes=(Change("train.epochs", "", "2"),),
            changes_left_out="1 more",
            facts=(("Network", "resnet"),),
            stages=(MADE, Stage("export", "running", progress=Progress(1, 2, "gates", "fp16", 0.0))),
            attempts=(
                Attempt("1", "train", "a fault (exit code 70)", "it fell", (LINK,), 0.0, 3.0),
                Attempt("2", "train", "running"),
            ),
            attempts_left_out="1 more",
            all_attempts=3,
        ),
        OverviewSection((), "none", before="run-1"),
    ),
    RunBody: (
        RunBody(Html("<header></header>"), Html("<main></main>"), "1", 0.0, Html("<nav></nav>")),
        RunBody(Html(""), Html(""), "", float("inf")),
    ),
    RunHeader: (
        RunHeader("flowers", "1", "running", ("local run", "page of today"), "/runs", "https://console"),
        RunHeader("", "", "", (), ""),
    ),
    StageHeader: (StageHeader("Training of flowers", "done", "1", "weights"), StageHeader("", "", "")),
    TimeSection: (
        TimeSection(
            "Time and money",
            Goodput(
                70.0,
                10.0,
                (Part("lost_s", "lost", "lost work", "", 3.0, 0.3), Part("stop_s", "stop", "stop", "", NAN, 0.0)),
                (Count("steps", "Steps", 3, "that count"),),
                1.0,
                2.0,
            ),
            "",
            Money((0.5, 1.5), "spot machines", (2.0, 2.0), (0.5, 1.5), False, 1.0, "a2", ("An estimate.",)),
        ),
        TimeSection("", no_goodput="none", no_money="no price", is_unpriced=True),
    ),
}
