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
from tests.rehearsal.execution import graphs
from tests.rehearsal.execution.world import Pipelines, detail, states

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


@dsl.container_component  # type: ignore[untyped-decorator]
def told(words: str, made: dsl.Output[dsl.Artifact]) -> dsl.ContainerSpec:
    return dsl.ContainerSpec(image="python", command=["true"], args=[words])


@dsl.pipeline(name="wrapped")  # type: ignore[untyped-decorator]
def wrapped(text: str) -> None:
    """As a job's worker pools: a parameter holds the executor input."""
    wrapping = told(words='{"words": "{{$.json_escape[1]}}"}')
    graphs.read_text(made=graphs.make_text(text=text).outputs["made"])
    told(words="never").set_caching_options(False).after(wrapping)


def test_a_second_run_takes_the_outputs_of_the_first(pipelines: Pipelines) -> None:
    first, again = (pipelines.run(wrapped, run=run, text="a text") for run in ("first", "again"))
    assert set(states(first).values()) == {"SUCCEEDED"}, pipelines.orchestrator_log("first")
    found = {"": "SUCCEEDED", "told": "SKIPPED", "make-text": "SKIPPED", "read-text": "SKIPPED", "told-2": "SUCCEEDED"}
    assert states(again) == found
    skipped = detail(again, "make-text")
    assert [one.state.name for one in skipped.pipeline_task_status] == ["PENDING", "SKIPPED"]
    assert skipped.execution.state.name == "CACHED"
    assert not skipped.executor_detail.container_detail.main_job
    made, taken = (detail(job, "make-text").outputs["made"].artifacts[0] for job in (first, again))
    assert (taken.name, taken.uri) == (made.name, made.uri)
    # Another input of the first task is another artifact for the second.
    other = states(pipelines.run(wrapped, run="other", text="another"))
    assert (other["told"], other["make-text"], other["read-text"]) == ("SKIPPED", "SUCCEEDED", "SUCCEEDED")
