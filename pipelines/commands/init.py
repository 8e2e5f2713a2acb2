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
    source: Annotated[
        str, typer.Option(metavar="PATH", help="The data: a folder or table here, or gs://.", show_default=False)
    ],
    region: Annotated[str, typer.Option(metavar="REGION", help="Region of bucket and jobs.")] = "us-central1",
    task: Annotated[
        str, typer.Option(metavar="NAME", help="What is learnt, e.g. text_classification.")
    ] = "image_classification",
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="File to write [default: named after the data].")
    ] = None,
    debug: Debug = False,
) -> None:
    """Write a configuration for a project of Google Cloud; asks nothing, overwrites nothing."""
    with reported(debug):
        from pipelines.initial_config import Names, write_initial

        path = write_initial(Names(project, bucket, source, region=region, task=task), output)
        print(path, flush=True)
        print(f"next: shardline submit {path} (docs/quickstart-vertex.md: what the project needs)", file=sys.stderr)
