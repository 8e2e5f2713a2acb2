"""`shardline plan`: what a submission would create where, whether it can work, and what it costs.

Nothing is asked of Google Cloud here (pipelines/online.py does), and nothing is created. What the stages would refuse
is asked of their own checks (pipelines/checks.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.config import RunConfig, Strategy
from contracts.errors import ConfigError
from contracts.machines import (
    Machine,
    PriceBook,
    PriceRange,
    QuotaNeed,
    find_machine,
    find_quotas,
    hourly_price,
    read_price_file,
)
from pipelines.checks import check_planned
from pipelines.estimate import Profile, TimeEstimate, estimate_time
from pipelines.preflight import find_problems, find_rungs
from pipelines.problem import Problem
from pipelines.spend import Cap, find_cap
from pipelines.warn import OFFLINE, find_warnings
from pipelines.workers import num_nodes, serving_section

__all__ = [
    "CostRange",
    "Creation",
    "Plan",
    "Problem",
    "RungPlan",
    "add_checks",
    "find_rungs",
    "make_plan",
    "require_online",
    "require_plan",
]

# Where a line is: what a problem of these begins with.
PLACES = ("vertex.project", "vertex.region", "run.root")


@dataclass(frozen=True)
class Creation:
    """Something that a run makes in Google Cloud."""

    what: str
    """E.g. `CustomJob of stage train`."""
    region: str
    on: str
    """What it runs on, in words."""
    price_usd_per_h: PriceRange | None = None
    """Of all its machines; None: unknown, or it is not priced by the hour."""
    priced: bool = False
    """Whether it is priced by the hour."""


@dataclass(frozen=True)
class CostRange:
    """US dollars."""

    low_usd: float
    high_usd: float


@dataclass(frozen=True)
class RungPlan:
    """The training of one rung of the ladder."""

    number: int
    """From 1."""
    suffix: str
    """What the run's id gets: empty, -r2, -r3, ..."""
    strategy: Strategy
    region: str
    max_wait: str
    """How long FLEX_START waits for machines, as the API has it; else empty."""
    quotas: tuple[QuotaNeed, ...]
    """Of its jobs, which run one after the other: of each metric what the largest of them needs."""
    price: PriceRange | None
    """Of all training machines together."""
    cost: CostRange | None
    """Of the training; None: time or price is unknown."""


@dataclass(frozen=True)
class Plan:
    """All that is known of a submission before it is made."""

    rungs: tuple[RungPlan, ...]
    """Places to try; empty where the machine is none."""
    created: tuple[Creation, ...]
    """What the first rung makes."""
    problems: tuple[Problem, ...]
    """Why it would fail; a submission needs none."""
    warnings: tuple[str, ...]
    machine: Machine | None
    nodes: int
    time: TimeEstimate | None
    time_unknown: str
    """Why `time` is None; else empty."""
    timeout_s: int
    """Time-out of the training's job, of each rung anew: `resources.timeout_hours`, or what a cap affords."""
    price_usd_per_h: float | None
    """What all training machines cost in an hour at most, on any rung: what a cap is counted by. The configuration's
    own `resources.price_usd_per_h` wins; None: unknown."""
    price_source: str

    @property
    def ok(self) -> bool:
        """Whether nothing was found that would make it fail."""
        return not self.problems

    @property
    def lacks_a_place(self) -> bool:
        """Whether project, region or bucket are wrong: then there is nobody to ask."""
        return any(problem.given.startswith(PLACES) for problem in self.problems)

    def with_answers(self, problems: tuple[Problem, ...], warnings: tuple[str, ...]) -> Plan:
        """Return the plan with what Google Cloud said of it."""
        kept = tuple(text for text in self.warnings if text != OFFLINE)
        return replace(self, problems=(*self.problems, *problems), warnings=(*kept, *warnings))


def make_plan(config: RunConfig, *, prices: Path | None = None, profile: Profile | None = None) -> Plan:
    """Return the plan of a configuration; what is wrong with it is in `problems`.

    Args:
        config: Resolved.
        prices: The user's own prices (contracts/machines/price_file.py).
        profile: Decides the time, where it was measured on the same kind of machine (pipelines/estimate.py).

    Raises:
        ConfigError: The price file cannot be used.
    """
    book = read_price_file(prices) if prices is not None else None
    problems = list(find_problems(config))
    nodes = num_nodes(config)
    machine = _machine_or_none(config)
    time, unknown = (
        (None, "the machine is not known") if machine is None else estimate_time(config, machine, nodes, profile)
    )
    rungs = () if machine is None else _plan_rungs(config, machine, nodes, time, book)
    cap = find_cap(config, [rung.price for rung in rungs], time.hours if time else None)
    problems += cap.problems
    return Plan(
        rungs=rungs,
        created=() if machine is None else _list_creations(config, machine, nodes, book),
        problems=tuple(problems),
        warnings=(*find_warnings(config, machine), *cap.warnings),
        machine=machine,
        nodes=nodes,
        time=time,
        time_unknown=unknown,
        timeout_s=cap.timeout_s,
        price_usd_per_h=cap.price_usd_per_h,
        price_source=_price_source(config, rungs, cap),
    )


def add_checks(config: RunConfig, plan: Plan, *, online: bool = False) -> Plan:
    """Return a plan with what the stages' own checks find: own code, network, precision, targets, labels.

    Args:
        config: That the plan was made of.
        plan: From `make_plan`.
        online: Whether buckets may be asked.
    """
    if plan.machine is None:
        return plan
    checked = check_planned(config, plan.machine, _serving_machine(config, plan.machine), plan.nodes, online=online)
    return replace(
        plan,
        problems=(*plan.problems, *checked.problems),
        warnings=tuple(dict.fromkeys([*plan.warnings, *checked.warnings])),
    )


def require_plan(config: RunConfig, *, prices: Path | None = None, profile: Profile | None = None) -> Plan:
    """Return the plan of a configuration with which nothing is wrong, by the rules and by the stages' own checks.

    Raises:
        ConfigError: The first problem, and how many more there are.
    """
    plan = make_plan(config, prices=prices, profile=profile)
    if not plan.problems:
        plan = add_checks(config, plan)
    if plan.problems:
        raise plan.problems[0].error(plan.problems[1:])
    return plan


def require_online(config: RunConfig, say: Callable[[str], None]) -> None:
    """Ask of a planned line what only buckets know: labels of the source, and weights.

    Args:
        config: Of a line whose plan has no problem.
        say: Is told what to warn of.

    Raises:
        ConfigError: Training would be refused.
    """
    machine = find_machine(config.resources.machine)
    check_planned(config, machine, _serving_machine(config, machine), num_nodes(config), online=True).require(say)


def _machine_or_none(config: RunConfig) -> Machine | None:
    try:
        return find_machine(config.resources.machine)
    except ConfigError:
        return None


def _plan_rungs(
    config: RunConfig, machine: Machine, nodes: int, time: TimeEstimate | None, book: PriceBook | None
) -> tuple[RungPlan, ...]:
    rungs = []
    for number, rung in enumerate(find_rungs(config), start=1):
        price = hourly_price(machine, rung.strategy, rung.region, book)
        total = price.times(nodes) if price is not None else None
        cost = None
        if total is not None and time is not None:
            cost = CostRange(total.low_usd_per_h * time.hours, total.high_usd_per_h * time.hours)
        rungs.append(
            RungPlan(
                number=number,
                suffix="" if number == 1 else f"-r{number}",
                strategy=rung.strategy,
                region=rung.region,
                max_wait=f"{config.resources.max_wait_s}s" if rung.strategy == "FLEX_START" else "",
                quotas=_list_quotas(config, machine, rung.strategy, nodes),
                price=total,
                cost=cost,
            )
        )
    return tuple(rungs)


def _list_quotas(config: RunConfig, machine: Machine, strategy: Strategy, nodes: int) -> tuple[QuotaNeed, ...]:
    needs = {need.metric: need for need in find_quotas(machine, strategy, nodes)}
    for need in find_quotas(_serving_machine(config, machine), strategy, 1):
        if need.metric not in needs or needs[need.metric].amount < need.amount:
            needs[need.metric] = need
    return tuple(needs.values())


def _serving_machine(config: RunConfig, training: Machine) -> Machine:
    """Return the machine of the export; one that is none is a problem that a rule has found."""
    try:
        return find_machine(serving_section(config))
    except ConfigError:
        return training


def _list_creations(config: RunConfig, machine: Machine, nodes: int, book: PriceBook | None) -> tuple[Creation, ...]:
    vertex, first = config.vertex, find_rungs(config)[0]
    dataflow = vertex.dataflow

    def job(stage: str, on: Machine, count: int) -> Creation:
        price = hourly_price(on, first.strategy, first.region, book)
        machines = f"{count} x {on.label}" if count > 1 else on.label
        return Creation(
            f"CustomJob of stage {stage}",
            first.region,
            f"{machines}, {first.strategy}",
            price.times(count) if price else None,
            priced=True,
        )

    serving = _serving_machine(config, machine)
    created = [
        Creation("PipelineJob", vertex.region, f"Vertex AI Pipelines, files below {config.run.root}/{config.run.name}"),
        Creation(
            "Dataflow job of stage shard, where the source is new",
            vertex.region,
            f"up to {dataflow.max_workers} x {dataflow.machine_type}{', FlexRS' if dataflow.flexrs else ''}: "
            "`shardline shard --dry-run` estimates it",
        ),
        *([] if config.profile.method == "off" else [job("profile", machine, 1)]),
        job("train", machine, nodes),
        job("export", serving, 1),
    ]
    if vertex.model.upload:
        created.append(
            Creation(
                "version of the model, where its proof holds",
                vertex.region,
                f"{vertex.model.name or config.run.name}, aliases {', '.join(vertex.model.aliases) or 'none'}",
            )
        )
    if config.schedule.cron:
        created.append(
            Creation(
                "schedule, by `shardline schedule create`",
                vertex.region,
                f"{config.schedule.cron} {config.schedule.time_zone}",
            )
        )
    return tuple(created)


def _price_source(config: RunConfig, rungs: tuple[RungPlan, ...], cap: Cap) -> str:
    if config.resources.price_usd_per_h is not None:
        return "resources.price_usd_per_h"
    if cap.price_usd_per_h is None:
        return "unknown: no table has it; give --prices FILE or resources.price_usd_per_h"
    sources = dict.fromkeys(f"{rung.price.source} ({rung.price.as_of})" for rung in rungs if rung.price)
    return "; ".join(sources)
