"""Where the time of the training and the money went."""

from __future__ import annotations

import math
from collections.abc import Iterator

from contracts.artifacts import GoodputRecord
from inspection.page.subject import NO_VALUE, Subject
from inspection.run.view import MoneyView
from pages.markup import Html
from pages.parts import (
    Cell,
    Figure,
    Listing,
    Part,
    Piece,
    Stack,
    Table,
    Text,
    Tile,
    Tiles,
    Title,
    Words,
    absent,
    section,
)
from pages.quantities import number, percent, seconds

TITLE = "Time and money"

# Field of the account, its name, and what it is; in the order of the bar.
PARTS: tuple[tuple[str, str, str], ...] = (
    ("productive_s", "productive", "forward, backward and update of steps that count"),
    ("start_up_s", "start-up", "process starts, imports, meeting of the ranks, restoring"),
    ("data_wait_s", "data wait", "waiting for the loader, in steps that count"),
    ("checkpoint_s", "checkpoint stall", "steps stood still for a checkpoint"),
    ("evaluation_s", "evaluation", "evaluation that counts"),
    ("lost_s", "lost work", "done, and done again after a preemption, kill or crash"),
    ("recovery_s", "recovery", "from the death of ranks to the first event of those that followed"),
    ("stop_s", "stop", "agreed stops, and the end of all processes"),
)


def account(subject: Subject) -> Html:
    """Return the section on time and money."""
    view = subject.view
    goodput, no_time = view.goodput, subject.why_absent("train", "The account of the training's time")
    found = absent("money", subject.why_absent("train", "What it cost"))
    if view.money is None and goodput is not None:
        told = (missing.reason.rstrip(".") for missing in view.missing if missing.what == "cost")
        found = _unpriced(subject.reason(next(told, "no price is known for these machines")))
    return section(
        "time",
        TITLE,
        Title("Time of the training"),
        *(_goodput(goodput) if goodput is not None else [absent("goodput", no_time)]),
        Title("Money"),
        *(_money(view.money) if view.money is not None else [found]),
    )


def _unpriced(why: str) -> Text:
    """Return why the cost is not known, and what would make that of the next run known."""
    return Text(
        [
            f"What it cost is not known: {why}. To know it of the next run, set ",
            Words("resources.price_usd_per_h", style="code"),
            " (US dollars per hour of all machines together), or ",
            Words("resources.machine.type", style="code"),
            " to one that the price table has.",
        ],
        "missing block",
        data={"absent": "money"},
    )


def _goodput(found: GoodputRecord) -> Iterator[Part]:
    values = {field: getattr(found, field) for field, _, _ in PARTS}
    # Of one that is no number, as damaged events leave, no share.
    known = {field: max(0.0, value) if math.isfinite(value) else 0.0 for field, value in values.items()}
    whole = sum(known.values()) or 1.0
    shares = {field: value / whole for field, value in known.items()}
    wall = seconds(found.wall_s) if math.isfinite(found.wall_s) else "an unknown time"
    is_known = math.isfinite(found.goodput_percent)
    share = percent(found.goodput_percent / 100) if is_known else ""
    yield Text(
        [Figure("time.goodput_percent", found.goodput_percent, shown=share), f" of {wall} moved the training on."],
        "reason",
    )
    drawn = [each for each in PARTS if shares[each[0]] > 0]
    told = ", ".join(f"{name} {percent(shares[field])}" for field, name, _ in drawn)
    yield Stack(
        f"Goodput: {told}",
        [
            (
                "",
                [
                    Piece(
                        name,
                        _colour(field),
                        shares[field],
                        f"{seconds(values[field])}, {percent(shares[field])}",
                        # A word only where it fits; the table below has them all.
                        f"{name} {percent(shares[field])}" if shares[field] > 0.14 else "",
                    )
                    for field, name, _ in drawn
                ],
            )
        ],
        "goodput",
    )
    rows: list[tuple[Cell, ...]] = [
        (
            Words(name, swatch=_colour(field)),
            Words(means, style="small"),
            Figure(f"time.{field}", values[field], "seconds"),
            percent(shares[field]) if math.isfinite(values[field]) else NO_VALUE,
        )
        for field, name, means in PARTS
    ]
    between = found.between_attempts_s
    idle = f"In addition, {seconds(between)} between attempts, in which nothing ran." if 0 < between < math.inf else ""
    head = ("Part", "What it is", "Time", "Share")
    yield Table("goodput-parts", "The training's time by what it went to", head, rows, 2, idle)
    per_hour = found.preemptions_per_node_hour
    counts = {
        "preemptions": f"{number(per_hour)} per node-hour" if per_hour is not None and math.isfinite(per_hour) else "",
        "interruptions": "Ctrl-C, or SIGTERM by a user",
        "kills": "no end was recorded, on a machine that nobody takes away",
        "crashes": "ranks started again in an attempt, or a fault ended it",
        "steps": "that count",
        "lost_steps": "taken again",
        "attempts": f"{found.starts:,} starts of the ranks",
    }
    tiles = [
        Tile(name.replace("_", " ").capitalize(), Figure(f"time.{name}", getattr(found, name), "count"), about)
        for name, about in counts.items()
    ]
    hours = Figure("time.node_hours", found.node_hours, "number")
    yield Tiles([*tiles, Tile("Node-hours", hours, "wall time \u00d7 machines")])


def _colour(field: str) -> str:
    return f"g-{field.removesuffix('_s').replace('_', '-')}"


def _money(money: MoneyView) -> Iterator[Part]:
    on_demand = money.on_demand_usd
    saved = Figure("money.saved", None, missing="not known")
    if on_demand is not None:
        less = on_demand - money.cost_usd
        nothing = less <= 0 or money.strategy == "STANDARD"
        saved = Figure("money.saved", None if nothing else less, "usd", "nothing")
    how = f"{money.strategy.lower()} machines" if money.strategy else "at the configuration's price"
    hours = Figure("money.node_hours", money.node_hours, "number")
    yield Tiles(
        [
            Tile("Cost", Figure("money.cost", money.cost_usd, "usd"), how),
            Tile(
                "On demand",
                Figure("money.on_demand", on_demand, "usd", "not known"),
                "what the same hours would have cost",
            ),
            Tile("Saved", saved, "by not taking on-demand machines"),
            Tile("Node-hours", hours, money.machine or "this machine"),
        ],
        "wide",
    )
    yield Listing([f"An estimate. Prices: {money.source}.", *money.assumptions], "money-notes", "note")
