"""`shardline plan`: what a submission would create where, whether it can work, and what it costs.

`plan`, `compile`, `submit`, `schedule` and `rehearse` make the same plan (`make_plan`), and refuse by its first
problem. Rules are in pipelines/rules/, whose checks.py asks the stages' own checks. Nothing is created here.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from contracts import machines, storage
from contracts.artifacts import RunRecord
from contracts.checked import Problem
from contracts.config import RunConfig
from contracts.config.load import parse_config
from contracts.errors import ConfigError, DataError, ShardlineError
from contracts.machines import Machine, find_machine, serving_section
from contracts.result import RUNS_FOLDER
from pipelines.rules.checks import check_planned
from pipelines.rules.preflight import find_problems, find_regions
from pipelines.rules.submission import Asked, find_asked_problems
from pipelines.rules.warn import find_warnings

# A job that may not live this long has not begun to train when it ends.
LEAST_S = 600
# Records that are read for a former training, the newest first.
_MOST_RECORDS = 10


@dataclass(frozen=True)
class Creation:
    """Something that a run makes in Google Cloud."""

    what: str
    """E.g. `CustomJob of stage train`."""
    region: str
    on: str
    """Machines that it runs on, in words."""
    usd_per_h: float | None = None
    """Price of an hour of all its machines; None: unknown, or it is not priced by the hour."""


@dataclass(frozen=True)
class Plan:
    """All that is known of a submission before it is made."""

    created: tuple[Creation, ...]
    """What a run makes; empty where the machine is none."""
    problems: tuple[Problem, ...]
    """Why it would fail; a submission needs none."""
    warnings: tuple[str, ...]
    machine: Machine | None
    nodes: int
    hours: float | None
    """Hours of the training; None: unknown."""
    hours_source: str
    """Source of `hours`, or why they are unknown."""
    usd: tuple[float, float] | None
    """Cost of the training, lowest and highest; None: hours or price are unknown."""
    timeout_s: int
    """Time-out of the training's job, in each region anew: `resources.timeout_hours`, or what a cap affords."""
    price_usd_per_h: float | None
    """Price of an hour of all training machines: `resources.price_usd_per_h`, or the table's; None: unknown."""
    price_source: str
    """Source of the price, or why it is unknown."""
    placeholders: tuple[str, ...] = ()
    """What stands for something that a submission makes first, a line each."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found that would make it fail."""
        return not self.problems

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
    asked: Asked | None = None,
    *,
    online: bool = False,
    complete: bool = False,
    local_source: str = "",
) -> Plan:
    """Return the plan of a submission; what is wrong with it is in `problems`, the most basic first.

    Args:
        config: Resolved, with absolute paths.
        asked: What a submission may say beside the configuration; None: nothing.
        online: Whether buckets may be asked: for the line's former runs, the source's labels, weights.
        complete: For `plan`: the slower checks are made too where the rules have found a problem.
        local_source: Data of this machine that the submission brings to sharding.source: its labels are checked.
    """
    plan = outline(config, asked, online=online)
    if plan.machine is not None and (complete or plan.ok):
        here = config.model_copy(update={"sharding": config.sharding.model_copy(update={"source": local_source})})
        looked_at = here if local_source else config
        checked = check_planned(looked_at, online=online)
        plan = plan.with_problems(checked.problems, checked.warnings)
    return plan


def plan_ahead(config: RunConfig, run_id: str, say: Callable[[str], None]) -> Plan:
    """Return the plan of a configuration as its submission would have it, before anything of it is made.

    Args:
        config: Resolved, with absolute paths.
        run_id: Id of the run; empty: one is made.
        say: Told of a reading that takes a while.
    """
    from pipelines.submission.preparations import look_ahead

    ahead = look_ahead(config, say)
    found = make_plan(ahead.config, Asked(run_id=run_id), complete=True, local_source=ahead.local_source)
    return replace(found, placeholders=ahead.placeholders)


def outline(config: RunConfig, asked: Asked | None = None, *, online: bool = False) -> Plan:
    """Return a plan by rules and the table of machines alone: nothing is started.

    Args:
        config: As for `make_plan`.
        asked: As for `make_plan`.
        online: Whether a line in a bucket may be read for its former runs; one on this machine always is.
    """
    problems = [*find_asked_problems(config, asked or Asked()), *find_problems(config)]
    nodes, machine = config.resources.num_nodes, _machine_or_none(config)
    price, price_source = _find_price(config, machine, nodes)
    former = None if machine is None or (online and problems) else _find_former(config, machine, nodes, online=online)
    timeout_s, capped, warnings = _find_cap(config, price, machine, former[0] if former else None)
    hours, hours_source = former or (config.resources.max_hours, "resources.max_hours")
    if hours is None:
        hours_source = "unknown: no finished training of this line on the same machines is known, and no max_hours"
    return Plan(
        created=() if machine is None else _list_creations(config, machine, nodes),
        problems=(*problems, *capped),
        warnings=(*find_warnings(config, machine), *warnings),
        machine=machine,
        nodes=nodes,
        hours=hours,
        hours_source=hours_source,
        usd=_find_cost(config, machine, nodes, hours, price),
        timeout_s=timeout_s,
        price_usd_per_h=price,
        price_source=price_source,
    )


def plan_of(config: RunConfig, asked: Asked | None = None, *, online: bool = False, local_source: str = "") -> Plan:
    """Return the plan that compile, submit and schedule go by, with which nothing is wrong.

    Raises:
        ConfigError: Its first problem.
    """
    return make_plan(config, asked, online=online, local_source=local_source).require()


def _machine_or_none(config: RunConfig) -> Machine | None:
    try:
        return find_machine(config.resources.machine)
    except ConfigError:
        return None


def _serving_machine(config: RunConfig, training: Machine) -> Machine:
    """Return the machine of the export; one that is none is a problem that a rule has found."""
    try:
        return find_machine(serving_section(config))
    except ConfigError:
        return training


def _find_price(config: RunConfig, machine: Machine | None, nodes: int) -> tuple[float | None, str]:
    """Return the price of an hour of all training machines, and its source."""
    resources = config.resources
    if resources.price_usd_per_h is not None:
        return resources.price_usd_per_h, "resources.price_usd_per_h"
    each = machine.price(resources.strategy, config.cloud.region) if machine is not None else None
    if machine is None or each is None:
        what = f"{machine.label} by {resources.strategy} in {config.cloud.region}" if machine else "the machine"
        return None, f"unknown: no table has the price of {what}; set resources.price_usd_per_h"
    kind = "spot" if resources.strategy == "SPOT" else "on demand"
    return nodes * each, f"{kind}, {machines.PRICE_SOURCE}"


def _find_cost(
    config: RunConfig, machine: Machine | None, nodes: int, hours: float | None, price: float | None
) -> tuple[float, float] | None:
    """Return the least and the most that a training costs: spot prices change daily, up to the price on demand."""
    if hours is None or price is None:
        return None
    highest = price
    if machine is not None and config.resources.price_usd_per_h is None:
        highest = max(price, nodes * (machine.price("STANDARD", config.cloud.region) or 0.0))
    return hours * price, hours * highest


def _find_former(config: RunConfig, machine: Machine, nodes: int, *, online: bool) -> tuple[float, str] | None:
    """Return the hours of the newest training of the line that was of this configuration on these machines."""
    line = storage.join(storage.normalise(config.run.root), config.run.name)
    if not online and not storage.is_local(line):
        return None
    root = storage.join(line, RUNS_FOLDER)
    try:
        names = [name for name in storage.list_names(root) if not name.startswith(".")]
        uris = [storage.join(root, name, "run.json") for name in sorted(names, reverse=True)[:_MOST_RECORDS]]
        contents = storage.read_many([storage.Wanted(uri) for uri in uris])
    except (ShardlineError, OSError):
        # What a training took before is worth no refusal.
        return None
    for uri, content in zip(uris, contents, strict=True):
        if isinstance(content, bytes) and (hours := _hours_of(content, uri, config, machine, nodes)) is not None:
            return hours, f"the training of {uri.split('/')[-2]}"
    return None


def _hours_of(content: bytes, uri: str, config: RunConfig, machine: Machine, nodes: int) -> float | None:
    """Return the hours of a finished training on as many machines of this very type and GPU; None: it was none."""
    try:
        record = RunRecord.parse(content, where=uri)
        ran = parse_config(record.config, where=record.id)
        on = find_machine(ran.resources.machine)
    except (ConfigError, DataError):
        return None
    trained = next((stage for stage in record.stages if stage.name == "train"), None)
    is_same = (ran.model, ran.train, ran.data.image_size) == (config.model, config.train, config.data.image_size)
    if record.goodput is None or trained is None or trained.state != "done" or not is_same:
        return None
    if (on.type, on.accelerator_type, on.gpus, ran.resources.num_nodes) != (
        machine.type,
        machine.accelerator_type,
        machine.gpus,
        nodes,
    ):
        return None
    return record.goodput.node_hours / nodes


def _find_cap(
    config: RunConfig, price: float | None, machine: Machine | None, hours: float | None
) -> tuple[int, list[Problem], list[str]]:
    """Return the time-out of the training's job, why it may not be submitted, and what to know.

    A job of another region, or of a run that is submitted again, has the time-out anew: the cap bounds each job.
    """
    resources = config.resources
    timeout_s, cap = int(resources.timeout_hours * 3600), resources.max_cost_usd
    if cap is None:
        return timeout_s, [], []
    if price is None:
        label = machine.label if machine is not None else "the machine"
        place = f"{resources.strategy} in {config.cloud.region}"
        problem = Problem(
            f"resources.max_cost_usd = {cap:g}, and the price of {label} by {place} is unknown",
            "a cap together with a price",
            "set resources.price_usd_per_h to what all training machines cost in an hour",
        )
        return timeout_s, [problem], []
    if hours is not None and hours * price > cap:
        problem = Problem(
            f"training takes {hours:.1f} h at {price:.2f} USD/h: {hours * price:.2f} USD, and "
            f"resources.max_cost_usd = {cap:g}",
            f"up to {cap:g} USD",
            "raise resources.max_cost_usd, train fewer epochs, or take cheaper machines",
        )
        return timeout_s, [problem], []
    affordable_s = math.floor(cap / price * 3600)
    if affordable_s < LEAST_S:
        problem = Problem(
            f"resources.max_cost_usd = {cap:g} at {price:.2f} USD/h ends the job after {affordable_s} s",
            f"at least {price * LEAST_S / 3600:.2f} USD: {LEAST_S} s",
            "raise resources.max_cost_usd, or take fewer or cheaper machines",
        )
        return timeout_s, [problem], []
    if affordable_s >= timeout_s:
        return timeout_s, [], []
    warning = f"resources.max_cost_usd = {cap:g} at {price:.2f} USD/h: the training job's time-out is {affordable_s} s"
    if hours is None:
        warning += "; whether training is done by then is unknown"
    return affordable_s, [], [warning]


def _list_creations(config: RunConfig, machine: Machine, nodes: int) -> tuple[Creation, ...]:
    cloud, vertex, dataflow, strategy = config.cloud, config.vertex, config.dataflow, config.resources.strategy
    regions = " or ".join(find_regions(config))

    def job(stage: str, on: Machine, count: int) -> Creation:
        price = on.price(strategy, cloud.region)
        words = f"{count} x {on.label}" if count > 1 else on.label
        return Creation(
            f"CustomJob of stage {stage}", regions, f"{words}, {strategy}", None if price is None else count * price
        )

    created = [
        Creation("PipelineJob", regions, f"Vertex AI Pipelines, files below {config.run.root}/{config.run.name}"),
        Creation(
            "Dataflow job of stage shard, where the source is new",
            cloud.region,
            f"up to {dataflow.max_workers} x {dataflow.machine_type}",
        ),
        *([] if config.profile.method == "off" else [job("profile", machine, nodes)]),
        job("train", machine, nodes),
        job("export", _serving_machine(config, machine), 1),
    ]
    if vertex.model.upload:
        created.append(job("register", _serving_machine(config, machine), 1))
        created.append(
            Creation("version of the model, where its proof holds", cloud.region, f"{config.run.name}, alias latest")
        )
    if config.schedule.cron:
        when = f"{config.schedule.cron} {config.schedule.time_zone}"
        created.append(Creation("schedule, by `shardline schedule create`", cloud.region, when))
    return tuple(created)


def print_plan(plan: Plan, stream: TextIO) -> None:
    """Print a plan: what is created where, time and cost, then warnings and problems."""
    from rich.console import Console
    from rich.table import Table

    # A table in a file or a pipe is as wide as it needs to be.
    width = None if stream.isatty() else 200
    console = Console(file=stream, soft_wrap=True, highlight=False, markup=False, emoji=False, width=width)
    if plan.created:
        columns = ("creates", "where", "on", "USD/h, estimate")
        table = Table(*columns, box=None, pad_edge=False, show_edge=False, header_style="bold")
        for entry in plan.created:
            table.add_row(
                entry.what, entry.region, entry.on, "" if entry.usd_per_h is None else f"{entry.usd_per_h:.2f}"
            )
        console.print(table)
        console.print()
    for line in describe_cost(plan):
        console.print(line)
    console.print(f"time-out of the training job: {plan.timeout_s} s")
    console.print(f"machines by {machines.SOURCE}, {machines.AS_OF}")
    for placeholder in plan.placeholders:
        console.print(f"placeholder: {placeholder}")
    for warning in plan.warnings:
        console.print(f"warning: {warning}")
    for problem in plan.problems:
        console.print(f"problem: {problem.given}\n  allowed: {problem.allowed}\n  to do: {problem.todo}")


def describe_cost(plan: Plan) -> list[str]:
    """Return the cost of the training and its sources, in lines: what `plan` and `submit` print."""
    if plan.usd is None:
        usd = "unknown"
    else:
        low, high = plan.usd
        usd = f"{low:.2f} USD" if low == high else f"{low:.2f} to {high:.2f} USD"
    price = "" if plan.price_usd_per_h is None else f"{plan.price_usd_per_h:.2f} USD/h for all training machines, "
    hours = "" if plan.hours is None else f"{plan.hours:.2f} h, "
    return [
        f"cost of training, estimate: {usd}",
        f"price: {price}{plan.price_source}",
        f"time: {hours}{plan.hours_source}",
    ]


def cost_values(plan: Plan) -> dict[str, Any]:
    """Return the same as JSON values; None: unknown."""
    return {
        "hours": plan.hours,
        "hours_source": plan.hours_source,
        "price_source": plan.price_source,
        "price_usd_per_h": plan.price_usd_per_h,
        "timeout_s": plan.timeout_s,
        "usd": plan.usd,
    }


def to_json(plan: Plan) -> str:
    """Return a plan as JSON; `ok` says whether it can be submitted."""
    values = dataclasses.asdict(plan) | {"ok": plan.ok, "estimate": cost_values(plan)}
    return json.dumps(values, indent=1, sort_keys=True)
