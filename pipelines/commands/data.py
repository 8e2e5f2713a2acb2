"""`shardline data`: look at shards, check them, and adopt shards made elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.options import Debug
from pipelines.reported import reported

ShardsFolder = Annotated[str, typer.Argument(metavar="URI", help="Folder of shards.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    data_app = typer.Typer(help="Look at shards.", no_args_is_help=True, rich_markup_mode=None)
    data_app.command("describe")(describe)
    for command in (verify, adopt):
        data_app.command()(command)
    app.add_typer(data_app, name="data")


def describe(
    uri: Annotated[
        str,
        typer.Argument(metavar="URI", help="Folder of shards, or a RUN as for inspect.", show_default=False),
    ],
    grid: Annotated[Path | None, typer.Option("--grid", metavar="FILE.png", help="Write pictures too.")] = None,
    debug: Debug = False,
) -> None:
    """Print what shards hold."""
    with reported(debug):
        from contracts.artifacts import ShardManifest
        from contracts.errors import ConfigError
        from data_tools.show import describe as describe_shards
        from data_tools.show import draw_grid, find_shards

        folder = find_shards(uri)
        manifest = ShardManifest.load(folder)
        for line in describe_shards(manifest):
            print(line)
        if grid is not None:
            if not grid.parent.is_dir():
                raise ConfigError(
                    f"--grid {grid}: there is no folder {grid.parent}",
                    allowed="a file in a folder that is there",
                    todo="make the folder, or choose another",
                )
            print(f"{grid}: {draw_grid(folder, manifest, grid)} pictures")


def verify(
    uri: ShardsFolder,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes that read [default: by the cores].")] = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="In a bucket, compare the checksums that it keeps, and read nothing.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Compare every byte of shards with its checksum; exit code 1 when something is wrong."""
    with reported(debug):
        from contracts.errors import CheckFailed
        from contracts.storage import normalise
        from data_tools.verify import verify as verify_shards

        wrong = verify_shards(normalise(uri), processes=processes, progress=_count("verify"), stored=stored)
        if wrong:
            raise CheckFailed("\n  ".join([f"{uri} is damaged", *wrong]))
        print("every checksum is right")


def adopt(
    uri: ShardsFolder,
    split: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATTERN", help="File names of a split [default: train*, val*, test*]."),
    ] = None,
    classes: Annotated[Path | None, typer.Option(metavar="FILE", help="Names of the classes, one a line.")] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Decode every image, not only its header.")] = False,
    debug: Debug = False,
) -> None:
    """Write index and manifest for WebDataset or TFRecord shards made elsewhere."""
    with reported(debug):
        from contracts.storage import normalise
        from data_tools.adopt import adopt as adopt_shards
        from data_tools.foreign import parse_patterns, read_classes
        from data_tools.show import describe as describe_shards

        manifest = adopt_shards(
            normalise(uri),
            patterns=parse_patterns(split or []),
            class_names=read_classes(classes) if classes else None,
            verify="decode" if decode else "header",
            progress=_count("adopt"),
        )
        for line in describe_shards(manifest):
            print(line)


def _count(name: str) -> Callable[[int, int], None]:
    """Return a function that says on stderr how many files are done, about twenty times in all."""

    def say(done: int, total: int) -> None:
        if done * 20 // total != (done - 1) * 20 // total:
            print(f"{name}: {done} of {total} files", file=sys.stderr, flush=True)

    return say
