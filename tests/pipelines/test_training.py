"""The graph: one function wires the stages of both places; the local one is run by tests/pipelines/test_local.py."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler

from contracts.config import STAGES
from pipelines.graph.wiring import training

EDGES = {
    ("shard", "profile", "shards"),
    ("shard", "train", "shards"),
    ("shard", "export", "shards"),
    ("profile", "train", "profile"),
    ("train", "export", "checkpoint"),
}


def stage_edges(tasks: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Return producer, consumer and parameter of each value that passes between stages."""
    return {
        (value["taskOutputParameter"]["producerTask"], name, parameter)
        for name, task in tasks.items()
        if name in STAGES
        for parameter, value in task["inputs"]["parameters"].items()
        if value.get("taskOutputParameter", {}).get("producerTask") in STAGES
    }


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("spec") / "training.yaml"
    compiler.Compiler().compile(training, str(path))
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    return content


def test_the_local_graph_has_a_task_for_each_stage_wired_by_outputs(spec: dict[str, Any]) -> None:
    tasks = spec["root"]["dag"]["tasks"]
    assert sorted(tasks) == sorted(STAGES)
    assert stage_edges(tasks) == EDGES


def test_each_task_gets_its_own_sections(spec: dict[str, Any]) -> None:
    for name, task in spec["root"]["dag"]["tasks"].items():
        assert task["inputs"]["parameters"]["config"]["componentInputParameter"] == f"{name}_config"


def test_stages_take_and_return_strings_only(spec: dict[str, Any]) -> None:
    for component in spec["components"].values():
        assert {value["parameterType"] for value in component["inputDefinitions"]["parameters"].values()} == {"STRING"}
        assert component["outputDefinitions"]["parameters"]["Output"]["parameterType"] == "STRING"


def test_local_executors_install_nothing(spec: dict[str, Any]) -> None:
    for executor in spec["deploymentSpec"]["executors"].values():
        # kfp.local refuses to be quiet about an image without "python" in its name.
        assert "python" in executor["container"]["image"]
        assert "pip install" not in yaml.safe_dump(executor)
