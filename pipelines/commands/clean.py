"""`shardline clean`: delete outputs of a line that its newest runs do not need."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pipelines.commands.options import Debug
from pipelines.reported import reported


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(clean)


def clean(
    line: Annotated[
        str, typer.Argument(metavar="LINE", help="Folder of a line, as a path or URI.", show_default=False)
    ],
    keep_last: Annotated[
        int, typer.Option("--keep-last", min=1, metavar="N", help="Keep the newest N runs and what they name.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without a question.")] = False,
    debug: Debug = False,
) -> None:
    """List outputs of stages that no kept run names, with their bytes, and delete them after a question."""
    with reported(debug):
        from contracts.errors import ConfigError
        from contracts.storage import normalise
        from pipelines.clean import delete, find_leftovers

        uri = normalise(line)
        found = find_leftovers(uri, keep_last)
        for leftover in found:
            print(f"  {leftover.name}  {leftover.num_bytes} bytes")
        print(f"{len(found)} folders, {sum(leftover.num_bytes for leftover in found)} bytes", flush=True)
        if dry_run or not found:
            return
        if not yes:
            if not sys.stdin.isatty():
                raise ConfigError(
                    "nothing was deleted: there is no terminal to ask on",
                    allowed="a terminal, --yes or --dry-run",
                    todo="look at the list above, and give --yes",
                )
            if not typer.confirm("delete them?", default=False):
                return
        for leftover in delete(uri, found, keep_last):
            print(f"{leftover.name} was left alone: it is in use by now", file=sys.stderr)
