"""`shardline plan`: resources, problems and cost of a submission; creates nothing.

`plan`, `compile`, `submit`, `schedule` and `rehearse` make the same plan, and fail with its first problem. Rules are in
pipelines/rules.py, the stages' own checks in pipelines/checks.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from contracts import machines
from contracts.checked import Problem
from contracts.config import MachineSection, RunConfig
from contracts.errors import ConfigError
from contracts.machines import Machine, find_machine, serving_section
from pipelines.checks import check_planned
from pipelines.monthly import MonthlyCost
from pipelines.rules import find_problems, find_regions, find_warnings

# Shorter jobs would end before training starts.
LEAST_S = 600


@dataclass(frozen=True)
class Creation:
    """A resource that a run creates in Google Cloud."""

    what: str
    """E.g. `CustomJob of stage train`."""
    where: str
    on: str
    """Its machines, e.g. `2 x g2-standard-12 (1 L4), SPOT`."""
    usd_per_h: float | None = None
    """Hourly price of all its machines; None: unknown, or not priced by the hour."""


@dataclass(frozen=True)
class Cost:
    """Bounds of a training's time and cost."""

    timeout_s: int
    """Time-out of the training job per region: `resources.timeout_hours`, or less to respect the cost cap."""
    hours: float
    """Longest time of the training."""
    price_usd_per_h: float | None
    """Hourly price of all training machines: `resources.price_usd_per_h`, or the table's; None: unknown."""
    price_source: str
    """Source of the price, or why it is unknown."""
    usd: tuple[float, float] | None
    """Cost of the longest time, at the lowest and the highest price; None: the price is unknown."""


@dataclass(frozen=True)
class Plan:
    """Resources, problems, warnings and cost of a submission."""

    created: tuple[Creation, ...]
    """Resources that a run creates; empty if a machine type is unknown."""
    problems: tuple[Problem, ...]
    """Reasons why it would fail; a submission must have none."""
    warnings: tuple[str, ...]
    cost: Cost
    uploads: tuple[str, ...] = ()
    """Data that a submission uploads first."""
    unbuilt: tuple[str, ...] = ()
    """Images that must be built before a submission; placeholders stand for them."""

    def notes(self) -> list[str]:
        """Return the lines about uploads, images and warnings."""
        return [
            *(f"will upload: {text}" for text in self.uploads),
            *(f"not built yet: {text}; run `shardline images build CONFIG`" for text in self.unbuilt),
            *(f"warning: {text}" for text in self.warnings),
        ]

    def require(self) -> Plan:
        """Return the plan if it has no problems.

        Raises:
            ConfigError: The first problem in full, followed by a list of the others.
        """
        if self.problems:
            raise self.problems[0].error(self.problems[1:])
        return self


def make_plan(
    config: RunConfig,
    *,
    run_id: str = "",
    scheduled: bool = False,
    online: bool = False,
    complete: bool = False,
    local_source: str = "",
    uploads: tuple[str, ...] = (),
    unbuilt: tuple[str, ...] = (),
) -> Plan:
    """Return the plan of a submission, its problems ordered with the most basic first.

    Args:
        config: Resolved, with absolute paths.
        run_id: Id of the run; empty: generated.
        scheduled: Whether it is for a schedule, which requires schedule.cron.
        online: Whether to read the source's labels and weights from buckets.
        complete: Whether to run the stages' checks even if the rules found a problem.
        local_source: Local data that the submission uploads to sharding.source; its labels are checked.
        uploads: Descriptions of data that a submission uploads first.
        unbuilt: Messages about missing images; a problem if `online`.
    """
    cost, created = find_cost(config), tuple(_list_creations(config))
    problems = [*find_problems(config, run_id=run_id, scheduled=scheduled), *_check_cap(config, cost)]
    todo = "run `shardline images build CONFIG`, or set it"
    problems += [Problem(text, "an image that was built for it", todo) for text in unbuilt if online]
    warnings = list(find_warnings(config))
    if cost.timeout_s < int(config.resources.timeout_hours * 3600):
        warnings.append(
            f"resources.max_cost_usd = {config.resources.max_cost_usd:g}: the training job's time-out is "
            f"{cost.timeout_s} s; it is unknown whether training finishes by then"
        )
    if created and (complete or not problems):
        looked_at = config.with_keys(sharding={"source": local_source or config.sharding.source})
        findings = check_planned(looked_at, online=online)
        problems += findings.problems
        warnings += findings.warnings
    return Plan(created, tuple(problems), tuple(warnings), cost, uploads, unbuilt)


def find_cost(config: RunConfig) -> Cost:
    """Return the bounds of a training's time and cost, from the table of machine types or the configured price.

    Spot prices change daily, up to the on-demand price, hence a range. The cost cap uses the lower price, as the
    trainer does.
    """
    resources = config.resources
    price, highest, source = resources.price_usd_per_h, resources.price_usd_per_h, "resources.price_usd_per_h"
    if price is None:
        machine, region, nodes = _machine_of(config.resources.machine), config.cloud.region, resources.num_nodes
        unit_price = machine.price(resources.strategy, region) if machine else None
        on_demand = machine.price("STANDARD", region) if machine else None
        offer = f"{machine.label if machine else 'the machine'} by {resources.strategy} in {region}"
        source = f"the price of {offer} is unknown: set resources.price_usd_per_h"
        if machine is not None and unit_price is not None and on_demand is not None:
            price, highest = nodes * unit_price, nodes * max(unit_price, on_demand)
            source = f"{'spot' if resources.strategy == 'SPOT' else 'on demand'}, {machine.price_source}"
    timeout_s = int(resources.timeout_hours * 3600)
    if price is not None and resources.max_cost_usd is not None:
        timeout_s = min(timeout_s, math.floor(resources.max_cost_usd / price * 3600))
        # The cap counts at this price, as the trainer does.
        highest = price
    hours = min(timeout_s / 3600, resources.max_hours or math.inf)
    usd = None if price is None or highest is None else (hours * price, hours * highest)
    return Cost(timeout_s, hours, price, source, usd)


def _check_cap(config: RunConfig, cost: Cost) -> Iterator[Problem]:
    cap, price = config.resources.max_cost_usd, cost.price_usd_per_h
    if cap is None:
        return
    if price is None:
        given = f"resources.max_cost_usd = {cap:g}, and {cost.price_source}"
        yield Problem(given, "a cap together with a price", "set it to what all training machines cost in an hour")
    elif cost.timeout_s < LEAST_S:
        yield Problem(
            f"resources.max_cost_usd = {cap:g} at {price:.2f} USD/h ends the job after {cost.timeout_s} s",
            f"at least {price * LEAST_S / 3600:.2f} USD: {LEAST_S} s",
            "raise resources.max_cost_usd, or take fewer or cheaper machines",
        )


def _machine_of(section: MachineSection) -> Machine | None:
    """Return a machine; None if its type is unknown, which the rules report."""
    try:
        return find_machine(section)
    except ConfigError:
        return None


def _list_creations(config: RunConfig) -> Iterator[Creation]:
    cloud, dataflow, resources = config.cloud, config.dataflow, config.resources
    training, serving = _machine_of(resources.machine), _machine_of(serving_section(config))
    if training is None or serving is None:
        return
    regions, line = " or ".join(find_regions(config)), f"{config.run.root}/{config.run.name}"

    def job(stage: str, machine: Machine, count: int = 1) -> Creation:
        price = machine.price(resources.strategy, cloud.region)
        machines_text = f"{count} x {machine.label}, {resources.strategy}"
        return Creation(f"CustomJob of stage {stage}", regions, machines_text, None if price is None else count * price)

    yield Creation("PipelineJob", regions, f"Vertex AI Pipelines, files below {line}")
    workers = f"up to {dataflow.max_workers} x {dataflow.machine_type}"
    yield Creation("Dataflow job of stage shard, where the source is new", cloud.region, workers)
    if config.profile.method != "off":
        yield job("profile", training, resources.num_nodes)
    yield job("train", training, resources.num_nodes)
    yield job("export", serving)
    if config.register.upload:
        yield job("register", serving)
        yield Creation("version of the model, where its proof holds", cloud.region, config.run.name)
    if config.schedule.cron:
        firing_times = f"{config.schedule.cron} {config.schedule.time_zone}"
        yield Creation("schedule, by `shardline schedule create`", cloud.region, firing_times)


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield the lines of a plan: resources, time and cost, uploads, images, warnings, problems, and a verdict."""
    rows = [("creates", "where", "on", "USD/h, estimate")] if plan.created else []
    for entry in plan.created:
        usd_per_h = "" if entry.usd_per_h is None else f"{entry.usd_per_h:.2f}"
        rows.append((entry.what, entry.where, entry.on, usd_per_h))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()
    yield from describe_cost(plan.cost)
    yield f"machines by {machines.SOURCE}, {machines.AS_OF}"
    yield from plan.notes()
    for problem in plan.problems:
        yield f"problem: {problem.given}\n  allowed: {problem.allowed}\n  to do: {problem.todo}"
    if plan.problems:
        yield f"cannot work: {len(plan.problems)} problem{'s' if len(plan.problems) > 1 else ''}"
    else:
        yield "can work" + ("; before `shardline submit`: `shardline images build CONFIG`" if plan.unbuilt else "")


def describe_cost(cost: Cost) -> list[str]:
    """Return the lines about cost that `plan` and `submit` print."""
    usd, price = "unknown", cost.price_source
    if cost.usd is not None:
        low, high = cost.usd
        usd = f"{low:.2f} USD" if low == high else f"{low:.2f} to {high:.2f} USD"
        price = f"{cost.price_usd_per_h:.2f} USD/h for all training machines, {price}"
    return [
        f"cost of training, at most (estimate): {usd}",
        f"price: {price}",
        f"time of training, at most: {cost.hours:.2f} h; time-out of its job: {cost.timeout_s} s",
    ]


def to_json(plan: Plan, monthly: Sequence[MonthlyCost] = ()) -> str:
    """Return a plan and monthly costs as JSON; `ok` is true if it can be submitted."""
    values = dataclasses.asdict(plan) | {"ok": not plan.problems}
    if monthly:
        values["monthly"] = [dataclasses.asdict(cost) for cost in monthly]
    return json.dumps(values, indent=1, sort_keys=True)
