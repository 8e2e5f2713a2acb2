"""`shardline config show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.options import Debug, Overrides
from pipelines.reported import reported

_app = typer.Typer(help="Look at configurations.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(_app, name="config")


@_app.command()
def show(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="YAML file.", show_default=False)] = None,
    overrides: Overrides = None,
    describe: Annotated[
        str,
        typer.Option(
            "--describe", metavar="KEY", help="Print a key or section instead: meaning, type, range, default."
        ),
    ] = "",
    debug: Debug = False,
) -> None:
    """Print the configuration that a command would use, or what a key of it means."""
    with reported(debug):
        from contracts.config.load import load_config, to_yaml
        from contracts.errors import ConfigError

        if (config is None) == (not describe):
            raise ConfigError(
                f"{'neither' if config is None else 'both'} of CONFIG and --describe KEY was given",
                allowed="one of them",
                todo="name a file or a key",
            )
        if config is None:
            from pipelines.config_reference import describe as describe_key

            for line in describe_key(describe):
                print(line)
        else:
            print(to_yaml(load_config(config, overrides or [])), end="")
