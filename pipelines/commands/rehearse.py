"""`shardline rehearse`."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.options import Debug, Format, Overrides, as_document, is_document, print_document
from pipelines.reported import load, reported


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rehearse")(rehearse_config)


def rehearse_config(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="YAML file; --serve does without.", show_default=False)
    ] = None,
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
        int, typer.Option("--preempt", min=0, max=100, metavar="N", help="Machines taken away: so many.")
    ] = 0,
    faults: Annotated[
        Path | None,
        typer.Option("--faults", metavar="RULES", help="JSON list of faults of the buckets (rehearsal/gcs)."),
    ] = None,
    stockout: Annotated[
        list[str] | None,
        typer.Option("--stockout", metavar="REGION", help="No machines there."),
    ] = None,
    storage_faults: Annotated[
        float, typer.Option("--storage-faults", metavar="RATE", help="Share of requests to buckets that fail (503).")
    ] = 0.0,
    schedule_days: Annotated[
        float,
        typer.Option("--schedule-days", min=0, metavar="N", help="Create the schedule, and let so many days pass."),
    ] = 0.0,
    time_scale: Annotated[
        float,
        typer.Option(
            "--time-scale", min=0.001, max=100, metavar="X", help="Seconds here for one of the platform's waiting."
        ),
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Decides machines and moments.")] = 0,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Training processes of each machine [default: what fits here].")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Files of the source to copy at most [default: all].")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Only start the cloud, print the variables that lead programs to it, serve.")
    ] = False,
    clock_rate: Annotated[
        float, typer.Option("--clock-rate", metavar="X", help="With --serve: seconds of the cloud's clock in one here.")
    ] = 1.0,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="FOLDER", help="Leave buckets, machines and logs there.")
    ] = None,
    form: Format = None,
    debug: Debug = False,
) -> None:
    """Submit to a Google Cloud on this machine, and compare what happened with what should have."""
    with reported(debug):
        from pipelines.rehearse.disturbances import Disturbances, read_rules
        from pipelines.rehearse.rehearse import Wanted, check, rehearse
        from pipelines.rehearse.report import print_rehearsal, to_json
        from pipelines.rehearse.serve import Server, check_options, run_server
        from rehearsal.leftovers import claimed_folder

        documented = is_document(form)
        wanted = Wanted(
            preemptions=preempt,
            rules=read_rules(faults),
            schedule_days=schedule_days,
            time_scale=time_scale,
            seed=seed,
            processes_per_node=processes,
            samples=samples,
            disturbances=Disturbances(stockouts=tuple(stockout or ()), storage_fault_rate=storage_faults),
        )
        bound = source is not None or weights is not None
        check_options(wanted, serve=serve, config=config, bound=bound, clock_rate=clock_rate)
        given = None if config is None else load(config, overrides)
        with claimed_folder(keep) as folder:
            if given is None or serve:
                server = Server(given, source, weights, folder, wanted, clock_rate)
                document = functools.partial(as_document, form=form) if documented else None
                run_server(server, sys.stdout, sys.stderr, document=document)
                return
            found = rehearse(given, source=source, weights=weights, folder=folder, wanted=wanted)
        if documented:
            print_document(to_json(found), form)
        else:
            print_rehearsal(found, sys.stdout, kept=keep)
        check(found)
