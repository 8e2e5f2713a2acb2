"""Where the time of the training and the money went."""

from __future__ import annotations

import math

from contracts.artifacts import GoodputRecord
from inspection.page.subject import Subject
from inspection.run.view import MoneyView
from pages.markup import Html
from pages.quantities import number
from pages.rendering import render
from pages.run.time import Count, Goodput, Money, Part, TimeSection

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
    is_unpriced = view.money is None and view.goodput is not None
    told = (missing.reason.rstrip(".") for missing in view.missing if missing.what == "cost")
    unpriced = subject.reason(next(told, "no price is known for these machines"))
    return render(
        TimeSection(
            TITLE,
            goodput=_goodput(view.goodput) if view.goodput is not None else None,
            no_goodput=subject.why_absent("train", "The account of the training's time"),
            money=_money(view.money) if view.money is not None else None,
            no_money=unpriced if is_unpriced else subject.why_absent("train", "What it cost"),
            is_unpriced=is_unpriced,
        )
    )


def _goodput(found: GoodputRecord) -> Goodput:
    values = {field: getattr(found, field) for field, _, _ in PARTS}
    # Of one that is no number, as damaged events leave, no share.
    known = {field: max(0.0, value) if math.isfinite(value) else 0.0 for field, value in values.items()}
    whole = sum(known.values()) or 1.0
    per_hour = found.preemptions_per_node_hour
    per_hour_words = f"{number(per_hour)} per node-hour" if per_hour is not None and math.isfinite(per_hour) else ""
    return Goodput(
        percent=found.goodput_percent,
        wall_s=found.wall_s,
        parts=tuple(
            Part(field, field.removesuffix("_s").replace("_", "-"), name, means, values[field], known[field] / whole)
            for field, name, means in PARTS
        ),
        counts=(
            Count("preemptions", "Preemptions", found.preemptions, per_hour_words),
            Count("interruptions", "Interruptions", found.interruptions, "Ctrl-C, or SIGTERM by a user"),
            Count("kills", "Kills", found.kills, "no end was recorded, on a machine that nobody takes away"),
            Count("crashes", "Crashes", found.crashes, "ranks started again in an attempt, or a fault ended it"),
            Count("steps", "Steps", found.steps, "that count"),
            Count("lost_steps", "Lost steps", found.lost_steps, "taken again"),
            Count("attempts", "Attempts", found.attempts, f"{found.starts:,} starts of the ranks"),
        ),
        node_hours=found.node_hours,
        between_attempts_s=found.between_attempts_s,
    )


def _money(money: MoneyView) -> Money:
    saved: tuple[float | None, float | None] = (None, None)
    nothing = False
    if money.on_demand_low_usd is not None and money.on_demand_high_usd is not None:
        # The least that it can be, to the most: where in its range one is, says nothing about the other.
        low, high = money.on_demand_low_usd - money.cost_high_usd, money.on_demand_high_usd - money.cost_low_usd
        saved, nothing = (max(0.0, low), high), high <= 0 or money.strategy == "STANDARD"
    as_of = f", as of {money.as_of}" if money.as_of else ""
    return Money(
        cost=(money.cost_low_usd, money.cost_high_usd),
        cost_note=f"{money.strategy.lower()} machines" if money.strategy else "at the configuration's price",
        on_demand=(money.on_demand_low_usd, money.on_demand_high_usd),
        saved=saved,
        saved_nothing=nothing,
        node_hours=money.node_hours,
        machine=money.machine or "this machine",
        notes=(f"An estimate. Prices: {money.source}{as_of}.", *money.assumptions),
    )
