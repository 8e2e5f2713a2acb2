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
    run: Annotated[
        str,
        typer.Option("--run", metavar="RUN", help="Print the configuration of a run instead, to run the same again."),
    ] = "",
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
        from contracts.errors import ConfigError
        from contracts.resolve import load_config, to_yaml

        if (given := sum((config is not None, bool(run), bool(describe)))) != 1:
            raise ConfigError(
                f"{'more than one' if given else 'none'} of CONFIG, --run RUN and --describe KEY was given",
                allowed="one of them",
                todo="name a file, a run or a key; overrides of a run's configuration go to the command that takes it",
            )
        if describe:
            from pipelines.config_reference import describe as describe_key

            for line in describe_key(describe):
                print(line)
        elif config is None:
            from pipelines.repeat import config_of_run

            print(to_yaml(config_of_run(run)), end="")
        else:
            print(to_yaml(load_config(config, overrides or [])), end="")
