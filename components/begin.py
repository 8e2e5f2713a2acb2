"""Start of a run of a pipeline: run-start.json, and the date of its data."""

from __future__ import annotations

import datetime
import json
import time
import zoneinfo
from collections.abc import Mapping
from contextlib import suppress

from components.task import Task
from contracts import storage
from contracts.config import RunConfig
from contracts.previous import RUN_NAME, describe_previous
from contracts.result import RUN_START_NAME, run_uri


def begin(task: Task, config: RunConfig, line: str) -> str:
    """Write run-start.json, create-only; return the run's data date.

    A retry of the same run keeps date and start. If it is another job (in another region), the document gets the new
    job, and the record of the former job is deleted.
    """
    scheduled_at = task.parameter("scheduled_at")
    date = data_date(scheduled_at, task.parameter("created_at"), config.schedule.time_zone)
    arguments = {"line": line, "job": task.parameter("job")}
    start = {
        "id": task.run_id,
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "data_date": date,
        "scheduled_at": scheduled_at if _moment(scheduled_at) else "",
        "config": config.model_dump(mode="json"),
        "arguments": arguments,
        **describe_previous(config, line),
    }
    uri = storage.join(run_uri(line, task.run_id), RUN_START_NAME)
    try:
        storage.publish(uri, _to_json(start))
    except storage.AlreadyPublished:
        first = json.loads(storage.read_bytes(uri))
        date = str(first["data_date"])
        if first["arguments"] != arguments:
            storage.replace(uri, _to_json({**first, "arguments": arguments}))
            with suppress(FileNotFoundError):
                storage.delete(storage.join(run_uri(line, task.run_id), RUN_NAME))
    return date


def data_date(scheduled_at: str, created_at: str, time_zone: str) -> str:
    """Return the data date of a run: its scheduled time, else its creation time.

    Without a schedule, the placeholder of the scheduled time is unresolved or empty.

    Args:
        scheduled_at: ISO 8601; without an offset it is UTC.
        created_at: The same.
        time_zone: Name of the IANA database.

    Returns:
        ISO 8601 with the zone's offset: its first ten characters are the local day, the value of {date}.
    """
    moment = _moment(scheduled_at) or _moment(created_at) or datetime.datetime.now(datetime.UTC)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.astimezone(zoneinfo.ZoneInfo(time_zone)).isoformat(timespec="seconds")


def _moment(text: str) -> datetime.datetime | None:
    """Parse a time in ISO 8601; None for an unresolved placeholder."""
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return None


def _to_json(start: Mapping[str, object]) -> bytes:
    return (json.dumps(start, sort_keys=True, indent=1) + "\n").encode()
