"""Cron lines: what unix-cron has, by name what it has not, and time zones."""

import re
from datetime import UTC, datetime

import pytest

from rehearsal.errors import ServiceError
from rehearsal.vertex.cron import fire_times


def at(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]


@pytest.mark.parametrize("wrong", ["L", "5#2", "?", "1,L"])
def test_what_unix_cron_does_not_have_is_refused_by_name(wrong: str) -> None:
    with pytest.raises(ServiceError, match=re.escape(f"'{wrong}' is not of unix-cron")):
        fire_times(f"0 6 {wrong} * *", 0)


@pytest.mark.parametrize("fields", ["*/15 0-23/2 1,15 JAN-mar mon-FRI", "0,30 6 * * 7", "5/15 * * * *"])
def test_what_unix_cron_has_is_taken(fields: str) -> None:
    assert next(fire_times(fields, at(2026, 10, 19))) > at(2026, 10, 19)


def test_cron_around_the_hours_that_do_not_and_twice_exist() -> None:
    daily = fire_times("CRON_TZ=Europe/Berlin 30 2 * * *", at(2027, 3, 27, 12))
    # 02:30 does not exist on the 28th: it fires when the hour is over.
    assert [next(daily), next(daily)] == [at(2027, 3, 28, 1), at(2027, 3, 29, 0, 30)]
    daily = fire_times("TZ=Europe/Berlin 30 2 * * *", at(2026, 10, 24, 12))
    assert [next(daily), next(daily)] == [at(2026, 10, 25, 0, 30), at(2026, 10, 26, 1, 30)]
