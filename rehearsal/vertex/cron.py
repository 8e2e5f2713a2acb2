"""Times of a Vertex AI cron expression: the five fields of unix-cron, with an optional time zone before them.

"TZ=Europe/Berlin 0 6 * * 1" or "CRON_TZ=...": six o'clock local time. A field has numbers, names (JAN), ranges, steps
and lists (https://cloud.google.com/scheduler/docs/configuring/cron-job-schedules); L, W, # and ? of other crons are
refused. A step after one number (5/15) is undocumented, and accepted as starting from that number. At changes of
daylight saving cronsim follows Debian's cron: a time in the skipped hour fires right after it, and a time in the
repeated hour fires once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rehearsal.errors import invalid_argument

_LINE = re.compile(r"(?:(?:CRON_)?TZ=(\S+)\s+)?(\S+(?:\s+\S+){4})")
_VALUE = r"(?:\d+|[A-Za-z]{3})"
_ITEM = rf"(?:\*|{_VALUE}(?:-{_VALUE})?)(?:/\d+)?"
_FIELD = re.compile(rf"{_ITEM}(?:,{_ITEM})*")


def find_mistake(fields: str) -> str:
    """Return the error in the five fields of a cron expression, including impossible days; empty: none."""
    from cronsim import CronSim, CronSimError

    for field in fields.split():
        if _FIELD.fullmatch(field) is None:
            allowed = "numbers, names (JAN, SUN), *, ranges (1-5), steps (*/2) and lists (1,3) are"
            return f"{field!r} is not of unix-cron: {allowed}"
    try:
        CronSim(fields, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        return str(error)
    return ""


def fire_times(cron: str, after_s: float) -> Iterator[float]:
    """Yield the times of a cron expression after `after_s`, in seconds since 1970.

    Raises:
        ServiceError: INVALID_ARGUMENT: not a cron expression, or an unknown time zone.
    """
    from cronsim import CronSim

    match = _LINE.fullmatch(cron.strip())
    if match is None:
        raise invalid_argument("schedule.cron", f"{cron!r} is not [TZ=ZONE ]MINUTE HOUR DAY MONTH WEEKDAY")
    zone, fields = match.groups()
    if mistake := find_mistake(fields):
        raise invalid_argument("schedule.cron", f"{fields!r}: {mistake}")
    try:
        time_zone = ZoneInfo(zone or "UTC")
        times = CronSim(fields, datetime.fromtimestamp(after_s, time_zone))
    except (ZoneInfoNotFoundError, ValueError):
        raise invalid_argument("schedule.cron", f"{zone!r} is no time zone of the IANA database") from None
    # Excludes `after_s` itself.
    return (moment for moment in (occurrence.astimezone(UTC).timestamp() for occurrence in times) if moment > after_s)
