"""`shardline tensorboard`: TensorBoard on what a run has left for it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pipelines.commands.inspection import RunArgument
from pipelines.commands.options import Debug
from pipelines.reported import reported

_INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(tensorboard)


def tensorboard(
    run: RunArgument,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Where to listen. Whoever reaches it sees the run: TensorBoard asks for no password.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="0 takes a free one [default: 6006, or the next one that is free]."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Open TensorBoard on a run's logs, training and profile, here or in a bucket; until Ctrl-C."""
    with reported(debug):
        from inspection.tensorboard import show

        try:
            code = show(
                run,
                host=host,
                port=port,
                say=lambda url: print(url, flush=True),
                warn=lambda text: print(text, file=sys.stderr, flush=True),
            )
        except KeyboardInterrupt:
            code = _INTERRUPTED
    raise typer.Exit(code)
