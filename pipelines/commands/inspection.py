"""`shardline report`, `inspect`, `runs`: runs of every place, as a page, on the terminal, as a list."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.options import Debug, Format, is_document, print_document
from pipelines.reported import reported


def complete_run(typed: str) -> list[str]:
    """Return the ids and lines below ./runs that begin with what was typed, for the shell's completion."""
    from contracts.config import RunSection
    from contracts.result import RUN_START_NAME, RUNS_FOLDER

    root = Path(RunSection().root)
    lines = [path for path in sorted(root.glob("*")) if (path / RUNS_FOLDER).is_dir()]
    ids = [path.parent.name for line in lines for path in sorted((line / RUNS_FOLDER).glob(f"*/{RUN_START_NAME}"))]
    return [name for name in [*map(str, lines), *reversed(ids)] if name.startswith(typed)]


RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Folder of a run, or of a line for its newest (path or gs://); below ./runs: ID, LINE/ID, LINE:latest.",
        show_default=False,
        autocompletion=complete_run,
    ),
]
Root = Annotated[
    str,
    typer.Argument(
        metavar="[ROOT]", help="Folder that holds lines, or one line (path or gs://).", autocompletion=complete_run
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(report)
    app.command("inspect")(inspect_run)
    app.command()(runs)


def report(
    run: RunArgument,
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="FILE", help="Where to write (path or gs://) [default: the run's folder]."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write the page of a run: one HTML file that opens anywhere and needs nothing."""
    with reported(debug):
        from inspection.report_file import write_report

        print(write_report(run, output), flush=True)


def inspect_run(
    run: RunArgument,
    form: Format = None,
    debug: Debug = False,
) -> None:
    """Print what is known of a run: stages, data, choice, training, money, proof."""
    with reported(debug):
        from inspection.run.find import find_place
        from inspection.run.read import read_run
        from inspection.terminal import print_run, to_json

        view = read_run(find_place(run), pictures=False)
        if is_document(form):
            print_document(to_json(view), form)
        else:
            print_run(view, sys.stdout)


def runs(
    root: Root = "runs",
    form: Format = None,
    debug: Debug = False,
) -> None:
    """List the runs below a folder or bucket, the newest first."""
    with reported(debug):
        import json

        from inspection.run.summary import list_runs
        from inspection.terminal import print_runs

        found = list_runs(root)
        if is_document(form):
            print_document(json.dumps([line.model_dump(mode="json") for line in found], indent=1), form)
        else:
            print_runs(found, sys.stdout)
