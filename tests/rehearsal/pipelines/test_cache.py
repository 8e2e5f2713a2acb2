"""Execution caching: what a run takes from an earlier one, and what it does not."""

# No `from __future__ import annotations` here: kfp reads the types of parameters from the functions.

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from rehearsal.cloud import LocalCloud
from rehearsal.pipelines.containers import Containers
from rehearsal.pipelines.job import Job
from rehearsal.pipelines.tasks import Call, Tasks
from rehearsal.pipelines.values import Data
from tests.rehearsal import graphs
from tests.rehearsal.world import detail, make_place, run, states, texts


def run_task(folder: Path, cache: dict[str, Data], change: Callable[[dict[str, Any]], object]) -> str:
    """Run a task of a pipeline, after a change, and return its state."""
    parts: dict[str, Any] = {
        "pipeline": "line",
        "task": {"cachingOptions": {"enableCache": True}},
        "outputs": {"parameters": {"out": {"parameterType": "STRING"}}},
        "container": {"image": "i", "command": ["c"], "args": ["a"], "env": [{"name": "N", "value": "v"}]},
        "parameters": {"x": 1},
        "artifacts": {"made": {"name": "artifacts/1", "uri": "gs://b/1", "metadata": {}, "type": {}}},
    }
    change(parts)
    spec = {
        "pipelineInfo": {"name": parts["pipeline"]},
        "deploymentSpec": {"executors": {"e": {"container": parts["container"]}}},
    }
    job = Job("projects/1/locations/l/pipelineJobs/run", "acme", "gs://line/root", spec, {}, "", "")
    component = {"executorLabel": "e", "outputDefinitions": parts["outputs"]}
    call = Call(("task",), parts["task"], component, Data(parts["parameters"], parts["artifacts"]), frozenset())
    containers = Containers(job, make_place(folder), lambda *_: None)
    containers.run = lambda *_: None  # type: ignore[method-assign]
    return Tasks(job, containers, cache).run(call, lambda: None)[0]


# https://cloud.google.com/vertex-ai/docs/pipelines/configure-caching: what a step's interface is.
@pytest.mark.parametrize(
    ("change", "state"),
    [
        (lambda parts: None, "SKIPPED"),
        (lambda parts: parts["task"].update(cachingOptions={}), "SUCCEEDED"),
        (lambda parts: parts["parameters"].update(x=2), "SUCCEEDED"),
        (lambda parts: parts["artifacts"]["made"].update(name="artifacts/2"), "SUCCEEDED"),
        (lambda parts: parts["container"].update(image="j"), "SUCCEEDED"),
    ],
)
def test_an_interface_has_one_key(tmp_path: Path, change: Any, state: str) -> None:
    cache: dict[str, Data] = {}
    assert run_task(tmp_path, cache, lambda parts: None) == "SUCCEEDED"
    assert run_task(tmp_path, cache, change) == state


@dsl.container_component  # type: ignore[untyped-decorator]
def told(words: str, made: dsl.Output[dsl.Artifact]) -> dsl.ContainerSpec:
    return dsl.ContainerSpec(image="python", command=["true"], args=[words])


@dsl.pipeline(name="wrapped")  # type: ignore[untyped-decorator]
def wrapped(text: str) -> None:
    """As a job's worker pools: a parameter holds the executor input."""
    wrapping = told(words='{"words": "{{$.json_escape[1]}}"}')
    graphs.read_text(made=graphs.make_text(text=text).outputs["made"])
    told(words="never").set_caching_options(False).after(wrapping)


def test_a_second_run_takes_the_outputs_of_the_first(local_cloud: LocalCloud) -> None:
    first, again = (run(local_cloud, wrapped, text="a text") for _ in range(2))
    assert set(states(first).values()) == {"SUCCEEDED"}, texts(local_cloud.logs)
    found = {"": "SUCCEEDED", "told": "SKIPPED", "make-text": "SKIPPED", "read-text": "SKIPPED", "told-2": "SUCCEEDED"}
    assert states(again) == found
    skipped = detail(again, "make-text")
    assert [one.state.name for one in skipped.pipeline_task_status] == ["PENDING", "SKIPPED"]
    assert not skipped.executor_detail.container_detail.main_job
    made, taken = (detail(job, "make-text").outputs["made"].artifacts[0] for job in (first, again))
    assert (taken.name, taken.uri) == (made.name, made.uri)
    # Another input of the first task is another artifact for the second.
    other = states(run(local_cloud, wrapped, text="another"))
    assert (other["told"], other["make-text"], other["read-text"]) == ("SKIPPED", "SUCCEEDED", "SUCCEEDED")
