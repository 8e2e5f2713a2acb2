"""`shardline plan`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands.options import ConfigPath, Debug, Overrides
from pipelines.reported import load, reported

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from pipelines.estimate import Profile


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
    prices: Annotated[
        Path | None, typer.Option("--prices", metavar="FILE", help="YAML with your own prices (docs/plan.md).")
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="URI", help="Profile report that the time is taken from.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Show what a submission would create where, whether it can work, and its cost; exit code 2 when it cannot."""
    with reported(debug):
        resolved = load(config, overrides)
        found = _profile(resolved, profile, online=online)
        if compare:
            _compare(resolved, machines, nodes, kept, prices, found, online=online, as_json=as_json)
            return
        ok = _plan(resolved, prices, found, online=online, as_json=as_json)
    if not ok:
        from contracts.errors import EXIT_USER_ERROR

        raise typer.Exit(EXIT_USER_ERROR)


def _plan(config: RunConfig, prices: Path | None, profile: Profile | None, *, online: bool, as_json: bool) -> bool:
    """Print the plan, and return whether nothing is wrong with it."""
    from pipelines.plan import add_checks, make_plan
    from pipelines.plan_table import print_plan, to_json

    made = make_plan(config, prices=prices, profile=profile)
    answers = None
    # Without a project and a bucket there is nobody to ask.
    if online and not made.lacks_a_place:
        from pipelines.online import ask

        answers = ask(config, made)
        made = made.with_answers(answers.problems, answers.warnings)
    made = add_checks(config, made, online=answers is not None)
    if as_json:
        print(to_json(made, answers))
    else:
        print_plan(made, sys.stdout, answers)
    return made.ok


def _compare(
    config: RunConfig,
    machines: str | None,
    nodes: str,
    kept: float | None,
    prices: Path | None,
    profile: Profile | None,
    *,
    online: bool,
    as_json: bool,
) -> None:
    from contracts.machines import find_machine, read_price_file
    from pipelines.compare import KEPT_PER_DOUBLING, compare
    from pipelines.compare_table import print_comparison, to_json
    from pipelines.measured import find_measurements, parse_machines, parse_numbers

    line = _line(config, online=online)
    own = [] if machines else [find_machine(config.resources.machine)]
    comparison = compare(
        config,
        list(dict.fromkeys([*own, *parse_machines(machines)])),
        parse_numbers(nodes),
        profile=profile,
        measurements=find_measurements(line, config) if line else [],
        book=read_price_file(prices) if prices else None,
        kept_per_doubling=KEPT_PER_DOUBLING if kept is None else kept,
    )
    if as_json:
        print(to_json(comparison))
    else:
        print_comparison(comparison, sys.stdout)


def _profile(config: RunConfig, uri: str | None, *, online: bool) -> Profile | None:
    """Return the report that was named, or the line's, where the line may be looked at."""
    from pipelines.estimate import find_profile, read_profile

    if uri is not None:
        return read_profile(uri)
    line = _line(config, online=online)
    return find_profile(line, config) if line else None


def _line(config: RunConfig, *, online: bool) -> str:
    """Return the line's URI; empty where it is in a bucket and nothing is to be asked of Google Cloud."""
    from contracts import storage

    line = storage.join(storage.normalise(config.run.root), config.run.name)
    return line if online or storage.is_local(line) else ""
