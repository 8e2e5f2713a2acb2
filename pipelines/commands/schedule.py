"""`shardline schedule ...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.commands.options import ConfigPath, Debug, Overrides
from pipelines.reported import load, reported

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from pipelines.submission.schedule import Schedules

_app = typer.Typer(help="Run a line by the clock.", no_args_is_help=True, rich_markup_mode=None)

ScheduleId = Annotated[str, typer.Option("--id", metavar="ID", help="Id of the schedule [default: the line's].")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(_app, name="schedule")


@_app.command()
def create(
    config: ConfigPath,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the request and its cost as JSON; ask nobody.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Schedule a line that is not scheduled yet."""
    with reported(debug):
        from contracts.canonical import canonical
        from pipelines.graph.compile import compile_line
        from pipelines.plan import cost_values, plan_of
        from pipelines.rules.submission import Asked
        from pipelines.submission.schedule import describe, make_schedule
        from pipelines.submission.submit import prepare

        resolved = load(config, overrides)
        plan = plan_of(resolved, Asked(scheduled=True), online=not dry_run)
        for text in plan.warnings:
            print(f"warning: {text}", file=sys.stderr, flush=True)
        prepared = prepare(resolved, compile_line(resolved, plan))
        if dry_run:
            document = {"schedule": canonical(make_schedule(prepared)), "estimate": cost_values(plan)}
            print(json.dumps(document, indent=1, sort_keys=True))
            return
        print(describe(_schedules(resolved).create(prepared)))


@_app.command("list")
def list_schedules(config: ConfigPath, overrides: Overrides = None, debug: Debug = False) -> None:
    """Print the schedules of the configuration's project and region."""
    with reported(debug):
        from pipelines.submission.schedule import describe

        for schedule in _schedules(load(config, overrides)).list():
            print(describe(schedule))


@_app.command()
def pause(config: ConfigPath, overrides: Overrides = None, schedule_id: ScheduleId = "", debug: Debug = False) -> None:
    """Stop a line's schedule from firing; a run of it goes on."""
    with reported(debug):
        from pipelines.submission.schedule import id_of

        schedules, found = _find(config, overrides, schedule_id)
        schedules.pause(found)
        print(f"schedule {id_of(found)}: paused")


@_app.command()
def resume(
    config: ConfigPath,
    overrides: Overrides = None,
    schedule_id: ScheduleId = "",
    catch_up: Annotated[bool, typer.Option("--catch-up", help="Make up for the runs that it missed.")] = False,
    debug: Debug = False,
) -> None:
    """Let a line's schedule fire again."""
    with reported(debug):
        from pipelines.submission.schedule import id_of

        schedules, found = _find(config, overrides, schedule_id)
        schedules.resume(found, catch_up=catch_up)
        print(f"schedule {id_of(found)}: active")


@_app.command()
def delete(config: ConfigPath, overrides: Overrides = None, schedule_id: ScheduleId = "", debug: Debug = False) -> None:
    """Delete a line's schedule; a run of it goes on."""
    with reported(debug):
        from pipelines.submission.schedule import id_of

        schedules, found = _find(config, overrides, schedule_id)
        schedules.delete(found)
        print(f"schedule {id_of(found)}: deleted")


def _find(config: Path, overrides: list[str] | None, schedule_id: str) -> tuple[Schedules, Any]:
    resolved = load(config, overrides)
    schedules = _schedules(resolved)
    return schedules, schedules.require(resolved, schedule_id)


def _schedules(config: RunConfig) -> Schedules:
    from contracts.errors import ConfigError
    from pipelines.submission.schedule import Schedules

    if not config.cloud.project or not config.cloud.region:
        raise ConfigError(
            "cloud.project or cloud.region is not set", allowed="both", todo="set them in the configuration"
        )
    return Schedules(config.cloud.project, config.cloud.region)
