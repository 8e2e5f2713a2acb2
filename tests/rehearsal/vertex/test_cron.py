"""Cron lines: what unix-cron has, by name what it has not, and time zones."""

from datetime import UTC, datetime

import pytest

from rehearsal.errors import ServiceError
from rehearsal.vertex.cron import fire_times

BEGIN = datetime(2026, 10, 19, tzinfo=UTC).timestamp()


def at(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ("0 6 L * *", "'L'"),
        ("0 6 LW * *", "'LW'"),
        ("0 6 * * 5L", "'5L'"),
        ("0 6 * * 5#2", "'5#2'"),
        ("0 6 ? * 1", "'\\?'"),
        ("0 6 1,L * *", "'1,L'"),
    ],
)
def test_what_unix_cron_does_not_have_is_refused_by_name(fields: str, named: str) -> None:
    with pytest.raises(ServiceError, match=f"{named} is not of unix-cron"):
        fire_times(fields, 0)


@pytest.mark.parametrize("fields", ["*/15 0-23/2 1,15 JAN-mar mon-FRI", "0,30 6 * * 7", "5/15 * * * *"])
def test_what_unix_cron_has_is_taken(fields: str) -> None:
    assert next(fire_times(fields, BEGIN)) > BEGIN


def test_cron_around_the_hours_that_do_not_and_twice_exist() -> None:
    daily = fire_times("CRON_TZ=Europe/Berlin 30 2 * * *", at(2027, 3, 27, 12))
    # 02:30 does not exist on the 28th: it fires when the hour is over.
    assert next(daily) == at(2027, 3, 28, 1)
    assert next(daily) == at(2027, 3, 29, 0, 30)
    daily = fire_times("TZ=Europe/Berlin 30 2 * * *", at(2026, 10, 24, 12))
    assert [next(daily), next(daily)] == [at(2026, 10, 25, 0, 30), at(2026, 10, 26, 1, 30)]
    with pytest.raises(ServiceError, match="cron"):
        fire_times("@daily", 0)
