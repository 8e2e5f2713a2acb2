"""The command line: `shardline --help`.

Commands only take arguments apart and print what came out; the work is in the modules they import. Those imports stand
inside the commands, so that `--help` loads nothing heavy.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from contracts.environment import settle
from pipelines.commands import clean as clean_command
from pipelines.commands import compile as compile_command
from pipelines.commands import config as config_commands
from pipelines.commands import data as data_commands
from pipelines.commands import images as images_commands
from pipelines.commands import init as init_command
from pipelines.commands import inspection as inspection_commands
from pipelines.commands import plan as plan_command
from pipelines.commands import rehearse as rehearse_command
from pipelines.commands import run_state as run_state_commands
from pipelines.commands import schedule as schedule_commands
from pipelines.commands import submit as submit_command
from pipelines.commands import tensorboard as tensorboard_command
from pipelines.commands.groups import GroupedCommands
from pipelines.commands.options import ConfigPath, Debug, Overrides
from pipelines.reported import load, reported, show_error

app = typer.Typer(
    name="shardline",
    cls=GroupedCommands,
    help="Raw data to a TensorRT engine with a proof of parity, in one line of stages.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

init_command.register(app)
config_commands.register(app)
compile_command.register(app)
plan_command.register(app)
images_commands.register(app)
submit_command.register(app)
schedule_commands.register(app)
run_state_commands.register(app)
clean_command.register(app)
data_commands.register(app)
rehearse_command.register(app)
inspection_commands.register(app)
tensorboard_command.register(app)

Fresh = Annotated[bool, typer.Option("--fresh", help="Delete this configuration's own output first, and start over.")]
Output = Annotated[
    str | None, typer.Option("--output", metavar="URI", help="Folder to write [default: the line's own].")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the classes, splits, shards and bytes that a run would write.")
]
Shards = Annotated[str | None, typer.Option("--shards", metavar="URI", help="Shards to read [default: the line's].")]
Profile = Annotated[
    str | None, typer.Option("--profile", metavar="URI", help="Profile report to follow [default: the line's].")
]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", metavar="URI", help="Training folder to export [default: the line's].")
]


def main() -> None:
    """Run the command line; the entry of the console script."""
    # The processes that commands start with -m do not search the current folder, whose records/ may be a user's.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    settle()
    app(obj=time.time())


def _print_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        print(f"shardline {importlib.metadata.version('shardline')}", flush=True)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself; its help is the app's."""


@app.command()
def run(
    context: typer.Context, config: ConfigPath, overrides: Overrides = None, fresh: Fresh = False, debug: Debug = False
) -> None:
    """Run the whole line on this machine; finished stages are reused."""
    with reported(debug):
        from inspection.report import print_table
        from pipelines.local.run import run_local

        outcome = run_local(load(config, overrides), fresh=fresh, debug=debug, started_at_s=context.obj)
        if any(stage.uri for stage in outcome.record.stages):
            print_table(outcome.record, sys.stdout)
        if outcome.error is not None:
            show_error(outcome.error, debug=debug)
        _print_place(outcome.line)
    if outcome.error is not None:
        raise typer.Exit(outcome.error.exit_code)


@app.command()
def shard(
    config: ConfigPath,
    overrides: Overrides = None,
    output: Output = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
    debug: Debug = False,
) -> None:
    """Turn images in class folders, or the rows of a table, into shards."""
    if dry_run:
        with reported(debug):
            from pipelines.local.stages import describe_shards

            print(describe_shards(load(config, overrides)), flush=True)
        return
    _run_alone("shard", config, overrides, output=output, given={}, fresh=fresh, debug=debug)


@app.command()
def profile(
    config: ConfigPath,
    overrides: Overrides = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When to stop measuring: 120s, 2m, 120 [default: profile.budget_s]."),
    ] = None,
    full_grid: Annotated[
        bool,
        typer.Option("--full-grid", help="Measure every combination, for comparison: the same as profile.method=grid."),
    ] = False,
    output: Output = None,
    shards: Shards = None,
    fresh: Fresh = False,
    debug: Debug = False,
) -> None:
    """Measure how to cut the global batch and how to load, and what is slow; print what was found out."""
    with reported(debug):
        from pipelines.local.profiled import run_profile

        for line in run_profile(
            config,
            overrides or [],
            budget=budget,
            full_grid=full_grid,
            output=output,
            shards=shards,
            fresh=fresh,
            debug=debug,
        ):
            print(line, flush=True)


@app.command()
def train(
    config: ConfigPath,
    overrides: Overrides = None,
    output: Output = None,
    shards: Shards = None,
    profile: Profile = None,
    fresh: Fresh = False,
    debug: Debug = False,
) -> None:
    """Train, from the newest valid checkpoint if there is one."""
    given = {"shards": shards, "profile": profile}
    _run_alone("train", config, overrides, output=output, given=given, fresh=fresh, debug=debug)


@app.command()
def export(
    config: ConfigPath,
    overrides: Overrides = None,
    output: Output = None,
    shards: Shards = None,
    checkpoint: Checkpoint = None,
    bench: Annotated[bool, typer.Option("--bench", help="Measure latency too: the same as export.bench=true.")] = False,
    fresh: Fresh = False,
    debug: Debug = False,
) -> None:
    """Turn the best checkpoint into engines, and prove their parity."""
    overrides = [*(overrides or []), *(["export.bench=true"] if bench else [])]
    given = {"shards": shards, "checkpoint": checkpoint}
    _run_alone("export", config, overrides, output=output, given=given, fresh=fresh, debug=debug)


@app.command()
def drill(
    config: ConfigPath,
    overrides: Overrides = None,
    kills: Annotated[int, typer.Option(min=0, max=1000, help="Number of kills.")] = 3,
    mode: Annotated[Literal["sigkill", "sigterm"], typer.Option(help="Signal to the training.")] = "sigkill",
    seed: Annotated[int, typer.Option(help="Decides the steps.")] = 0,
    output: Output = None,
    shards: Shards = None,
    profile: Profile = None,
    debug: Debug = False,
) -> None:
    """Train with and without kills, and compare parameters and losses; exit code 1 when they differ."""
    with reported(debug):
        from pipelines.local.drill import run_drill

        code = run_drill(
            load(config, overrides),
            kills=kills,
            mode=mode,
            seed=seed,
            output=output,
            given={"shards": shards, "profile": profile},
        )
    raise typer.Exit(code)


Export = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Folder of an export, or a RUN as for inspect.",
        show_default=False,
        autocompletion=inspection_commands.complete_run,
    ),
]


@app.command()
def predict(
    model: Export,
    samples: Annotated[
        list[str] | None,
        typer.Argument(metavar="SAMPLE...", help="Image files, or folders of them; texts.", show_default=False),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Most labels a sample [3; of several labels all that reach theirs]."),
    ] = None,
    lines: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with one text or path a line; - is standard input.")
    ] = None,
    json_lines: Annotated[str | None, typer.Option(metavar="FILE", help="The same, as JSON.")] = None,
    manifest: Annotated[
        str | None, typer.Option(metavar="FILE", help="A table of samples: CSV, or JSON lines; - is standard input.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the manifest that holds them [file, text].")
    ] = None,
    answer_format: Annotated[
        str | None, typer.Option("--format", metavar="FORM", help="text, json (a line each) or csv.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As --format json.")] = False,
    url: Annotated[str | None, typer.Option(metavar="URL", help="Ask a running Triton: http://HOST:8000.")] = None,
    debug: Debug = False,
) -> None:
    """Print the answers to images or texts, with scores, by an exported model."""
    files = {"lines": lines, "json-lines": json_lines, "manifest": manifest}
    if not samples and not any(files.values()):
        raise typer.BadParameter("nothing was given: name samples, or a file with --lines", param_hint="SAMPLE...")
    form = "json" if as_json else answer_format
    with reported(debug):
        from pipelines.predict import run_predict

        options = {**files, "top": top, "column": column, "format": form, "url": url}
        code = run_predict(model, samples or [], options)
    raise typer.Exit(code)


@app.command("verify")
def verify_export(
    model: Export,
    shards: Annotated[
        str | None, typer.Option(metavar="URI", help="The shards that it was made from [default: its line's].")
    ] = None,
    debug: Debug = False,
) -> None:
    """Check every hash of an export and try its bundle; on its GPU, run the engine, which completes the proof."""
    with reported(debug):
        from pipelines.predict import run_verify

        code = run_verify(model, shards=shards)
    raise typer.Exit(code)


def _run_alone(
    stage: str,
    config: Path,
    overrides: list[str] | None,
    *,
    output: str | None,
    given: Mapping[str, str | None],
    fresh: bool,
    debug: bool,
) -> None:
    with reported(debug):
        from pipelines.local.stages import run_stage_alone

        _print_place(
            run_stage_alone(stage, load(config, overrides), output=output, given=given, fresh=fresh, debug=debug).uri
        )


def _print_place(uri: str) -> None:
    from contracts import storage

    print(storage.display(uri), flush=True)


if __name__ == "__main__":
    main()
