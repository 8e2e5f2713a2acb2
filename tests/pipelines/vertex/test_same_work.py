"""Two submissions of the same work, through the commands and the service."""

import concurrent.futures
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts import storage
from contracts.resolve import load_config
from pipelines.google import pipeline_client
from pipelines.graph.compile import CompiledLine
from pipelines.submission.same_work import adopt, work_of
from pipelines.submission.submit import prepare, publish
from tests.pipelines.vertex.conftest import NUMBER, REGION, Cloud, compiled_line
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
