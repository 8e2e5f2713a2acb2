"""`shardline plan`."""

from __future__ import annotations

import sys
from dataclasses import replace

import typer

from pipelines.commands.options import (
    ConfigPath,
    Debug,
    Format,
    Overrides,
    RunId,
    is_document,
    print_document,
)
from pipelines.reported import load, reported, say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


def plan(
    config: ConfigPath,
    overrides: Overrides = None,
    run_id: RunId = "",
    form: Format = None,
    debug: Debug = False,
) -> None:
    """Show what a submission would create where, whether it can work, and its cost; exit code 2 when it cannot."""
    with reported(debug):
        from pipelines.plan import make_plan, print_plan, to_json
        from pipelines.rules.submission import Asked
        from pipelines.submission.preparations import look_ahead

        ahead = look_ahead(load(config, overrides), say)
        found = make_plan(ahead.config, Asked(run_id=run_id), complete=True, local_source=ahead.local_source)
        made = replace(found, placeholders=ahead.placeholders)
        if is_document(form):
            print_document(to_json(made), form)
        else:
            print_plan(made, sys.stdout)
    if not made.ok:
        from contracts.errors import EXIT_USER_ERROR

        raise typer.Exit(EXIT_USER_ERROR)
