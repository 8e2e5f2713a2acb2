"""`shardline compile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.options import ConfigPath, Debug, Overrides
from pipelines.reported import load, reported, say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compile")(compile_config)


def compile_config(
    config: ConfigPath,
    overrides: Overrides = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="File to write, .yaml or .json [default: NAME.pipeline.yaml]."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write the pipeline that Vertex AI runs for a configuration, and print its hash."""
    with reported(debug):
        from contracts.canonical import canonical_hash
        from pipelines.graph.compile import compile_line, write_spec
        from pipelines.plan import plan_of
        from pipelines.submission.preparations import look_ahead

        ahead = look_ahead(load(config, overrides), say)
        compiled = compile_line(ahead.config, plan_of(ahead.config, local_source=ahead.local_source))
        for placeholder in ahead.placeholders:
            say(f"placeholder: {placeholder}")
        path = output or Path(f"{compiled.display_name}.pipeline.yaml")
        write_spec(compiled.spec, path)
        print(path)
        print(f"sha256:{canonical_hash(compiled.spec)}")
