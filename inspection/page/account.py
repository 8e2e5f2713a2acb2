"""Where the time of the training and the money went."""

from __future__ import annotations

import math

from contracts.artifacts import GoodputRecord
from inspection.page.subject import NO_VALUE, Subject, tile
from inspection.run.view import MoneyView
from pages.markup import Html, element, figure, join, section, table
from pages.quantities import NBSP, count, number, percent, seconds, usd

TITLE = "Time and money"

# Field of the account, its name, and what it is; in the order of the bar.
PARTS: tuple[tuple[str, str, str], ...] = (
    ("productive_s", "productive", "forward, backward and update of steps that count"),
    ("start_up_s", "start-up", "process starts, imports, meeting of the ranks, restoring"),
    ("data_wait_s", "data wait", "waiting for the loader, in steps that count"),
    ("checkpoint_s", "checkpoint stall", "steps stood still for a checkpoint"),
    ("evaluation_s", "evaluation", "evaluation that counts"),
    ("lost_s", "lost work", "done, and done again after a preemption, kill or crash"),
    ("recovery_s", "recovery", "from the death of ranks to the first word of those that followed"),
    ("stop_s", "stop", "agreed stops, and the end of all processes"),
)


def account(subject: Subject) -> Html:
    """Return the section on time and money."""
    view = subject.view
    parts = [element("h3", "Time of the training")]
    if view.goodput is None:
        parts.append(subject.absent("goodput", "train", "The account of the training's time"))
    else:
        parts += [_bar(view.goodput), _parts(view.goodput), _counts(view.goodput)]
    parts.append(element("h3", "Money"))
    parts.append(_unknown(subject) if view.money is None else _money(view.money))
    return section("time", TITLE, *parts)


def _shares(found: GoodputRecord) -> dict[str, float]:
    """Return the share of each part; of one that is no number, as damaged events leave, nothing."""
    values = {field: getattr(found, field) for field, _, _ in PARTS}
    known = {field: max(0.0, value) if math.isfinite(value) else 0.0 for field, value in values.items()}
    whole = sum(known.values()) or 1.0
    return {field: value / whole for field, value in known.items()}


def _bar(found: GoodputRecord) -> Html:
    shares = _shares(found)
    pieces = []
    for field, name, _ in PARTS:
        share = shares[field]
        if share <= 0:
            continue
        # A word only where it fits; the table below has them all.
        words = f"{name} {percent(share)}" if share > 0.14 else ""
        pieces.append(
            element(
                "i",
                element("span", words),
                class_=f"g-{field.removesuffix('_s').replace('_', '-')}",
                style=f"width:{share * 100:.2f}%",
                title=f"{name}: {seconds(getattr(found, field))}, {percent(share)}",
                data_part=field,
            )
        )
    told = ", ".join(f"{name} {percent(shares[field])}" for field, name, _ in PARTS if shares[field] > 0)
    return join(
        [
            element(
                "p",
                element("strong", figure("time.goodput_percent", found.goodput_percent, lambda v: percent(v / 100))),
                f" of {_lasted(found.wall_s)} moved the training on.",
                class_="reason",
            ),
            element("div", *pieces, class_="stack", role="img", aria_label=f"Goodput: {told}", id="goodput"),
        ]
    )


def _lasted(value: float) -> str:
    return seconds(value) if math.isfinite(value) else "an unknown time"


def _parts(found: GoodputRecord) -> Html:
    shares = _shares(found)
    rows = []
    for field, name, meaning in PARTS:
        kind = field.removesuffix("_s").replace("_", "-")
        value = getattr(found, field)
        rows.append(
            [
                join([element("span", class_=f"swatch g-{kind}", aria_hidden="true"), name]),
                element("small", meaning),
                figure(f"time.{field}", value, seconds),
                percent(shares[field]) if math.isfinite(value) else NO_VALUE,
            ]
        )
    note = ""
    if 0 < found.between_attempts_s < math.inf:
        note = f"Beside it, {seconds(found.between_attempts_s)} between attempts, in which nobody worked."
    head = ["Part", "What it is", "Time", "Share"]
    return table("The training's time by what it went to", head, rows, id_="goodput-parts", words=2, note=note)


def _counts(found: GoodputRecord) -> Html:
    rate = found.preemptions_per_node_hour
    tiles = [
        tile(
            "Preemptions",
            figure("time.preemptions", found.preemptions, count),
            f"{number(rate)} a node-hour" if rate is not None and math.isfinite(rate) else "",
        ),
        tile("Interruptions", figure("time.interruptions", found.interruptions, count), "Ctrl-C, or SIGTERM by a user"),
        tile("Kills", figure("time.kills", found.kills, count), "ended without a word on a machine nobody takes away"),
        tile(
            "Crashes",
            figure("time.crashes", found.crashes, count),
            "ranks started again in an attempt, or a fault ended it",
        ),
        tile("Steps", figure("time.steps", found.steps, count), "that count"),
        tile("Lost steps", figure("time.lost_steps", found.lost_steps, count), "taken again"),
        tile("Attempts", figure("time.attempts", found.attempts, count), f"{found.starts:,} starts of the ranks"),
        tile("Node-hours", figure("time.node_hours", found.node_hours, number), "wall time \u00d7 machines"),
    ]
    return element("div", *tiles, class_="tiles")


def _money(money: MoneyView) -> Html:
    tiles = [
        tile(
            "Cost",
            usd_range("money.cost", money.cost_low_usd, money.cost_high_usd),
            f"{money.strategy.lower()} machines" if money.strategy else "at the configuration's price",
        ),
        tile(
            "On demand",
            usd_range("money.on_demand", money.on_demand_low_usd, money.on_demand_high_usd),
            "what the same hours would have cost",
        ),
        tile("Saved", _saved(money), "by not taking on-demand machines"),
        tile("Node-hours", figure("money.node_hours", money.node_hours, number), money.machine or "this machine"),
    ]
    said = [f"An estimate. Prices: {money.source}" + (f", as of {money.as_of}" if money.as_of else "") + "."]
    items = [element("li", words) for words in (*said, *money.assumptions)]
    return join([element("div", *tiles, class_="tiles wide"), element("ul", *items, class_="note", id="money-notes")])


def usd_range(name: str, low: float | None, high: float | None) -> Html:
    """Return an estimate between two ends as figures; one where both read the same."""
    if low is None or high is None or usd(low) == usd(high):
        return figure(name, high if high is not None else low, usd, "not known")
    return join(
        [figure(f"{name}.low", low, lambda value: usd(value).partition(NBSP)[0]), " to ", figure(name, high, usd)]
    )


def _saved(money: MoneyView) -> Html:
    if money.on_demand_low_usd is None or money.on_demand_high_usd is None:
        return figure("money.saved", None, usd, "not known")
    if money.strategy == "STANDARD":
        return element("span", "nothing", data_figure="money.saved", data_missing=True, class_="missing")
    # The least that it can be, to the most: where in its range one is, says nothing about the other.
    low = money.on_demand_low_usd - money.cost_high_usd
    high = money.on_demand_high_usd - money.cost_low_usd
    if high <= 0:
        return element("span", "nothing", data_figure="money.saved", data_missing=True, class_="missing")
    return usd_range("money.saved", max(0.0, low), high)


def _unknown(subject: Subject) -> Html:
    if subject.view.goodput is None:
        return subject.absent("money", "train", "What it cost")
    told = (missing.reason.rstrip(".") for missing in subject.view.missing if missing.what == "cost")
    reason = next(told, "no price is known for these machines")
    return element(
        "p",
        f"What it cost is not known: {subject.reason(reason)}. To know it of the next run, set ",
        element("code", "resources.price_usd_per_h"),
        " (US dollars an hour of all machines together), or ",
        element("code", "resources.machine.type"),
        " to one that the price table has.",
        class_="missing block",
        data_absent="money",
    )
