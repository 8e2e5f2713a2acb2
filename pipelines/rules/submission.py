"""Rules of a submission about what is said beside the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from contracts.checked import Problem
from contracts.config import RunConfig
from contracts.errors import UserError


@dataclass(frozen=True)
class Asked:
    """What a submission says beside the configuration."""

    run_id: str = ""
    """Id of the run; empty: one is made."""
    scheduled: bool = False
    """Whether it is for a schedule, which needs its times."""


def find_asked_problems(config: RunConfig, asked: Asked) -> Iterator[Problem]:
    """Yield what is wrong with it."""
    from pipelines.submission.request import check_run_id

    if asked.run_id:
        try:
            check_run_id(asked.run_id)
        except UserError as error:
            yield Problem.of(error)
    if asked.scheduled and not config.schedule.cron:
        yield Problem(
            "schedule.cron is not set",
            "five fields: minute, hour, day of the month, month, day of the week",
            "set it, e.g. '0 6 * * 1' for Mondays at six; the time zone is schedule.time_zone",
        )
