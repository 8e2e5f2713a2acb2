"""`shardline status`, `logs` and `cancel`: a run that was submitted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands.options import Debug, Format, is_document, print_document
from pipelines.reported import load, reported, say

if TYPE_CHECKING:
    from pipelines.runs.name import RunName

_INTERRUPTED = 130

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Id or LINE:latest (with --config, or --project and --region), full name, folder of a run or line.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="CONFIG", help="Configuration that names project and region.")
]
Project = Annotated[str, typer.Option("--project", metavar="ID", help="Project of the run.")]
Region = Annotated[str, typer.Option("--region", metavar="REGION", help="Region of the run.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(status)
    app.command()(logs)
    app.command()(cancel)


def status(
    run: Run,
    config: Config = None,
    project: Project = "",
    region: Region = "",
    form: Format = None,
    debug: Debug = False,
) -> None:
    """Show the tasks and jobs of a submitted run, and why it failed."""
    with reported(debug):
        from pipelines.google import pipeline_client
        from pipelines.runs.status import print_status, read_status, to_json

        tries = _find_tries(run, config, project, region)
        found = [read_status(pipeline_client(name.region), name) for name in tries]
        if is_document(form):
            print_document(
                json.dumps({**to_json(found[-1]), "earlier": list(map(to_json, found[:-1]))}, indent=1), form
            )
        else:
            for status in found:
                print_status(status, sys.stdout)


def logs(
    run: Run,
    config: Config = None,
    project: Project = "",
    region: Region = "",
    task: Annotated[str, typer.Option(metavar="NAME", help="Only this task, e.g. train.")] = "",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run has ended.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", metavar="N", min=0, help="Only the last N lines.")] = None,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Only from then on: 90s, 10m, 2h, 1d ago, or ISO 8601.")
    ] = "",
    debug: Debug = False,
) -> None:
    """Print what the tasks and jobs of a submitted run printed."""
    with reported(debug):
        from pipelines.google import pipeline_client
        from pipelines.runs.logs import parse_since, read_logs

        moment_since = parse_since(since) if since else None
        code = 0
        try:
            tries = _find_tries(run, config, project, region)
            for name in tries:
                if len(tries) > 1:
                    say(f"run {name.id} in {name.region}")
                client = pipeline_client(name.region)
                for entry in read_logs(client, name, task=task, follow=follow, tail=tail, since=moment_since):
                    moment = entry.time.strftime("%Y-%m-%dT%H:%M:%SZ")
                    print(f"{moment}  {entry.severity:<7}  {entry.source}  {entry.text.rstrip()}", flush=True)
        except KeyboardInterrupt:
            # Ctrl-C is how --follow is ended.
            code = _INTERRUPTED
    raise typer.Exit(code)


def cancel(run: Run, config: Config = None, project: Project = "", region: Region = "", debug: Debug = False) -> None:
    """End a submitted run and every job that it started; waits until nothing of it runs."""
    with reported(debug):
        from pipelines.google import pipeline_client
        from pipelines.runs.cancel import cancel as cancel_run

        num_jobs = 0
        for name in _find_tries(run, config, project, region):
            client = pipeline_client(name.region)
            done = cancel_run(client, name, say=say)
            before = "had ended before" if done.had_ended else "ended"
            print(f"run {name.id} in {name.region} {before}: {done.state.lower()}")
            for job in done.jobs:
                how = "cancelled here, since the service left it running" if job.name in done.by_hand else "ended"
                print(f"{job.kind} {job.id} in {job.region} {how}: {job.state.lower()}")
            num_jobs += len(done.jobs)
        print(f"nothing of it runs any more ({num_jobs} jobs)")


def _find_tries(run: str, config: Path | None, project: str, region: str) -> list[RunName]:
    from pipelines.runs.name import find_run
    from pipelines.runs.regions import find_tries

    given = load(config, None) if config else None
    return find_tries(find_run(run, config=given, project=project, region=region))
