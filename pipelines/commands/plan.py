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
    from contracts.errors import EXIT_USER_ERROR

    with reported(debug):
        from pipelines.plan import make_plan
        from pipelines.plan_table import print_plan, to_json

        resolved = load(config, overrides)
        made = make_plan(resolved, prices=prices, profile=_profile(resolved, profile))
        if as_json:
            print(to_json(made))
        else:
            print_plan(made, sys.stdout)
    if not made.ok:
        raise typer.Exit(EXIT_USER_ERROR)


def _profile(config: RunConfig, uri: str | None) -> Profile | None:
    """Return the report that was named, or the line's where the line is on this machine."""
    from contracts import storage
    from pipelines.estimate import find_profile, read_profile

    if uri is not None:
        return read_profile(uri)
    line = storage.join(storage.normalise(config.run.root), config.run.name)
    return find_profile(line, config) if storage.is_local(line) else None
