import json
from pathlib import Path

import pytest

from contracts import storage
from contracts.errors import ConfigError
from pipelines.runs.name import RunName, find_run
from tests.pipelines.vertex.conftest import MakeConfig

FOUND = RunName("p", "us-east4", "tiny-1")


def test_a_full_name_says_all() -> None:
    assert find_run("projects/p/locations/us-east4/pipelineJobs/tiny-1").name == FOUND


def test_an_id_needs_a_configuration_or_both_options(make_config: MakeConfig) -> None:
    assert find_run("tiny-1", project="p", region="us-east4").name == FOUND
    config = make_config(cloud={"project": "p", "region": "us-east4"})
    assert find_run("tiny-1", config=config).name == FOUND
    assert find_run("tiny-1", config=config, region="us-west1").name.region == "us-west1"
    with pytest.raises(ConfigError, match="the project and the region"):
        find_run("tiny-1")
    with pytest.raises(ConfigError, match="the region of"):
        find_run("tiny-1", project="p")


def test_a_folder_says_it_by_its_start_document(tmp_path: Path, make_config: MakeConfig) -> None:
    root = storage.normalise(tmp_path)
    for run_id, started_at in (("tiny-2", "2026-01-01T00:00:00Z"), ("tiny-1", "2026-01-02T00:00:00Z")):
        start = {"id": run_id, "started_at": started_at, "config": {"cloud": {"project": "p", "region": "us-east4"}}}
        storage.publish(f"{root}/line-a/runs/{run_id}/run-start.json", json.dumps(start).encode())
    assert find_run(f"{root}/line-a/runs/tiny-1").name == FOUND
    assert find_run(f"{root}/line-a").name == FOUND
    assert find_run(f"{root}/line-a:latest").name == FOUND
    config = make_config(run={"name": "line-a", "root": root}, cloud={"project": "p", "region": "us-east4"})
    assert find_run("line-a:latest", config=config).name == FOUND
    with pytest.raises(ConfigError, match="is no run"):
        find_run(f"{root}/line-b")
