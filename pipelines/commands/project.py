"""`shardline project export`."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.commands.options import ConfigPath, Debug, Overrides
from pipelines.reported import load, reported

project_app = typer.Typer(
    help="What a Google Cloud project needs: APIs, bucket, accounts, roles.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(project_app, name="project")


@project_app.command()
def export(
    config: ConfigPath,
    overrides: Overrides = None,
    terraform: Annotated[bool, typer.Option("--terraform", help="Terraform's JSON syntax, for main.tf.json.")] = False,
    gcloud: Annotated[bool, typer.Option("--gcloud", help="A script of gcloud commands.")] = False,
    debug: Debug = False,
) -> None:
    """Print what the project of CONFIG needs, for another tool; asks nobody."""
    with reported(debug):
        from contracts.errors import ConfigError
        from pipelines.project.declaration import declare
        from pipelines.project.gcloud import to_gcloud
        from pipelines.project.terraform import to_terraform

        if terraform == gcloud:
            raise ConfigError(
                "project export " + ("with --terraform and --gcloud" if terraform else "without a form"),
                allowed="--terraform or --gcloud, one of them",
                todo="choose the tool that shall make the project",
            )
        declaration = declare(load(config, overrides))
        print(to_terraform(declaration) if terraform else to_gcloud(declaration))
