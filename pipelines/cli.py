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
from typing import Annotated

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
        from pipelines.local import run_line

        outcome = run_line(load(config, overrides), flags=_flags(fresh, debug), started_at_s=context.obj)
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
            from pipelines.local import describe_shards

            print(describe_shards(load(config, overrides)), flush=True)
        return
    _run_alone("shard", config, overrides, output=output, given={}, fresh=fresh, debug=debug)


@app.command()
def profile(
    config: ConfigPath,
    overrides: Overrides = None,
    output: Output = None,
    shards: Shards = None,
    fresh: Fresh = False,
    debug: Debug = False,
) -> None:
    """Measure how to cut the global batch and how to load, and what is slow; print what was found out."""
    with reported(debug):
        from contracts import storage
        from contracts.artifacts import ProfileReport
        from inspection.profile import describe, describe_training
        from inspection.profile_page import write_profile_page
        from pipelines.local import run_stage_alone

        resolved = load(config, overrides)
        made = run_stage_alone("profile", resolved, to=output, given={"shards": shards}, flags=_flags(fresh, debug))
        report = ProfileReport.load(made.uri)
        if made.reused:
            print("reused: made before, for this configuration and hardware; --fresh measures again")
        for name, text in describe(report):
            print(f"{name}: " + text.replace("\n", "\n  "))
        if (training := describe_training(report, resolved)) is not None:
            print(f"training: {training}")
        page = write_profile_page(made.uri, made.attempt)
        print(f"page: {storage.display(page) if page else 'none'}")
        _print_place(made.uri)


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
    fresh: Fresh = False,
    debug: Debug = False,
) -> None:
    """Turn the best checkpoint into engines, and prove their parity."""
    given = {"shards": shards, "checkpoint": checkpoint}
    _run_alone("export", config, overrides, output=output, given=given, fresh=fresh, debug=debug)


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
        from pipelines.local import run_stage_alone

        flags = _flags(fresh, debug)
        _print_place(run_stage_alone(stage, load(config, overrides), to=output, given=given, flags=flags).uri)


def _flags(fresh: bool, debug: bool) -> list[str]:
    return [name for name, is_set in (("fresh", fresh), ("debug", debug)) if is_set]


def _print_place(uri: str) -> None:
    from contracts import storage

    print(storage.display(uri), flush=True)


if __name__ == "__main__":
    main()
