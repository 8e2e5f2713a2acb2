"""The first task of a run on Vertex AI: from now on the run exists."""

from __future__ import annotations

import argparse
import datetime
import json
import time
import zoneinfo

from contracts import storage
from contracts.config.load import read_stage_config
from contracts.errors import ConfigError
from contracts.previous import describe_previous
from contracts.result import RUN_START_NAME, run_uri
from pipeline_tasks.outputs import write_parameter


def run(options: argparse.Namespace) -> None:
    """Write run-start.json, create-only, and give out the run's id and the data date.

    Raises:
        ConfigError: The configuration is not what was submitted, or its time zone is none.
    """
    config = read_stage_config(options.config, None, None)
    scheduled_at = options.scheduled_at if is_moment(options.scheduled_at) else ""
    date = data_date(options.scheduled_at, options.created_at, config.schedule.time_zone)
    start = {
        "id": options.run_id,
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "data_date": date,
        "scheduled_at": scheduled_at,
        "config": config.model_dump(mode="json"),
        "arguments": {"line": options.line, "run_config": options.config},
        **describe_previous(config, options.line),
    }
    content = (json.dumps(start, sort_keys=True, indent=1) + "\n").encode()
    uri = storage.join(run_uri(options.line, options.run_id), RUN_START_NAME)
    try:
        storage.publish(uri, content)
    except storage.AlreadyPublished:
        # The task is tried again after it had done its work, or the run in another region: the run is the same.
        print(f"begin: run {options.run_id} has begun before")
        date = str(json.loads(storage.read_bytes(uri))["data_date"])
    write_parameter(options.write_run_id, options.run_id)
    write_parameter(options.write_data_date, date)


def is_moment(text: str) -> bool:
    """Whether it is a moment in ISO 8601; a placeholder that the service had no value for is none."""
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def data_date(scheduled_at: str, created_at: str, time_zone: str) -> str:
    """Return the moment that a run's data is of: when it was scheduled for, else when it was created.

    A run that no schedule has started has no such time: the placeholder for it stays as it is, or is empty.

    Args:
        scheduled_at: ISO 8601; without an offset it is UTC.
        created_at: The same.
        time_zone: Name of the IANA database.

    Returns:
        ISO 8601 with the zone's offset: its first ten characters are the day there, which {date} stands for.

    Raises:
        ConfigError: There is no such zone.
    """
    try:
        zone = zoneinfo.ZoneInfo(time_zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"schedule.time_zone = {time_zone}",
            allowed="a name of the IANA database, e.g. Europe/Berlin",
            todo="correct it",
        ) from None
    moment = datetime.datetime.now(datetime.UTC)
    for text in (scheduled_at, created_at):
        try:
            moment = datetime.datetime.fromisoformat(text)
        except ValueError:
            continue
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        break
    return moment.astimezone(zone).isoformat(timespec="seconds")
