"""The times of a Vertex cron line: the five fields of unix-cron, with an optional time zone before them.

"TZ=Europe/Berlin 0 6 * * 1" or "CRON_TZ=...": six o'clock there, summer and winter. A field is numbers, names (JAN),
ranges, steps and lists (https://cloud.google.com/scheduler/docs/configuring/cron-job-schedules); the L, W, # and ? of
other crons are refused. A step behind one number (5/15) is on no page; it is taken, as from that number on. Around a
change of daylight saving cronsim does what Debian's cron does: a time in the hour that is skipped fires right behind
it, and one in the hour that comes twice fires once.
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
    """Return why five fields are no line of unix-cron, or name no day that there is; empty: nothing is wrong."""
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
    """Yield the times after `after_s` at which a cron line fires, in seconds since 1970.

    Raises:
        ServiceError: INVALID_ARGUMENT: not a line of unix-cron, or no IANA time zone.
    """
    from cronsim import CronSim

    match = _LINE.fullmatch(cron.strip())
    if match is None:
        raise invalid_argument("schedule.cron", f"{cron!r} is not [TZ=ZONE ]MINUTE HOUR DAY MONTH WEEKDAY")
    zone, fields = match.groups()
    if wrong := find_mistake(fields):
        raise invalid_argument("schedule.cron", f"{fields!r}: {wrong}")
    try:
        where = ZoneInfo(zone or "UTC")
        times = CronSim(fields, datetime.fromtimestamp(after_s, where))
    except (ZoneInfoNotFoundError, ValueError):
        raise invalid_argument("schedule.cron", f"{zone!r} is no time zone of the IANA database") from None
    # A minute may begin at the very moment that was fired for.
    return (moment for moment in (found.astimezone(UTC).timestamp() for found in times) if moment > after_s)
