"""`shardline init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.options import Debug
from pipelines.reported import reported


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init")(init)


def init(
    project: Annotated[str, typer.Option(metavar="ID", help="Id of the Google Cloud project.", show_default=False)],
    bucket: Annotated[
        str, typer.Option(metavar="NAME", help="Bucket of data and results; it need not exist.", show_default=False)
    ],
    region: Annotated[str, typer.Option(metavar="REGION", help="Region of bucket and jobs.")] = "us-central1",
    task: Annotated[
        str, typer.Option(metavar="NAME", help="What is learnt, e.g. text_classification.")
    ] = "image_classification",
    source: Annotated[
        str, typer.Option(metavar="PATH", help="The data: a folder or table here, or gs:// [default: by the task].")
    ] = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the line [default: after the data].")] = "",
    machine: Annotated[str, typer.Option(metavar="TYPE", help="Machine type of training.")] = "n1-standard-4",
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="File to write [default: NAME.yaml].")
    ] = None,
    debug: Debug = False,
) -> None:
    """Write a configuration for a project of Google Cloud; asks nothing, overwrites nothing."""
    with reported(debug):
        from pipelines.initial_config import Names, write_initial

        names = Names(project, bucket, region=region, task=task, source=source, name=name, machine=machine)
        path = write_initial(names, output)
        print(path, flush=True)
        print(f"next: shardline submit {path} (docs/quickstart-vertex.md: what the project needs)", file=sys.stderr)
