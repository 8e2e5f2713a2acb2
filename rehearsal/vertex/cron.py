"""When a cron line of Vertex fires: five fields, with an optional time zone before them.

"TZ=Europe/Berlin 0 6 * * 1" or "CRON_TZ=...": six o'clock there, summer and winter. Around a change of daylight saving
cronsim does what Debian's cron does: what falls into the hour that is skipped fires right behind it, and what falls
into the hour that comes twice fires once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rehearsal.doors.errors import invalid

_LINE = re.compile(r"(?:(?:CRON_)?TZ=(\S+)\s+)?(\S+(?:\s+\S+){4})")


def fire_times(cron: str, after_s: float) -> Iterator[float]:
    """Yield the times after `after_s` at which a cron line fires, in seconds since 1970.

    Raises:
        ServiceError: INVALID_ARGUMENT: no cron line, or no IANA time zone.
    """
    from cronsim import CronSim, CronSimError

    match = _LINE.fullmatch(cron.strip())
    if match is None:
        raise invalid("schedule.cron", f"{cron!r} is not [TZ=ZONE ]MINUTE HOUR DAY MONTH WEEKDAY")
    zone, fields = match.groups()
    try:
        where = ZoneInfo(zone or "UTC")
        times = CronSim(fields, datetime.fromtimestamp(after_s, where))
    except (ZoneInfoNotFoundError, ValueError):
        raise invalid("schedule.cron", f"{zone!r} is no time zone of the IANA database") from None
    except CronSimError as error:
        raise invalid("schedule.cron", f"{fields!r}: {error}") from None
    # A minute may begin at the very moment that was fired for.
    return (moment for moment in (found.astimezone(UTC).timestamp() for found in times) if moment > after_s)
