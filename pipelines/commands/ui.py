"""`shardline ui`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pipelines.commands.options import Debug
from pipelines.reported import reported


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ui")(ui)


def ui(
    root: Annotated[
        str,
        typer.Argument(metavar="[ROOT]", help="Folder that holds lines, or one line; a path or gs://."),
    ] = "runs",
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; there is no login.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Answer requests for this name too, as of a proxy; may be given again."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8321,
    debug: Debug = False,
) -> None:
    """Serve the runs below a folder as pages that follow what runs; until Ctrl-C."""
    with reported(debug):
        from contracts.errors import ConfigError

        try:
            from inspection.ui.server import serve
        except ModuleNotFoundError as error:
            if error.name not in ("starlette", "uvicorn"):
                raise
            raise ConfigError(
                f"shardline ui needs {error.name}, which is not installed",
                allowed="the extra ui",
                todo='pip install "shardline[ui]"',
            ) from None

        serve(
            root,
            host=host,
            port=port,
            allow_hosts=tuple(allow_host or ()),
            say=lambda url: print(url, flush=True),
            warn=lambda text: print(text, file=sys.stderr, flush=True),
        )
