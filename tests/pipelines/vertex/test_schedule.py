from typing import Any

import pytest

from contracts.config import RunConfig
from contracts.errors import ConfigError, TryAgain
from pipelines.rules.submission import Asked, find_asked_problems
from pipelines.submission.schedule import Schedules, describe, id_of, to_row
from pipelines.submission.submit import Prepared, prepare, to_dict
from tests.pipelines.vertex.conftest import PROJECT, REGION, Cloud, MakeConfig, compiled_line

WEEKLY = {"cron": "0 6 * * 1", "time_zone": "Europe/Berlin"}


class Scheduled:
    """A line of a name of its own and its schedules."""

    def __init__(self, config: RunConfig, spec: dict[str, Any]) -> None:
        self.config = config
        self.prepared: Prepared = prepare(config, compiled_line(config, spec))
        self.schedules = Schedules(PROJECT, REGION)

    def create(self) -> Any:
        return self.schedules.create(self.prepared)

    def find(self) -> Any:
        return self.schedules.require(self.config)


@pytest.fixture
def make(cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]) -> Any:
    def made(name: str, **schedule: Any) -> Scheduled:
        config = make_config(run={"name": name}, schedule={**WEEKLY, **schedule}, cloud={"labels": {"team": "vision"}})
        return Scheduled(config, tiny_spec)

    return made


def test_what_is_created_has_one_active_run_and_the_lines_label(make: Any) -> None:
    line = make("fresh")
    found = to_dict(line.create())
    assert found["cron"] == "TZ=Europe/Berlin 0 6 * * 1"
    assert found["maxConcurrentActiveRunCount"] == "1"
    assert not found.get("allowQueueing", False)
    job = found["createPipelineJobRequest"]["pipelineJob"]
    assert job["displayName"] == "fresh"
    assert job["labels"].items() >= {"team": "vision", "shardline-line": "fresh"}.items()
    assert "  fresh  active  TZ=Europe/Berlin 0 6 * * 1  next 20" in describe(line.find())
    assert list(to_row(line.find())) == ["id", "line", "state", "cron", "next"]


def test_one_that_is_there_is_refused_until_it_is_deleted(make: Any) -> None:
    line = make("again")
    first = line.create()
    with pytest.raises(ConfigError, match=f"schedule {id_of(first)} is called again already"):
        make("again", cron="0 7 * * 1").create()
    line.schedules.delete(first)
    assert to_dict(make("again", cron="0 7 * * 1").create())["cron"].endswith(" 0 7 * * 1")


def test_pause_resume_and_delete_may_be_said_twice(make: Any) -> None:
    line = make("paused")
    line.create()
    for _ in range(2):
        line.schedules.pause(line.find())
        assert line.find().state.name == "PAUSED"
    for _ in range(2):
        line.schedules.resume(line.find(), catch_up=False)
        assert line.find().state.name == "ACTIVE"
    line.schedules.delete(line.find())
    with pytest.raises(ConfigError, match="no schedule is called paused"):
        line.find()


def test_a_cron_that_the_service_refuses_is_a_users_error(make: Any) -> None:
    with pytest.raises(ConfigError, match="refused"):
        make("wrong", cron="61 6 * * 1").create()


def test_a_line_without_a_cron_is_not_scheduled(make: Any) -> None:
    config = RunConfig.model_validate({"run": {"name": "never"}})
    (problem,) = find_asked_problems(config, Asked(scheduled=True))
    assert problem.given == "schedule.cron is not set"


def test_a_deletion_that_takes_too_long_is_try_again(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    line = make("slow")
    line.create()

    class Operation:
        def result(self, timeout: float) -> None:
            raise TimeoutError

    monkeypatch.setattr(line.schedules._client, "delete_schedule", lambda **request: Operation())
    with pytest.raises(TryAgain, match="not deleted yet"):
        line.schedules.delete(line.find())
