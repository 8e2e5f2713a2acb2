"""The record of a run becomes a row of its experiment: by the real SDK, in the local Vertex."""

import json
import time
from typing import Any

import pytest
from google.cloud.aiplatform_v1 import types

from components.entry import main
from components.experiment import MAX_LENGTH, run_name
from components.record_run import TASKS
from contracts import storage
from contracts.artifacts import EVALUATION_NAME, MANIFEST_NAME, RunRecord
from contracts.artifacts.classification import RocCurve
from contracts.config import STAGES, RunConfig
from pipelines.submit import submit
from tests.inspection.documents import DOCUMENTS, evaluation, trained_with_evaluation
from tests.pipelines.vertex.conftest import NUMBER, PROJECT, REGION, Cloud, MakeConfig, make_ready

NAMES = ["cat", "dog"]
CURVE = RocCurve(area=1.0, points=[(0.5, 0, 3), (0.0, 3, 3)])


def executor_input(config: RunConfig, run_id: str, job: str, *outputs: str) -> str:
    """Return what a task of a run is given."""
    root = f"{config.run.root}/{config.run.name}/pipeline/{NUMBER}/{run_id}/task"
    artifacts = {name: {"artifacts": [{"name": name, "uri": f"{root}/{name}"}]} for name in outputs}
    values = {"config": config.model_dump_json(), "job": job}
    outputs_of = {"artifacts": artifacts, "outputFile": f"{root}/executor_output.json"}
    return json.dumps({"inputs": {"parameterValues": values}, "outputs": outputs_of})


def finish_run(
    cloud: Cloud,
    config: RunConfig,
    spec: dict[str, Any],
    run_id: str,
    *,
    accuracy: float = 0.9,
    stages: tuple[str, ...] = STAGES,
) -> list[str]:
    """Submit a run, leave what its stages would, and return the words of its record's task."""
    job = submit(make_ready(config, spec), run_id, lambda _: None).resource_name
    line = storage.join(config.run.root, config.run.name)
    found = evaluation(NAMES, [(0, 0, 3), (1, 1, 3)], CURVE)
    trained = trained_with_evaluation(found)
    trained = trained.model_copy(update={"metrics": {"test_accuracy": accuracy, "validation_accuracy": 0.8}})
    details = []
    for stage in stages:
        uri = storage.join(line, stage, run_id)
        document = trained if stage == "train" else DOCUMENTS[stage]
        storage.replace(storage.join(uri, MANIFEST_NAME), document.to_json())
        if stage == "train":
            storage.replace(storage.join(uri, EVALUATION_NAME), found)
        artifacts = {TASKS[stage]: {"artifacts": [{"name": f"{job}-{stage}", "uri": uri}]}}
        state: Any = types.PipelineTaskDetail.State.SUCCEEDED
        details.append({"task_name": stage, "state": state, "outputs": artifacts})
    while cloud.store.get(job).state != types.PipelineState.PIPELINE_STATE_SUCCEEDED:
        time.sleep(0.01)
    cloud.store.update(job, lambda message: setattr(message.job_detail, "task_details", details))
    events = [
        {"time": 1000.0, "event": "start", "launched_at": 1000.0},
        {"time": 1001.0, "event": "folder", "fingerprint": "t"},
        {"time": 1002.0, "event": "life", "life": "a", "started_at": 1002.0},
        {"time": 1003.0, "event": "resume", "life": "a", "step": 0, "ranks": 2, "nodes": 1},
        {"time": 1009.0, "event": "spent", "life": "a", "step": 10, "seconds": {"step": 5.0, "data": 1.0}},
        {"time": 1010.0, "event": "finish", "uri": "", "made": "weights"},
    ]
    attempt = storage.join(line, "train", "attempts", f"{run_id}.a", "events.jsonl")
    storage.replace(attempt, "".join(json.dumps(event) + "\n" for event in events).encode())
    start = {"id": run_id, "started_at": "2026-11-22T06:00:00Z", "config": config.model_dump(mode="json")}
    storage.replace(storage.join(line, "runs", run_id, "run-start.json"), json.dumps(start).encode())
    return ["record", "--executor-input", executor_input(config, run_id, job, "report")]


def make(make_config: MakeConfig, experiment: str, **train: Any) -> RunConfig:
    return make_config(
        run={"name": experiment},
        vertex={"experiment": experiment},
        train=train,
        resources={"price_usd_per_h": 3600.0, "machine": {"type": "n1-standard-4"}},
    )


def rows(experiment: str) -> dict[str, Any]:
    """The runs of an experiment as the SDK lists them, by name."""
    from google.cloud import aiplatform

    aiplatform.init(project=PROJECT, location=REGION)
    return {run.name: run for run in aiplatform.ExperimentRun.list(experiment=experiment)}


def test_a_run_is_a_row_with_what_was_asked_and_what_came_out(
    cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]
) -> None:
    config = make(make_config, "rows", learning_rate=0.25)
    assert main(finish_run(cloud, config, tiny_spec, "rows-1")) == 0
    other = make(make_config, "rows", learning_rate=0.5)
    assert main(finish_run(cloud, other, tiny_spec, "rows-2", accuracy=0.95)) == 0
    found = rows("rows")
    assert set(found) == {"rows-1", "rows-2"}
    run = found["rows-1"]
    params, metrics = run.get_params(), run.get_metrics()
    expected: dict[str, Any] = {
        "train.learning_rate": 0.25,
        "train.optimizer": config.train.optimizer,
        "machine": "n1-standard-4",
        "run.seed": 0,
        # Of the job, not of the configuration: a try may be in another.
        "region": REGION,
    }
    assert {name: params[name] for name in expected} == expected
    assert metrics["train_test_accuracy"] == 0.9 and metrics["train_goodput_percent"] == 50.0
    # Ten seconds of training at a dollar a second; hours have six digits.
    assert metrics["train_wall_s"] == 10.0 and metrics["train_cost_usd"] == pytest.approx(10.0, abs=0.01)
    assert all(isinstance(value, int | float) for value in metrics.values())
    assert run.state.name == "COMPLETE"
    assert [job.name for job in run.get_logged_pipeline_jobs()] == ["rows-1"]
    assert found["rows-2"].get_metrics()["train_test_accuracy"] == 0.95


def test_a_record_that_is_written_again_makes_no_second_row(
    cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]
) -> None:
    config = make(make_config, "again")
    words = finish_run(cloud, config, tiny_spec, "again-1")
    assert main(words) == main(words) == 0
    (run,) = rows("again").values()
    assert len(run.get_logged_pipeline_jobs()) == 1
    # The job is the row's child, and none of its own beside it.
    place = f"projects/{NUMBER}/locations/{REGION}/metadataStores/default/contexts/"
    children = [one for one in cloud.store.list(place) if f"{place}again" in one.parent_contexts]
    assert [one.schema_title for one in children] == ["system.ExperimentRun"]


def test_an_experiment_that_cannot_be_told_fails_no_record(
    cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    # Of this name there is something else: the pipeline that the runs belong to.
    config = make_config(run={"name": "untold"}, vertex={"experiment": "tiny"})
    assert main(finish_run(cloud, config, tiny_spec, "untold-1")) == 0
    assert "warning: the row of the experiment cannot be shown: " in capsys.readouterr().err
    line = storage.join(config.run.root, "untold")
    record = RunRecord.model_validate_json(storage.read_bytes(storage.join(line, "runs", "untold-1", "run.json")))
    assert record.state == "succeeded"


def test_a_row_is_called_by_the_end_of_a_long_id() -> None:
    assert run_name("photos", "line-photos-20261122-060000-0001") == "line-photos-20261122-060000-0001"
    long = "line-" + "x" * 60 + "-20261122-060000-0001-r2"
    assert run_name("e" * 80, long) == "x" * 16 + "-20261122-060000-0001-r2"
    assert len(f"{'e' * 80}-{run_name('e' * 80, long)}") <= MAX_LENGTH
