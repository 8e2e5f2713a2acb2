"""Two submissions of the same work, through the commands and the service."""

import concurrent.futures
import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

import pipelines.submission.ladder
from contracts import storage
from contracts.resolve import load_config
from pipelines.google import pipeline_client
from pipelines.graph.compile import CompiledLine
from pipelines.runs.name import RunName
from pipelines.submission.same_work import adopt, work_of
from pipelines.submission.submit import prepare, publish
from rehearsal.doors.errors import ServiceError
from tests.pipelines.vertex.conftest import NUMBER, PROJECT, REGION, STOCKOUT, Cloud, compiled_line
from tests.pipelines.vertex.test_commands import CONFIG, _quick, shardline
from tests.pipelines.vertex.test_follow import wait_for

__all__ = ["_quick"]
LINE = "gs://bucket-1/runs/line"


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "line.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return str(path)


@pytest.fixture(autouse=True)
def _goes_on(cloud: Cloud) -> None:
    cloud.pipelines.script.outcomes["us-central1"] = "running"


def end(cloud: Cloud, run_id: str) -> None:
    cloud.pipelines.cancel(f"projects/{NUMBER}/locations/{REGION}/pipelineJobs/{run_id}")


def test_the_second_submission_adopts_the_first(cloud: Cloud, config: str) -> None:
    first = shardline("submit", config).stdout.strip()
    before = len(cloud.pipelines.started)
    second = shardline("submit", config)
    assert second.stdout.strip() == first and "does this work already" in second.stderr
    assert len(cloud.pipelines.started) == before
    end(cloud, first.rpartition("/")[2])
    third = shardline("submit", config).stdout.strip()
    assert third != first, "what has ended is no obstacle"
    end(cloud, third.rpartition("/")[2])


def test_a_run_that_is_not_the_same_is_named(cloud: Cloud, config: str) -> None:
    first = shardline("submit", config).stdout.strip().rpartition("/")[2]
    # Other machines, the same weights: the same training folder.
    said = shardline("submit", config, "resources.nodes=2", code=75).stderr
    assert f"run {first} does the same work in this line" in said and "pipeline spec" in said
    assert f"run {first} does the same work" in shardline("submit", config, "--run-id", "mine-1", code=75).stderr
    other = shardline("submit", config, "train.learning_rate=0.5").stdout.strip().rpartition("/")[2]
    assert other != first, "other weights, another folder"
    end(cloud, first)
    end(cloud, other)


def test_a_run_of_a_schedule_is_the_first_too(cloud: Cloud, config: str) -> None:
    shardline("schedule", "create", config)
    known = len(cloud.pipelines.started)
    cloud.clock.advance(8 * 86400)
    wait_for(lambda: len(cloud.pipelines.started) > known)
    run = cloud.pipelines.started[known].rpartition("/")[2]
    second = shardline("submit", config)
    assert second.stdout.strip().rpartition("/")[2] == run
    shardline("schedule", "delete", config)
    end(cloud, run)


def test_a_later_rung_is_the_run_that_is_there(cloud: Cloud, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    follow = pipelines.submission.ladder.follow

    def interrupted(client: Any, name: RunName, *arguments: Any, **options: Any) -> Any:
        if name.id.endswith("-r2"):
            raise KeyboardInterrupt
        return follow(client, name, *arguments, **options)

    monkeypatch.setattr(pipelines.submission.ladder, "follow", interrupted)
    cloud.pipelines.script.outcomes.update({"us-central1": STOCKOUT, "us-east4": "running"})
    shardline("submit", config, "--wait", "--run-id", "climbed-1", code=130)
    for given in ([], ["--run-id", "climbed-1"]):
        again = shardline("submit", config, *given)
        assert again.stdout.strip().endswith("/climbed-1-r2") and "run climbed-1-r2 exists: running" in again.stderr
        assert "only the first" not in again.stderr
    # With another ladder it is another run.
    said = shardline("submit", config, "resources.ladder=[{strategy: SPOT}]", code=75).stderr
    assert "run climbed-1-r2 does the same work" in said
    end(cloud, "climbed-1-r2")


def test_a_claim_of_another_region_is_looked_up_there(cloud: Cloud, config: str) -> None:
    there = "projects/{}/locations/{}/pipelineJobs/{}"
    cloud.pipelines.script.outcomes["us-east4"] = "running"
    only = "resources.ladder=[]"
    shardline("submit", config, "cloud.region=us-east4", only, "--run-id", "east-1")
    said = shardline("submit", config, only, code=75).stderr
    assert "run east-1 does the same work in this line (running)" in said
    assert f"shardline status {there.format(PROJECT, 'us-east4', 'east-1')}" in said
    # An id is of a region: the same one here would be a second run.
    assert "run east-1 does the same" in shardline("submit", config, only, "--run-id", "east-1", code=75).stderr
    cloud.pipelines.cancel(there.format(NUMBER, "us-east4", "east-1"))
    run_id = shardline("submit", config, only).stdout.strip().rpartition("/")[2]
    end(cloud, run_id)


def test_a_submission_that_was_killed_before_its_job_can_be_gone_on_with(cloud: Cloud, config: str) -> None:
    folder = f"{LINE}/submissions/{work_of(load_config(Path(config)))}"
    now = datetime.now(UTC)
    claim = {"run_id": "killed-1", "project": PROJECT, "region": REGION, "at": now.isoformat(timespec="seconds")}
    storage.publish(f"{folder}/000900.json", json.dumps(claim).encode())
    said = shardline("submit", config, "--run-id", "mine-2", code=75).stderr
    until = (now + timedelta(minutes=15)).strftime("%H:%M")
    assert "run killed-1" in said and "is not there" in said and f"after {until} UTC" in said
    advice = next(line for line in said.splitlines() if "to do:" in line)
    words = advice.partition("`shardline ")[2].partition("`")[0].replace("CONFIG", config).split()
    assert shardline(*words).stdout.strip().endswith("/killed-1")
    end(cloud, "killed-1")


def test_a_refused_submission_keeps_nobody_waiting(cloud: Cloud, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ServiceError("PERMISSION_DENIED", "Permission 'aiplatform.pipelineJobs.create' denied on resource")

    with monkeypatch.context() as context:
        context.setattr(cloud.store, "add", refuse)
        said = shardline("submit", config, "--run-id", "refused-1", code=2).stderr
    assert "aiplatform.pipelineJobs.create" in said
    assert shardline("submit", config, "--run-id", "second-2").stdout.strip().endswith("/second-2")
    # A run that is there, and differs, keeps its claim.
    assert "differs" in shardline("submit", config, "vertex.failure_policy=fast", "--run-id", "second-2", code=2).stderr
    assert shardline("submit", config).stdout.strip().endswith("/second-2")
    end(cloud, "second-2")


def test_of_submissions_at_one_moment_one_makes_the_run(
    cloud: Cloud, config: str, tiny_spec: dict[str, Any], tmp_path: Path
) -> None:
    resolved = load_config(Path(config))
    document = json.dumps(resolved.model_dump(mode="json")).encode()
    uri = f"{LINE}/configs/at-once.json"
    line = compiled_line(resolved, tiny_spec)
    compiled = CompiledLine(
        line.spec,
        {**line.parameters, "line": LINE, "run_config": uri},
        {uri: document},
        line.display_name,
        line.pipeline_root,
        line.labels,
    )
    publish(compiled.documents)
    ready = threading.Barrier(4)

    def one(number: int) -> str:
        client = pipeline_client(REGION)
        ready.wait(60)
        made = adopt(client, prepare(resolved, compiled, run_id=f"at-once-{number}"), own_id=False)
        return made.prepared.run_id

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        run_ids = set(pool.map(one, range(4)))
    assert len(run_ids) == 1
    folder = f"{LINE}/submissions/{work_of(resolved)}"
    newest = sorted(storage.list_names(folder))[-1]
    assert json.loads(storage.read_bytes(f"{folder}/{newest}"))["run_id"] in run_ids
