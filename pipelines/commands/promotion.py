"""`shardline promote` and `rollback`: which model of a line is in production."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.commands.options import Debug
from pipelines.reported import reported

Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with the decision.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(promote)
    app.command()(rollback)


def promote(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Id, folder or URI of a run, or LINE:latest.", show_default=False)
    ],
    reason: Reason = "",
    allow_unproven: Annotated[
        bool, typer.Option("--allow-unproven", help="Also an export that is not proven on its GPUs.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Put the model of a run into production."""
    with reported(debug):
        from pipelines.promotion import follow, in_words
        from pipelines.promotion import promote as promote_run

        decision = promote_run(run, reason=reason, allow_unproven=allow_unproven)
        print("unchanged: it is in production already" if decision is None else in_words(decision))
        if followed := follow(run):
            print(followed, flush=True)


def rollback(
    line: Annotated[
        str, typer.Argument(metavar="LINE", help="Folder or URI of a line or of a run of it.", show_default=False)
    ],
    reason: Reason = "",
    debug: Debug = False,
) -> None:
    """Put the model into production that was there before the present one."""
    with reported(debug):
        from pipelines.promotion import follow, in_words, roll_back

        print(in_words(roll_back(line, reason=reason)))
        if followed := follow(line):
            print(followed, flush=True)
