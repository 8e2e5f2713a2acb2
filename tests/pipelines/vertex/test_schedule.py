import time
from dataclasses import replace
from typing import Any

import pytest
from google.api_core.exceptions import InvalidArgument

from contracts.config import RunConfig
from contracts.errors import ConfigError, TryAgain
from pipelines.rules.submission import Asked, find_asked_problems
from pipelines.submission.drift import find_drift, read_times
from pipelines.submission.schedule import Schedules, describe, id_of
from pipelines.submission.submit import Prepared, prepare, to_dict
from tests.pipelines.vertex.conftest import PROJECT, REGION, Cloud, MakeConfig, compiled_line

WEEKLY = {"cron": "0 6 * * 1", "time_zone": "Europe/Berlin"}


class Scheduled:
    """A line of a name of its own and its schedules."""

    def __init__(self, config: RunConfig, spec: dict[str, Any]) -> None:
        self.config = config
        self.prepared: Prepared = prepare(config, compiled_line(config, spec))
        self.times = read_times(config.schedule)
        self.schedules = Schedules(PROJECT, REGION)

    def create(self) -> Any:
        return self.schedules.create(self.prepared, self.times)

    def find(self) -> Any:
        return self.schedules.require(self.config)

    def drift(self) -> list[str]:
        return [difference.what for difference in find_drift(self.prepared, self.times, self.find())]

    def update(self) -> str:
        return self.schedules.update(self.prepared, self.times, self.find())[1]


@pytest.fixture
def make(cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]) -> Any:
    def made(name: str, spec: dict[str, Any] | None = None, **schedule: Any) -> Scheduled:
        config = make_config(run={"name": name}, schedule={**WEEKLY, **schedule}, cloud={"labels": {"team": "vision"}})
        return Scheduled(config, spec or tiny_spec)

    return made


def test_what_is_created_has_no_drift_and_one_active_run(make: Any) -> None:
    line = make("fresh", start="2030-01-01T00:00:00+01:00", end="2031-01-01T00:00:00Z")
    found = to_dict(line.create())
    assert found["cron"] == "TZ=Europe/Berlin 0 6 * * 1"
    assert found["maxConcurrentActiveRunCount"] == "1"
    assert not found.get("allowQueueing", False)
    assert found["startTime"] == "2029-12-31T23:00:00Z"
    assert found["createPipelineJobRequest"]["pipelineJob"]["displayName"] == "fresh"
    assert line.drift() == []
    assert dict(describe(line.find()))["state"] == "active"


def test_creating_it_again_is_the_same_schedule(make: Any) -> None:
    line = make("again")
    assert id_of(line.create()) == id_of(line.create())
    assert len(line.schedules.list("again")) == 1
    with pytest.raises(ConfigError, match=r"cron: TZ=Europe/Berlin 0 6 \* \* 1 there, TZ=Europe/Berlin 0 7"):
        make("again", cron="0 7 * * 1").create()


def test_each_kind_of_drift_is_told_and_mended_by_one_update(make: Any, tiny_spec: dict[str, Any]) -> None:
    make("drift").create()
    spec = {**tiny_spec, "pipelineInfo": {"name": "tiny", "description": "changed"}}
    line = make("drift", spec, cron="0 7 * * 1", end="2031-01-01T00:00:00Z", queue=True)
    compiled = replace(line.prepared.compiled, parameters={**line.prepared.compiled.parameters, "strategy": "STANDARD"})
    line.prepared = replace(line.prepared, compiled=compiled)
    before = id_of(line.find())
    assert line.drift() == ["cron", "end", "queue", "pipeline spec (sha256)", "parameter strategy"]
    assert line.update() == "updated"
    assert line.drift() == []
    assert id_of(line.find()) == before
    assert line.update() == "unchanged"


def test_an_end_that_is_taken_back_recreates_it(make: Any) -> None:
    make("endless", end="2031-01-01T00:00:00Z").create()
    line = make("endless")
    before = id_of(line.find())
    assert line.drift() == ["end"]
    assert line.update() == "recreated"
    assert line.drift() == []
    assert id_of(line.find()) != before
    assert len(line.schedules.list("endless")) == 1


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


def test_two_schedules_of_a_line_are_named(make: Any) -> None:
    line = make("twice")
    first = line.create()
    line.schedules._create(line.prepared, line.times)
    with pytest.raises(ConfigError, match=f"2 schedules are called twice.*{id_of(first)}"):
        line.find()
    assert id_of(line.schedules.find(line.config, id_of(first))) == id_of(first)


def test_a_cron_that_the_service_refuses_is_a_users_error(make: Any) -> None:
    with pytest.raises(ConfigError, match="refused"):
        make("wrong", cron="61 6 * * 1").create()


def test_a_line_without_a_cron_is_not_scheduled(make: Any) -> None:
    config = RunConfig.model_validate({"run": {"name": "never"}})
    (problem,) = find_asked_problems(config, Asked(scheduled=True))
    assert problem.given == "schedule.cron is not set"


def test_the_runs_that_it_started_are_shown(make: Any, cloud: Cloud) -> None:
    line = make("fires", cron="* * * * *", time_zone="Etc/UTC")
    line.create()
    cloud.clock.advance(61)
    deadline = time.monotonic() + 120
    while not (runs := line.schedules.runs(line.find())):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert runs[0].display_name == "fires"
    assert int(dict(describe(line.find()))["runs started"]) >= 1
    line.schedules.delete(line.find())


@pytest.mark.parametrize(
    ("message", "recreated"),
    [("Update mask holds createPipelineJobRequest, which is immutable.", True), ("cron: no such time zone", False)],
)
def test_a_service_that_does_not_replace_the_spec_gets_a_new_schedule(
    make: Any, tiny_spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, message: str, recreated: bool
) -> None:
    """The local Vertex replaces it; whether the real one does is not known."""
    name = f"refused-{recreated}".lower()
    make(name).create()
    line = make(name, {**tiny_spec, "pipelineInfo": {"name": "tiny", "description": "changed"}})

    def refuse(**request: Any) -> None:
        raise InvalidArgument(message)

    monkeypatch.setattr(line.schedules._client, "update_schedule", refuse)
    before = id_of(line.find())
    if recreated:
        assert line.update() == "recreated"
        assert id_of(line.find()) != before and line.drift() == []
        return
    with pytest.raises(ConfigError, match="no such time zone"):
        line.update()
    assert id_of(line.find()) == before


def test_a_paused_schedule_that_is_recreated_stays_paused(make: Any) -> None:
    make("asleep", end="2031-01-01T00:00:00Z").create()
    line = make("asleep")
    line.schedules.pause(line.find())
    assert line.update() == "recreated"
    assert line.find().state.name == "PAUSED" and line.drift() == []


def test_a_schedule_whose_successor_is_refused_goes_on(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make("kept", end="2031-01-01T00:00:00Z").create()
    line = make("kept")
    before = id_of(line.find())

    def refuse(**request: Any) -> None:
        raise InvalidArgument("no")

    monkeypatch.setattr(line.schedules._client, "create_schedule", refuse)
    with pytest.raises(ConfigError, match="refused"):
        line.update()
    assert (id_of(line.find()), line.find().state.name) == (before, "ACTIVE")
    monkeypatch.setattr(line.schedules._client, "resume_schedule", refuse)
    with pytest.raises(TryAgain, match=f"schedule {before} is paused now"):
        line.update()
    assert line.find().state.name == "PAUSED"


def test_what_a_killed_update_left_is_removed_by_the_next(make: Any) -> None:
    line = make("killed")
    old = line.create()
    line.schedules.pause(old)
    made = line.schedules._create(line.prepared, line.times)
    found = line.schedules.find_to_update(line.prepared, line.times)
    assert (id_of(found), len(line.schedules.list("killed"))) == (id_of(made), 1)
    # Two that fire are nobody's leftovers.
    line.schedules._create(line.prepared, line.times)
    with pytest.raises(ConfigError, match="2 schedules are called killed"):
        line.schedules.find_to_update(line.prepared, line.times)


def test_an_update_names_what_has_drifted_alone(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make("masked").create()
    line = make("masked", cron="0 7 * * 1", queue=True)
    asked: list[Any] = []
    update = line.schedules._client.update_schedule

    def listen(**request: Any) -> Any:
        asked.append(request["update_mask"]["paths"])
        return update(**request)

    monkeypatch.setattr(line.schedules._client, "update_schedule", listen)
    assert line.update() == "updated" and line.drift() == []
    assert asked == [["allow_queueing", "cron"]]


def test_a_deletion_that_takes_too_long_is_try_again(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    line = make("slow")
    line.create()

    class Operation:
        def result(self, timeout: float) -> None:
            raise TimeoutError

    monkeypatch.setattr(line.schedules._client, "delete_schedule", lambda **request: Operation())
    with pytest.raises(TryAgain, match="not deleted yet"):
        line.schedules.delete(line.find())
