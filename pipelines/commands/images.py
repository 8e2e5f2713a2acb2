"""`shardline images build`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pipelines.commands.options import ConfigPath, Debug, Overrides
from pipelines.reported import load, reported, say

images_app = typer.Typer(help="Container images of the line.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(images_app, name="images")


@images_app.command()
def build(
    config: ConfigPath,
    overrides: Overrides = None,
    tool: Annotated[
        Literal["cloud", "docker"],
        typer.Option("--with", help="What builds: Cloud Build, or an engine here."),
    ] = "cloud",
    tensorrt: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION|none",
            help="TensorRT of the export's image [default: the newest known Triton's where the export has a GPU].",
        ),
    ] = None,
    rtx: Annotated[
        bool, typer.Option("--rtx", help="TensorRT-RTX too [default: where export.runtime is tensorrt_rtx].")
    ] = False,
    cuda: Annotated[
        Literal["cu126", "cu130"] | None,
        typer.Option(help="CUDA of torch's wheels [default: what the machines of CONFIG need]."),
    ] = None,
    user: Annotated[Literal["root", "shardline"], typer.Option(help="Whom containers run as.")] = "root",
    debug: Debug = False,
) -> None:
    """Build and push the images, and record the digests that a submission pins."""
    with reported(debug):
        from pipelines.images.build import build_images

        resolved = load(config, overrides)
        record = build_images(
            resolved,
            tool=tool,
            say=say,
            tensorrt="" if tensorrt == "none" else tensorrt,
            rtx=rtx,
            cuda=cuda or "",
            user=user,
        )
        print(record.model_dump_json(indent=1))
