"""What a line's schedule should be, and in what one that is there differs.

Cron and zone, start and end, queueing, and the run that it submits. Pure functions; `schedule.py` asks the service.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pipelines.submission.request import Difference, find_differences
from pipelines.submission.submit import Prepared, to_dict

if TYPE_CHECKING:
    from contracts.config import ScheduleSection


@dataclass(frozen=True)
class Times:
    """When a schedule fires, as the API says it."""

    cron: str
    """With its zone: TZ=Europe/Berlin 0 6 * * 1."""
    start: datetime | None
    end: datetime | None
    queue: bool


def read_times(section: ScheduleSection) -> Times:
    """Return section `schedule` as the API says it; what is written there was checked by the plan."""
    start, end = (datetime.fromisoformat(text) if text else None for text in (section.start, section.end))
    return Times(f"TZ={section.time_zone} {' '.join(section.cron.split())}", start, end, section.queue)


def find_drift(prepared: Prepared, times: Times, found: Any) -> list[Difference]:
    """Return in what a schedule is not what the configuration says.

    Args:
        prepared: The line.
        times: When it should fire.
        found: The schedule's message.
    """
    there = to_dict(found)
    wanted = {
        "cron": times.cron,
        # Unset: the service fills in the moment of creation.
        "start": in_utc(times.start) if times.start else "",
        "end": in_utc(times.end) if times.end else "",
        "queue": str(times.queue).lower(),
        "active runs at most": "1",
    }
    have = {
        "cron": there.get("cron", ""),
        "start": in_utc(found.start_time) if times.start and found.start_time else "",
        "end": in_utc(found.end_time) if found.end_time else "",
        "queue": str(there.get("allowQueueing", False)).lower(),
        "active runs at most": str(there.get("maxConcurrentActiveRunCount", "unlimited")),
    }
    differences = [Difference(name, wanted[name], have[name]) for name in wanted if wanted[name] != have[name]]
    job = there.get("createPipelineJobRequest", {}).get("pipelineJob", {})
    return [*differences, *find_differences(job_of(prepared), job)]


def job_of(prepared: Prepared) -> dict[str, Any]:
    """Return the PipelineJob that a schedule submits, as JSON."""
    return prepared.submission(prepared.run_id).request


def in_utc(moment: datetime) -> str:
    """Return a moment as the API writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
