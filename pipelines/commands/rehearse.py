"""`shardline rehearse`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.options import ConfigPath, Debug, Overrides
from pipelines.reported import load, reported


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rehearse")(rehearse_config)


def rehearse_config(
    config: ConfigPath,
    overrides: Overrides = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--source", metavar="PATH", help="Local data that stand for sharding.source, where that is gs://."
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights", metavar="PATH", help="Local weights that stand for model.weights, where that is gs://."
        ),
    ] = None,
    preempt: Annotated[
        str,
        typer.Option("--preempt", metavar="N|RATE/h", help="Machines taken away: so many, or so many an hour each."),
    ] = "0",
    faults: Annotated[
        Path | None,
        typer.Option("--faults", metavar="RULES", help="JSON list of faults of the buckets (rehearsal/gcs)."),
    ] = None,
    restarts: Annotated[
        str,
        typer.Option("--restarts", metavar="strict|lenient", help="Reading of Vertex AI's rules (docs/vertex.md)."),
    ] = "strict",
    schedule_days: Annotated[
        float, typer.Option("--schedule-days", metavar="N", help="Create the schedule, and let so many days pass.")
    ] = 0.0,
    time_scale: Annotated[
        float, typer.Option("--time-scale", metavar="X", help="Seconds here for one of the platform's waiting.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Decides machines and moments.")] = 0,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Training processes of each machine [default: what fits here].")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Files of the source to copy at most [default: all].")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="FOLDER", help="Leave buckets, machines and logs there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Submit to a Google Cloud on this machine, and compare what happened with what should have."""
    with reported(debug):
        import tempfile

        from pipelines.rehearsal_options import parse_preempt, parse_reading, read_rules
        from pipelines.rehearsal_report import print_rehearsal, to_json
        from pipelines.rehearse import Wanted, check, rehearse

        count, rate = parse_preempt(preempt)
        wanted = Wanted(
            preemptions=count,
            rate_per_h=rate,
            rules=read_rules(faults),
            schedule_days=schedule_days,
            time_scale=time_scale,
            seed=seed,
            processes_per_node=processes,
            samples=samples,
            restarts=parse_reading(restarts),
        )
        given = load(config, overrides)
        with tempfile.TemporaryDirectory(prefix="shardline-rehearsal-", ignore_cleanup_errors=True) as temporary:
            found = rehearse(given, source=source, weights=weights, folder=keep or Path(temporary), wanted=wanted)
        if as_json:
            print(to_json(found))
        else:
            print_rehearsal(found, sys.stdout, kept=keep)
        check(found)
