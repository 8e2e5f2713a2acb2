"""`shardline schedule ...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.commands.options import ConfigPath, Debug, Overrides, Prices, ProfileUri
from pipelines.reported import load, reported

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from pipelines.plan.plan import Plan
    from pipelines.submission.drift import Times
    from pipelines.submission.schedule import Schedules
    from pipelines.submission.submit import Prepared

_app = typer.Typer(help="Run a line by the clock.", no_args_is_help=True, rich_markup_mode=None)

ScheduleId = Annotated[str, typer.Option("--id", metavar="ID", help="Id of the schedule [default: the line's].")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    _app.command("describe")(describe)
    app.add_typer(_app, name="schedule")


@_app.command()
def create(
    config: ConfigPath,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the request and its cost as JSON; ask nobody.")
    ] = False,
    prices: Prices = None,
    profile: ProfileUri = None,
    debug: Debug = False,
) -> None:
    """Schedule a line; one that is scheduled so already is left alone."""
    with reported(debug):
        from pipelines.plan.table import cost_values

        resolved, plan, prepared, times = _prepare(config, overrides, prices, profile, online=not dry_run)
        if dry_run:
            document = {"cron": times.cron, **prepared.submission(prepared.run_id).to_json()}
            document["estimate"] = cost_values(plan)
            del document["pipelineJobId"]
            print(json.dumps(document, indent=1, sort_keys=True))
            return
        _show(_schedules(resolved).create(prepared, times))
        _say_rungs(resolved)


@_app.command("list")
def list_schedules(config: ConfigPath, overrides: Overrides = None, debug: Debug = False) -> None:
    """Print the schedules of the configuration's project and region."""
    with reported(debug):
        from pipelines.submission.schedule import id_of

        for schedule in _schedules(load(config, overrides)).list():
            next_run = schedule.next_run_time.isoformat(timespec="seconds") if schedule.next_run_time else "none"
            state = schedule.state.name.lower()
            print(f"{id_of(schedule)}  {schedule.display_name}  {state}  {schedule.cron}  next {next_run}")


def describe(
    config: ConfigPath, overrides: Overrides = None, schedule_id: ScheduleId = "", debug: Debug = False
) -> None:
    """Print a line's schedule and the runs that it started last."""
    with reported(debug):
        from pipelines.runs.tasks import state_of

        schedules, found = _find(config, overrides, schedule_id)
        _show(found)
        for job in schedules.runs(found):
            print(f"{'run':<24} {job.name.rpartition('/')[2]}  {state_of(job).lower()}")


@_app.command()
def diff(
    config: ConfigPath,
    overrides: Overrides = None,
    schedule_id: ScheduleId = "",
    prices: Prices = None,
    profile: ProfileUri = None,
    debug: Debug = False,
) -> None:
    """Compare the configuration with what is scheduled; exit code 1 when they differ."""
    with reported(debug):
        from contracts.errors import CheckFailed
        from pipelines.submission.drift import find_drift
        from pipelines.submission.schedule import id_of

        resolved, _, prepared, times = _prepare(config, overrides, prices, profile, online=False)
        found = _schedules(resolved).require(resolved, schedule_id)
        if differences := find_drift(prepared, times, found):
            told = [f"schedule {id_of(found)} is not what the configuration says", *map(str, differences)]
            raise CheckFailed("\n  ".join([*told, "to do: shardline schedule update CONFIG"]))
        print(f"schedule {id_of(found)} is what the configuration says")


@_app.command()
def update(
    config: ConfigPath,
    overrides: Overrides = None,
    schedule_id: ScheduleId = "",
    prices: Prices = None,
    profile: ProfileUri = None,
    debug: Debug = False,
) -> None:
    """Make a line's schedule what the configuration says."""
    with reported(debug):
        from pipelines.submission.schedule import id_of

        resolved, _, prepared, times = _prepare(config, overrides, prices, profile, online=True)
        schedules = _schedules(resolved)
        made, how = schedules.update(prepared, times, schedules.find_to_update(prepared, times, schedule_id))
        print(f"schedule {id_of(made)}: {how}")
        _say_rungs(resolved)


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


def _prepare(
    config: Path, overrides: list[str] | None, prices: Path | None, profile: str | None, *, online: bool
) -> tuple[RunConfig, Plan, Prepared, Times]:
    from pipelines.graph.compile import compile_line
    from pipelines.plan.plan import plan_of
    from pipelines.rules.submission import Asked
    from pipelines.submission.drift import read_times
    from pipelines.submission.submit import prepare

    resolved = load(config, overrides)
    plan = plan_of(resolved, prices, profile, Asked(scheduled=True), online=online)
    for text in plan.warnings:
        print(f"warning: {text}", file=sys.stderr, flush=True)
    return resolved, plan, prepare(resolved, compile_line(resolved, plan)), read_times(resolved.schedule)


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


def _show(schedule: Any) -> None:
    from pipelines.submission.schedule import describe

    for name, text in describe(schedule):
        print(f"{name:<24} {text}")


def _say_rungs(config: RunConfig) -> None:
    if len(config.resources.ladder) > 1:
        first = config.resources.ladder[0]
        place = f"{first.strategy} in {first.region or config.cloud.region}"
        print(f"a scheduled run uses the first rung of the ladder only: {place}", file=sys.stderr)
