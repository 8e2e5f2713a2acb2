"""A plan as a table for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TextIO

from contracts import machines
from contracts.machines import PriceRange
from pipelines.plan.plan import Plan, RungPlan


def print_plan(plan: Plan, stream: TextIO) -> None:
    """Print a plan: what is created where, its rungs, quotas, time and cost, then warnings and problems."""
    from rich.console import Console
    from rich.table import Table

    # A table in a file or a pipe is as wide as it needs to be.
    width = None if stream.isatty() else 200
    console = Console(file=stream, soft_wrap=True, highlight=False, markup=False, emoji=False, width=width)

    def table(*columns: str) -> Table:
        return Table(*columns, box=None, pad_edge=False, show_edge=False, header_style="bold")

    if plan.created:
        created = table("creates", "where", "on", "USD/h, estimate")
        for entry in plan.created:
            price = _dollars(entry.price_usd_per_h) if entry.priced else ""
            created.add_row(entry.what, entry.region, entry.on, price)
        console.print(created)
        console.print()
    if plan.rungs:
        rungs = table("training", "region", "strategy", "waits", "USD/h, estimate", "USD, estimate")
        for rung in plan.rungs:
            price, cost = _dollars(rung.price), _cost(rung)
            rungs.add_row(f"rung {rung.number}", rung.region, rung.strategy, rung.max_wait, price, cost)
        console.print(rungs)
        console.print()
        answers = plan.answers.quotas if plan.answers else ()
        limits = {(answer.region, answer.need): answer.limit for answer in answers}
        for region, need in dict.fromkeys((rung.region, need) for rung in plan.rungs for need in rung.quotas):
            known = "verified" if need.verified else "not verified"
            limit = limits.get((region, need))
            there = "" if limit is None else ", no limit" if limit < 0 else f" of {limit}"
            console.print(f"quota {need.metric} in {region}: {need.amount}{there} (name {known}: {need.source})")
        console.print()
    for line in _facts(plan):
        console.print(line)
    for warning in plan.warnings:
        console.print(f"warning: {warning}")
    for problem in plan.problems:
        console.print(f"problem: {problem.given}\n  allowed: {problem.allowed}\n  to do: {problem.todo}")


def _facts(plan: Plan) -> list[str]:
    lines = []
    if plan.time is None:
        lines.append(f"time: unknown: {plan.time_unknown}")
    else:
        lines.append(f"time: {plan.time.hours:.2f} h, {plan.time.epoch_hours:.3f} h an epoch, from {plan.time.source}")
        lines += [f"  assumed: {assumption}" for assumption in plan.time.assumptions]
    if plan.price_usd_per_h is None:
        lines.append(f"price: {plan.price_source}")
    else:
        lines.append(
            f"price: up to {plan.price_usd_per_h:.2f} USD/h for all training machines, from {plan.price_source}"
        )
        assumptions = dict.fromkeys(text for rung in plan.rungs if rung.price for text in rung.price.assumptions)
        lines += [f"  assumed: {assumption}" for assumption in assumptions]
    lines.append(f"time-out of the training job: {plan.timeout_s} s")
    lines.append(f"machines by {machines.SOURCE}, {machines.AS_OF}")
    return lines


def _dollars(price: PriceRange | None) -> str:
    if price is None:
        return "price unknown"
    if price.low_usd_per_h == price.high_usd_per_h:
        return f"{price.low_usd_per_h:.2f}"
    return f"{price.low_usd_per_h:.2f} to {price.high_usd_per_h:.2f}"


def _cost(rung: RungPlan) -> str:
    return f"{rung.cost.low_usd:.2f} to {rung.cost.high_usd:.2f}" if rung.cost else "unknown"


def describe_cost(plan: Plan) -> list[str]:
    """Return what a submission costs, a line a rung, and where that is from: what `submit` prints."""
    lines = [
        f"cost of training, estimate: {_cost(rung)} USD, {_dollars(rung.price)} USD/h: {rung.strategy} in {rung.region}"
        for rung in plan.rungs
    ]
    return [*lines, f"price: {plan.price_source}", f"time: {plan.time.source if plan.time else plan.time_unknown}"]


def cost_values(plan: Plan) -> dict[str, Any]:
    """Return the same as JSON values; None: unknown."""
    return {
        "hours": plan.time.hours if plan.time else None,
        "price_source": plan.price_source,
        "price_usd_per_h": plan.price_usd_per_h,
        "timeout_s": plan.timeout_s,
        "rungs": [
            {
                "region": rung.region,
                "strategy": rung.strategy,
                "usd_per_h": [rung.price.low_usd_per_h, rung.price.high_usd_per_h] if rung.price else None,
                "usd": [rung.cost.low_usd, rung.cost.high_usd] if rung.cost else None,
            }
            for rung in plan.rungs
        ],
    }


def plan_values(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values; `ok` says whether it can be submitted, `online` what Google Cloud said."""
    values = dataclasses.asdict(plan)
    answers = values.pop("answers")
    del values["template"]
    values |= {"ok": plan.ok, "estimate": cost_values(plan)}
    return values if answers is None else {**values, "online": answers}


def to_json(plan: Plan) -> str:
    """Return a plan as JSON."""
    return json.dumps(plan_values(plan), indent=1, sort_keys=True)
