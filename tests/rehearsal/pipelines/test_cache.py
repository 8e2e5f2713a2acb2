"""Execution caching: what a run takes from an earlier one, and what it does not."""

# No `from __future__ import annotations` here: kfp reads the types of parameters from the functions.

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from rehearsal.pipelines.cache import Cache
from rehearsal.pipelines.job import Job
from rehearsal.pipelines.task import Call
from rehearsal.pipelines.values import Data
from tests.rehearsal.execution.world import Pipelines, detail, states
from tests.rehearsal.pipelines import programs_values as values

EXECUTOR = {"container": {"image": "i", "command": ["c"], "args": ["a"], "env": [{"name": "N", "value": "v"}]}}
ARTIFACT = {"name": "artifacts/1", "uri": "gs://b/1", "metadata": {}, "type": {}}


def key_of(
    folder: Path,
    change: Callable[[dict[str, Any]], object] = lambda parts: None,
) -> str:
    """The key of a task, after a change."""
    parts: dict[str, Any] = {
        "pipeline": "line",
        "task": {"componentRef": {"name": "comp-c"}, "cachingOptions": {"enableCache": True}},
        "component": {"outputDefinitions": {"parameters": {"out": {"parameterType": "STRING"}}}},
        "executor": copy.deepcopy(EXECUTOR),
        "inputs": {"parameterValues": {"x": 1}, "artifacts": {"made": {"artifacts": [dict(ARTIFACT)]}}},
        "number": "1",
        "location": "l",
    }
    change(parts)
    job = Job(
        name="projects/1/locations/l/pipelineJobs/run",
        uuid="1",
        project="acme",
        project_number=parts["number"],
        location=parts["location"],
        pipeline_root="gs://line/root",
        spec={},
        parameters={},
        create_time="",
        schedule_time="",
        cache_folder=str(folder),
    )
    call = Call(("task",), parts["task"], parts["component"], Data(), frozenset())
    cache = Cache(job, {"pipelineInfo": {"name": parts["pipeline"]}})
    return cache.key(call, parts["executor"], parts["inputs"])


# https://cloud.google.com/vertex-ai/docs/pipelines/configure-caching: what a step's interface is.
@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts.update(pipeline="another"),
        lambda parts: parts["inputs"]["parameterValues"].update(x=2),
        lambda parts: parts["inputs"]["artifacts"]["made"]["artifacts"][0].update(name="artifacts/2"),
        lambda parts: parts["component"]["outputDefinitions"]["parameters"].update(more={}),
        lambda parts: parts["executor"]["container"].update(image="j"),
    ],
)
def test_another_interface_has_another_key(tmp_path: Path, change: Any) -> None:
    assert len({key_of(tmp_path), key_of(tmp_path, change)}) == 2


def test_what_is_no_part_of_the_interface(tmp_path: Path) -> None:
    assert key_of(tmp_path) == key_of(tmp_path, lambda parts: parts["task"].update(taskInfo={"name": "shown"}))
    assert key_of(tmp_path) == key_of(tmp_path, lambda parts: parts["executor"]["container"].update(resources={"a": 1}))


def test_a_key_of_the_users_is_all_that_counts(tmp_path: Path) -> None:
    def own(parts: dict[str, Any]) -> None:
        parts["task"]["cachingOptions"]["cacheKey"] = "mine"

    def own_and_more(parts: dict[str, Any]) -> None:
        own(parts)
        parts["inputs"]["parameterValues"]["x"] = 2

    assert key_of(tmp_path, own) == key_of(tmp_path, own_and_more) != key_of(tmp_path)


def test_a_second_run_takes_the_outputs_of_the_first(pipelines: Pipelines) -> None:
    first = pipelines.run(values.outer, run="first")
    again = pipelines.run(values.outer, run="again")
    assert set(states(first).values()) == {"SUCCEEDED"}
    assert states(again) == {
        "": "SUCCEEDED",
        "returns": "SUCCEEDED",
        "returns.make-text": "SKIPPED",
        "returns.write": "SKIPPED",
        "read-text": "SKIPPED",
    }
    skipped = detail(again, "returns.make-text")
    assert [one.state.name for one in skipped.pipeline_task_status] == ["PENDING", "SKIPPED"]
    assert skipped.execution.state.name == "CACHED"
    assert not skipped.executor_detail.container_detail.main_job
    made, found = (detail(job, "returns.make-text").outputs["made"].artifacts[0] for job in (first, again))
    assert (found.name, found.uri) == (made.name, made.uri)


@dsl.container_component  # type: ignore[untyped-decorator]
def told(words: str, made: dsl.Output[dsl.Artifact]) -> dsl.ContainerSpec:
    return dsl.ContainerSpec(image="python", command=["true"], args=[words, made.path])


@dsl.pipeline(name="wrapped")  # type: ignore[untyped-decorator]
def wrapped() -> None:
    """As a job's worker pools: a parameter holds the executor input."""
    told(words='{"words": "{{$.json_escape[1]}}"}')


def test_a_parameter_that_holds_the_executor_input_is_found_again(pipelines: Pipelines) -> None:
    assert states(pipelines.run(wrapped, run="first"))["told"] == "SUCCEEDED"
    assert states(pipelines.run(wrapped, run="again"))["told"] == "SKIPPED"


def test_what_wants_no_cache_runs(pipelines: Pipelines) -> None:
    for run in ("first", "again"):
        job = pipelines.run(values.uncached, run=run)
        assert states(job) == {"": "FAILED", "say": "SUCCEEDED", "fail": "FAILED"}
