"""`shardline plan`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands.options import (
    ConfigPath,
    Debug,
    Format,
    Overrides,
    Prices,
    ProfileUri,
    RunId,
    Template,
    is_document,
    print_document,
)
from pipelines.reported import load, reported

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from pipelines.plan.inputs import PlanInputs

_OFFLINE = "unknown offline: the bucket's region and the quotas (`plan --online` and `submit` ask for them)"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


def plan(
    config: ConfigPath,
    overrides: Overrides = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Price the same training on other machines, and on more of them.")
    ] = False,
    machines: Annotated[
        str | None,
        typer.Option(metavar="TYPE,...", help="With --compare: machines, e.g. n1-standard-8+2xNVIDIA_TESLA_T4."),
    ] = None,
    nodes: Annotated[str, typer.Option(metavar="N,...", help="With --compare: numbers of machines.")] = "1,2,4,8",
    kept: Annotated[
        float | None,
        typer.Option(
            min=0.1, max=1.0, help="With --compare: share of the speed kept at each doubling [default: 0.95]."
        ),
    ] = None,
    online: Annotated[
        bool,
        typer.Option("--online", help="Ask Google Cloud for the bucket's region, the quotas, and the line's profile."),
    ] = False,
    prices: Prices = None,
    profile: ProfileUri = None,
    run_id: RunId = "",
    template: Template = "",
    form: Format = None,
    debug: Debug = False,
) -> None:
    """Show what a submission would create where, whether it can work, and its cost; exit code 2 when it cannot."""
    with reported(debug):
        from pipelines.plan.inputs import read_inputs
        from pipelines.plan.plan import make_plan, outline
        from pipelines.submission.local_data import find_local_data

        resolved = load(config, overrides)
        local = None if compare else find_local_data(resolved, _say)
        if local is not None:
            resolved = local.of(resolved)
            _say(local.words)
        online = online and not outline(resolved).lacks_a_place
        inputs = read_inputs(resolved, prices=prices, profile=profile, online=online)
        if compare:
            _compare(resolved, machines, nodes, kept, inputs, form=form)
            return
        from pipelines.plan.table import print_plan, to_json
        from pipelines.rules.submission import Asked

        asked = Asked(run_id=run_id, template=template)
        made = make_plan(
            resolved, inputs, asked, online=online, complete=True, local_source=local.given if local else ""
        )
        if made.answers is None:
            made = made.with_problems((), [_OFFLINE])
        if is_document(form):
            print_document(to_json(made), form)
        else:
            print_plan(made, sys.stdout)
    if not made.ok:
        from contracts.errors import EXIT_USER_ERROR

        raise typer.Exit(EXIT_USER_ERROR)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _compare(
    config: RunConfig,
    machines: str | None,
    nodes: str,
    kept: float | None,
    inputs: PlanInputs,
    *,
    form: str | None,
) -> None:
    from contracts.machines import find_machine
    from pipelines.plan.compare import KEPT_PER_DOUBLING, compare
    from pipelines.plan.compare_table import print_comparison, to_json
    from pipelines.plan.measured import parse_machines, parse_numbers

    own = [] if machines else [find_machine(config.resources.machine)]
    comparison = compare(
        config,
        list(dict.fromkeys([*own, *parse_machines(machines)])),
        parse_numbers(nodes),
        profile=inputs.profile,
        measurements=inputs.measurements,
        book=inputs.book,
        kept_per_doubling=KEPT_PER_DOUBLING if kept is None else kept,
    )
    if is_document(form):
        print_document(to_json(comparison), form)
    else:
        print_comparison(comparison, sys.stdout)
