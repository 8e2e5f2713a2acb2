"""`shardline tensorboard`: TensorBoard on what runs have left for it."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.commands.inspection import complete_run
from pipelines.commands.options import Debug
from pipelines.reported import reported, say

_INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(tensorboard)


def tensorboard(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Up to eight runs: folders of runs or trainings, or of lines for their newest (path or gs://); below "
            "./runs: ID, LINE/ID, LINE:latest.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ],
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Where to listen. Whoever reaches it sees the runs: TensorBoard asks for no password.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="0 takes a free one [default: 6006, or the next one that is free]."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Open TensorBoard on the logs of one or several runs, here or in buckets; until Ctrl-C."""
    with reported(debug):
        from inspection.tensorboard import show

        try:
            code = show(
                runs,
                host=host,
                port=port,
                say=lambda url: print(url, flush=True),
                warn=say,
            )
        except KeyboardInterrupt:
            code = _INTERRUPTED
    raise typer.Exit(code)
