"""Small pipelines of each shape that kfp compiles, executed: the verdict of each, and what its tasks were given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.gcs import BucketServer
from tests.rehearsal.execution import graphs
from tests.rehearsal.execution.world import Pipelines, detail, states
from tests.rehearsal.pipelines import programs_control as control
from tests.rehearsal.pipelines import programs_values as values


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def programs(folder: Path, bucket: BucketServer) -> Iterator[Pipelines]:
    made = Pipelines(folder, bucket)
    yield made
    made.runs.close()
    assert made.runs.failures == []


def said(job: Any) -> dict[str, Any]:
    """What the tasks that say something were given, by the end of their names."""
    found = {}
    for one in job.job_detail.task_details:
        metadata = one.execution.metadata or {}
        for output in ("output:heard", "output:Output"):
            if output in metadata:
                value = metadata[output]
                found[one.task_unique_name] = json.loads(value) if output == "output:heard" else value
    return found


def words(job: Any) -> list[str]:
    """The first word of each task that says something, in the order of their names."""
    return [value[0] for name, value in sorted(said(job).items()) if isinstance(value, list)]


def errors(job: Any) -> list[str]:
    """What the errors of the run and its tasks say."""
    return [job.error.message, *(one.error.message for one in job.job_detail.task_details if one.error.message)]


COLLECTED = json.dumps([['["a1"]', '["a2"]'], ['["b1"]', '["b2"]']])
# Pipeline, parameters, what its tasks say in order of their names.
SUCCEED: list[tuple[Any, dict[str, Any], list[str]]] = [
    (control.branches, {"value": "a"}, ["a"]),
    (control.branches, {"value": "c"}, ["else"]),
    (control.inner_branches, {"first": 2, "second": 0.5}, ["both"]),
    (control.inner_branches, {"first": 2, "second": 1.0}, ["first"]),
    (control.static_loop, {}, ["x", 'y "z"']),
    (control.parameter_loop, {"items": ["1", "two", "{{$.no_placeholder}}"]}, ["1", "two", "{{$.no_placeholder}}"]),
    (control.parameter_loop, {"items": []}, []),
    (control.named_loop, {"content": '["a", "b"]'}, ["word a", "word b"]),
    (control.collected, {"items": ["b", "a", "c"]}, ['["b", "a", "c"]']),
    (control.collected_twice, {}, ["a1", "a2", "b1", "b2", COLLECTED]),
    (values.defaults, {"text": "given"}, ["--text", "--no-text"]),
    (values.nested_optional, {}, ["given too", "--text", "default", "--no-text"]),
    (values.environment, {}, ["1 and 'one'"]),
    (values.outer, {}, ["from inside"]),
    (values.one_of_artifacts, {"value": "b"}, ["from another"]),
]


def name_of(value: Any) -> str:
    return str(getattr(value, "name", "")) if not isinstance(value, dict | list) else ""


@pytest.mark.parametrize(("pipeline", "parameters", "expected"), SUCCEED, ids=name_of)
def test_what_succeeds(
    programs: Pipelines, request: pytest.FixtureRequest, pipeline: Any, parameters: dict[str, Any], expected: list[str]
) -> None:
    job = programs.run(pipeline, run=f"s{SUCCEED.index((pipeline, parameters, expected))}", **parameters)
    assert set(states(job).values()) <= {"SUCCEEDED", "SKIPPED", "NOT_TRIGGERED"}, errors(job)
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED"
    assert words(job) == expected


# Pipeline, parameters, what the error of the run or of one of its tasks says.
FAIL: list[tuple[Any, dict[str, Any], str]] = [
    (control.named_loop, {"content": "no json"}, "output words is 'no json', and its component declares LIST"),
    (control.lost_item, {}, "which the DAG does not declare"),
    (control.unwritten, {}, "output out of task fail-to-write was not written"),
    (values.wrong_output, {"content": "1.5"}, "output kind is '1.5'"),
    (values.from_oci, {"uri": "oci://registry/model"}, "oci:// are for Kubernetes"),
    (values.constant_oci, {}, "oci:// is for Kubernetes"),
    (values.absent, {}, "it installs no-such-package==1.0, which is not installed here"),
    (values.entrypoint, {}, f"the own command of image {graphs.IMAGE}"),
]


@pytest.mark.parametrize(("pipeline", "parameters", "expected"), FAIL, ids=name_of)
def test_what_fails(programs: Pipelines, pipeline: Any, parameters: dict[str, Any], expected: str) -> None:
    job = programs.run(pipeline, run=f"f{FAIL.index((pipeline, parameters, expected))}", **parameters)
    assert job.state.name == "PIPELINE_STATE_FAILED"
    assert any(expected in error for error in errors(job)), errors(job)
    assert "orchestrator" not in job.error.message


def test_what_nothing_orders_runs_side_by_side(programs: Pipelines, folder: Path) -> None:
    job = programs.run(control.siblings, run="siblings", folder=str(folder / "meeting"))
    assert set(states(job).values()) == {"SUCCEEDED"}, programs.logs.texts()


def test_a_task_after_a_closed_gate_is_not_triggered(programs: Pipelines) -> None:
    def order(spec: Any) -> None:
        for name in ("say-2", "say-3"):
            spec.root.dag.tasks[name].dependent_tasks.append("condition-1")
        spec.root.dag.tasks["say-3"].trigger_policy.strategy = 2

    job = programs.run(edited(control.gated, order), run="closed", value="shut")
    assert states(job) == {
        "": "SUCCEEDED",
        "condition-1": "NOT_TRIGGERED",
        "say-2": "NOT_TRIGGERED",
        "say-3": "SUCCEEDED",
    }
    assert words(job) == ["anyway"]


def test_an_iteration_that_fails_fails_its_loop_alone(programs: Pipelines) -> None:
    job = programs.run(control.failing_iteration, run="failing-iteration")
    found = states(job)
    assert found["for-loop-2.for-loop-2-iteration-0"] == "SUCCEEDED"
    assert found["for-loop-2.for-loop-2-iteration-1"] == found["for-loop-2"] == found[""] == "FAILED"
    assert found["write"] == "SUCCEEDED"
    assert "iterations of the loop failed or were not begun: 1" in detail(job, "for-loop-2").error.message


def test_each_exit_handler_has_a_status_of_its_own(programs: Pipelines) -> None:
    job = programs.run(control.two_handlers, run="two-handlers")
    found = {status["pipelineTaskName"]: status for status in said(job).values()}
    assert found["exit-handler-1"]["state"] == "SUCCEEDED" and found["exit-handler-1"]["error"] == {}
    assert found["exit-handler-2"]["state"] == "FAILED" and found["exit-handler-2"]["error"]["code"] == 9


def test_retries_end(programs: Pipelines, folder: Path) -> None:
    job = programs.run(control.tired, run="tired", marker=str(folder / "tired once"))
    assert states(job) == {"": "FAILED", "flaky": "SUCCEEDED", "fail": "FAILED"}
    attempts = {name: detail(job, name).executor_detail.container_detail for name in ("flaky", "fail")}
    assert {name: len(one.failed_main_jobs) for name, one in attempts.items()} == {"flaky": 1, "fail": 2}
    # In the order in which they were entered.
    entered = [one.state.name for one in detail(job, "flaky").pipeline_task_status]
    assert entered == ["PENDING", "RUNNING", "RUNNING", "SUCCEEDED"]


def test_values_keep_their_types(programs: Pipelines) -> None:
    given = {"text": "1", "number": 3, "real": 2.0, "flag": True, "items": [1, 2.5, "x"], "struct": {"a": [1.0, None]}}
    job = programs.run(values.types, run="types", **given)
    assert set(states(job).values()) == {"SUCCEEDED"}, programs.logs.texts()
    told = json.loads(said(job)["say"][2])
    assert told == {name: value for name, value in given.items() if name != "real"}


def test_lists_of_artifacts(programs: Pipelines) -> None:
    job = programs.run(values.collected_artifacts, run="collected-artifacts")
    assert said(job)["join-texts"] == "a,b,c", programs.logs.texts()
    inputs = {artifact.name for artifact in detail(job, "join-texts").inputs["parts"].artifacts}
    made = {
        artifact.name
        for one in job.job_detail.task_details
        if one.task_name == "make-text"
        for artifact in one.outputs["made"].artifacts
    }
    assert inputs == made and len(made) == 3


def test_an_artifact_that_nobody_must_give(programs: Pipelines) -> None:
    job = programs.run(values.optional_artifact, run="optional-artifact")
    assert {name: text for name, text in said(job).items() if "maybe" in name} == {
        "maybe-artifact": "none",
        "maybe-artifact-2": "given",
    }


def test_artifacts_at_paths_and_uris_of_their_own(programs: Pipelines) -> None:
    uri = "gs://line/elsewhere/data.txt"
    job = programs.run(values.paths, run="paths", uri=uri)
    assert words(job) == ["from elsewhere", "at a place of its own"], programs.logs.texts()
    assert said(job)["read-part"] == "in a folder"
    (made,) = detail(job, "custom-uri").outputs["made"].artifacts
    assert (made.uri, made.metadata["rows"], made.schema_title) == (uri, 3, "system.Dataset")
    (copied,) = detail(job, "custom-path").outputs["made"].artifacts
    assert copied.uri.startswith("gs://line/programs")


def test_what_is_installed_is_not_installed_again(programs: Pipelines) -> None:
    spec = json.dumps(
        values.installed.pipeline_spec.deployment_spec.fields["executors"]
        .struct_value.fields["exec-installs"]
        .struct_value.fields["container"]
        .struct_value.fields["command"]
        .list_value.values[2]
        .string_value
    )
    assert "pip install" in spec
    job = programs.run(values.installed, run="installed")
    assert said(job) == {"installs": "with pydantic", "installs-apart": "without a venv"}, programs.logs.texts()
    assert not any("pip" in line for line in programs.logs.texts(pipeline_job_id="installed"))


def edited(pipeline: Any, change: Any) -> Any:
    """A pipeline whose compiled specification is changed."""

    class Edited:
        name = pipeline.name
        pipeline_spec = type(pipeline.pipeline_spec)()

    Edited.pipeline_spec.CopyFrom(pipeline.pipeline_spec)
    change(Edited.pipeline_spec)
    return Edited


def wait_for_each_other(spec: Any) -> None:
    spec.root.dag.tasks["say"].dependent_tasks.append("say-2")
    spec.root.dag.tasks["say-2"].dependent_tasks.append("say")


EDITS: list[tuple[Any, str]] = [
    (wait_for_each_other, "its tasks wait for each other"),
    (lambda spec: spec.root.dag.tasks["say"].dependent_tasks.append("gone"), "task say waits for gone"),
    (lambda spec: spec.components.pop("comp-say"), "component comp-say, which is not there"),
    (
        lambda spec: spec.deployment_spec["executors"]["exec-say"]["container"].update(
            {"lifecycle": {"preCacheCheck": {"command": ["x"]}}}
        ),
        "executor exec-say: lifecycle hooks",
    ),
    (
        lambda spec: spec.deployment_spec["executors"].update({"exec-say": {"resolver": {}}}),
        "executor exec-say: resolver",
    ),
    (
        lambda spec: spec.deployment_spec["executors"]["exec-say"]["container"].update(
            {"args": ["{{$.workspace_path}}"]}
        ),
        "a workspace, which only Kubernetes has",
    ),
]


def test_a_condition_over_unlike_types_fails_the_run(programs: Pipelines) -> None:
    def compare(spec: Any) -> None:
        policy = spec.root.dag.tasks["condition-1"].trigger_policy
        policy.condition = "inputs.parameter_values['pipelinechannel--value'] == 1"

    job = programs.run(edited(control.gated, compare), run="unlike", value="open")
    assert states(job)["condition-1"] == states(job)[""] == "FAILED"
    assert "'open' cannot be compared with 1" in detail(job, "condition-1").error.message


@pytest.mark.parametrize(("change", "expected"), EDITS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_refused_by_name(programs: Pipelines, change: Any, expected: str) -> None:
    run = f"edited-{[text for _, text in EDITS].index(expected)}"
    job = programs.run(edited(control.two, change), run=run)
    assert job.state.name == "PIPELINE_STATE_FAILED" and job.error.code == 12
    assert job.error.message.startswith("the rehearsal does not play ") and expected in job.error.message
    assert not job.job_detail.task_details
