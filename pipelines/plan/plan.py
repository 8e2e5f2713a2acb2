"""The plan of a submission: what it would create where, whether it can work, and what it costs.

`plan`, `compile`, `submit`, `schedule` and `rehearse` make the same plan (`make_plan`), and refuse by its first
problem. Rules are in pipelines/rules/, whose checks.py asks the stages' own checks;
online.py asks Google Cloud. Nothing is created here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.config import RunConfig, Strategy
from contracts.errors import ConfigError
from contracts.estimate import num_nodes
from contracts.machines import (
    Machine,
    PriceBook,
    PriceRange,
    QuotaNeed,
    find_machine,
    find_quotas,
    hourly_price,
)
from pipelines.jobs import serving_section
from pipelines.plan.estimate import TimeEstimate, estimate_time
from pipelines.plan.inputs import PlanInputs, read_inputs
from pipelines.plan.spend import Cap, find_cap
from pipelines.rules.checks import check_planned
from pipelines.rules.preflight import find_problems, find_rungs
from pipelines.rules.problem import Problem
from pipelines.rules.submission import Asked, find_asked_problems, find_template_problems
from pipelines.rules.warn import find_warnings

if TYPE_CHECKING:
    from pipelines.plan.online import Answers

# Where a line is: what a problem of these begins with.
PLACES = ("cloud.project", "cloud.region", "run.root")


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
    """Where that is from, with the date of the prices; or why it is unknown."""
    template: dict[str, Any] | None = None
    """Spec of the template that was asked for."""
    answers: Answers | None = None
    """What Google Cloud said, where it was asked."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found that would make it fail."""
        return not self.problems

    @property
    def lacks_a_place(self) -> bool:
        """Whether project, region or bucket are wrong: then there is nobody to ask."""
        return any(problem.given.startswith(PLACES) for problem in self.problems)

    def with_problems(self, problems: Sequence[Problem], warnings: Sequence[str] = ()) -> Plan:
        """Return the plan with more problems and warnings, none twice."""
        return replace(
            self,
            problems=tuple(dict.fromkeys([*self.problems, *problems])),
            warnings=tuple(dict.fromkeys([*self.warnings, *warnings])),
        )

    def require(self) -> Plan:
        """Return the plan, with which nothing is wrong.

        Raises:
            ConfigError: The first problem, word for word; what else is wrong is named behind it.
        """
        if self.problems:
            raise self.problems[0].error(self.problems[1:])
        return self


def make_plan(
    config: RunConfig,
    inputs: PlanInputs | None = None,
    asked: Asked | None = None,
    *,
    online: bool = False,
    complete: bool = False,
    local_source: str = "",
) -> Plan:
    """Return the plan of a submission; what is wrong with it is in `problems`, the most basic first.

    Args:
        config: Resolved, with absolute paths.
        inputs: Prices, profile and finished trainings; None: the tables alone.
        asked: What a submission may say beside the configuration; None: nothing.
        online: Whether Google Cloud may be asked: for the bucket's region, the quotas, the source's labels, weights.
        complete: For `plan`: the slower checks are made too where the rules have found a problem, and Google Cloud must
            answer; a submission goes on without an answer that its account may not have.
        local_source: Data of this machine that the submission brings to sharding.source: its labels are checked.

    Raises:
        ConfigError: Google Cloud was asked and refused to answer.
        TryAgain: It gave no answer.
    """
    plan = outline(config, inputs, asked)
    # Without a project and a bucket there is nobody to ask.
    if online and (complete or plan.ok) and not plan.lacks_a_place:
        from pipelines.plan.online import ask

        answers = ask(config, plan, may_lack=not complete)
        plan = replace(plan, answers=answers).with_problems(answers.problems, answers.warnings)
    if plan.machine is not None and (complete or plan.ok):
        serving = _serving_machine(config, plan.machine)
        here = config.model_copy(update={"sharding": config.sharding.model_copy(update={"source": local_source})})
        looked_at = here if local_source else config
        checked = check_planned(looked_at, plan.machine, serving, plan.nodes, online=online and not plan.lacks_a_place)
        plan = plan.with_problems(checked.problems, checked.warnings)
    if asked is not None and asked.template and plan.ok:
        spec, problems = find_template_problems(config, plan, asked.template)
        plan = replace(plan, template=spec).with_problems(problems)
    return plan


def outline(config: RunConfig, inputs: PlanInputs | None = None, asked: Asked | None = None) -> Plan:
    """Return a plan by rules and tables alone: nothing is started, and nobody is asked.

    Args:
        config: As for `make_plan`.
        inputs: As for `make_plan`.
        asked: As for `make_plan`.
    """
    inputs = inputs or PlanInputs()
    problems = [*find_asked_problems(config, asked or Asked()), *find_problems(config)]
    nodes = num_nodes(config)
    machine = _machine_or_none(config)
    time, unknown = (None, "the machine is not known")
    if machine is not None:
        time, unknown = estimate_time(config, machine, nodes, inputs.profile, inputs.measurements)
    rungs = () if machine is None else _plan_rungs(config, machine, nodes, time, inputs.book)
    cap = find_cap(config, [rung.price for rung in rungs], time.hours if time else None)
    problems += cap.problems
    return Plan(
        rungs=rungs,
        created=() if machine is None else _list_creations(config, machine, nodes, inputs.book),
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
    cloud, vertex, first = config.cloud, config.vertex, find_rungs(config)[0]
    dataflow = config.dataflow

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
        Creation("PipelineJob", cloud.region, f"Vertex AI Pipelines, files below {config.run.root}/{config.run.name}"),
        Creation(
            "Dataflow job of stage shard, where the source is new",
            cloud.region,
            f"up to {dataflow.max_workers} x {dataflow.machine_type}{', FlexRS' if dataflow.flexrs else ''}: "
            "`shardline shard --dry-run` estimates it",
        ),
        *([] if config.profile.method == "off" else [job("profile", machine, nodes)]),
        job("train", machine, nodes),
        job("export", serving, 1),
    ]
    if vertex.model.upload:
        created.append(
            Creation(
                "version of the model, where its proof holds",
                cloud.region,
                f"{vertex.model.name or config.run.name}, aliases {', '.join(vertex.model.aliases) or 'none'}",
            )
        )
    if config.schedule.cron:
        created.append(
            Creation(
                "schedule, by `shardline schedule create`",
                cloud.region,
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


def plan_of(
    config: RunConfig,
    prices: Path | None,
    profile: str | None,
    asked: Asked | None = None,
    *,
    online: bool = False,
    local_source: str = "",
) -> Plan:
    """Return the plan that compile, submit and schedule go by, with which nothing is wrong.

    Raises:
        ConfigError: Its first problem.
    """
    if online:
        # What rules alone refuse needs no credentials.
        outline(config, read_inputs(config, prices=prices), asked).require()
    inputs = read_inputs(config, prices=prices, profile=profile, online=online)
    return make_plan(config, inputs, asked, online=online, local_source=local_source).require()
