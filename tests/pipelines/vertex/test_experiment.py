"""The record of a run becomes a row of its experiment: by the real SDK, in the local Vertex."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import EVALUATION_NAME, MANIFEST_NAME, CheckpointManifest, RunRecord
from contracts.artifacts.classification import RocCurve
from contracts.config import STAGES, RunConfig
from contracts.fingerprint import combine, train_inputs
from contracts.pinned import pin
from contracts.result import leave_result
from inspection.summary import make_record
from inspection.trace import StageTrace
from pipeline_tasks.experiment import CLASSIFICATION_NAME, MAX_LENGTH, describe_params, run_name
from pipeline_tasks.task import main
from pipelines.submission.submit import prepare, submit
from tests.inspection.stages.documents import evaluation, trained_with_evaluation
from tests.inspection.test_summary import DOCUMENTS
from tests.pipelines.vertex.conftest import NUMBER, PROJECT, REGION, Cloud, MakeConfig, compiled_line

NAMES = ["cat", "dog"]
CURVE = RocCurve(area=1.0, points=[(0.5, 0, 3), (0.0, 3, 3)])


def finish_run(config: RunConfig, spec: dict[str, Any], run_id: str, *, accuracy: float = 0.9) -> tuple[str, list[str]]:
    """Submit a run, leave what its stages would, and return its line and the words of its record's task."""
    compiled = compiled_line(config, spec)
    prepared = prepare(config, compiled, run_id=run_id)
    submit(prepared, prepared.submission())
    line = storage.join(config.run.root, config.run.name)
    found = evaluation(NAMES, [(0, 0, 3), (1, 1, 3)], [CURVE, CURVE])
    trained = trained_with_evaluation(found)
    trained = trained.model_copy(update={"metrics": {"test_accuracy": accuracy, "validation_accuracy": 0.8}})
    for stage in STAGES:
        uri = storage.join(line, stage, run_id)
        document = trained if stage == "train" else DOCUMENTS[stage]
        storage.replace(storage.join(uri, MANIFEST_NAME), document.to_json())
        if stage == "train":
            storage.replace(storage.join(uri, EVALUATION_NAME), found)
        leave_result(line, run_id, stage, uri, reused=False)
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
    content = config.model_dump_json().encode()
    where = storage.join(line, "configs", f"{run_id}.json")
    storage.replace(where, content)
    pinned = pin(where, hashlib.sha256(content).hexdigest())
    start = {"id": run_id, "started_at": "2026-11-22T06:00:00Z", "config": config.model_dump(mode="json")}
    storage.replace(storage.join(line, "runs", run_id, "run-start.json"), json.dumps(start).encode())
    return line, ["record", "--line", line, "--run-id", run_id, "--config", pinned]


def make(make_config: MakeConfig, experiment: str, **train: Any) -> RunConfig:
    return make_config(
        run={"name": experiment},
        vertex={"experiment": experiment, "model": {"upload": False}},
        train=train,
        resources={"price_usd_per_h": 3600.0, "machine": {"type": "n1-standard-4"}},
    )


def rows(experiment: str) -> dict[str, Any]:
    """The runs of an experiment as the SDK lists them, by name."""
    from google.cloud import aiplatform

    aiplatform.init(project=PROJECT, location=REGION)
    return {run.name: run for run in aiplatform.ExperimentRun.list(experiment=experiment)}


def test_a_run_is_a_row_with_what_was_asked_and_what_came_out(
    cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config = make(make_config, "rows", learning_rate=0.25)
    _, first = finish_run(config, tiny_spec, "rows-1")
    assert main(first) == 0
    assert "record: experiment rows has the run as rows-1" in capsys.readouterr().out
    other = make(make_config, "rows", learning_rate=0.5)
    assert main(finish_run(other, tiny_spec, "rows-2", accuracy=0.95)[1]) == 0
    found = rows("rows")
    assert set(found) == {"rows-1", "rows-2"}
    run = found["rows-1"]
    params, metrics = run.get_params(), run.get_metrics()
    expected: dict[str, Any] = {
        "learning_rate": 0.25,
        "global_batch_size": 256,
        "optimizer": "adamw",
        "machine": "n1-standard-4",
        "seed": 0,
        # Of the job, not of the configuration: a try may be in another.
        "strategy": "SPOT",
        "region": REGION,
    }
    assert {name: params[name] for name in expected} == expected | {
        "global_batch_size": config.train.global_batch_size,
        "optimizer": config.train.optimizer,
    }
    assert metrics["train_test_accuracy"] == 0.9 and metrics["train_goodput_percent"] == 50.0
    # Ten seconds of training at a dollar a second; hours have six digits.
    assert metrics["train_wall_s"] == 10.0 and metrics["train_cost_usd"] == pytest.approx(10.0, abs=0.01)
    assert all(isinstance(value, int | float) for value in metrics.values())
    assert run.state.name == "COMPLETE"
    assert [job.name for job in run.get_logged_pipeline_jobs()] == ["rows-1"]
    (classes,) = run.get_classification_metrics()
    assert (classes["labels"], classes["fpr"]) == (NAMES, [0.0, 0.0, 1.0])
    assert found["rows-2"].get_metrics()["train_test_accuracy"] == 0.95


def test_a_record_that_is_written_again_makes_no_second_row(
    cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]
) -> None:
    config = make(make_config, "again")
    _, words = finish_run(config, tiny_spec, "again-1")
    assert main(words) == main(words) == 0
    (run,) = rows("again").values()
    assert len(run.get_classification_metrics()) == len(run.get_logged_pipeline_jobs()) == 1
    # The job is the row's child, and none of its own beside it.
    place = f"projects/{NUMBER}/locations/{REGION}/metadataStores/default/contexts/"
    children = [one for one in cloud.store.list(place) if f"{place}again" in one.parent_contexts]
    assert [one.schema_title for one in children] == ["system.ExperimentRun"]


def test_a_record_that_ended_early_is_completed_by_the_next(
    cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]
) -> None:
    from google.cloud import aiplatform

    config = make(make_config, "retried")
    _, words = finish_run(config, tiny_spec, "retried-1")
    aiplatform.init(project=PROJECT, location=REGION)
    # What a task leaves that ends right after it has made the row.
    aiplatform.ExperimentRun.create("retried-1", experiment=aiplatform.Experiment.get_or_create("retried"))
    assert main(words) == 0
    (run,) = rows("retried").values()
    (classes,) = run.get_classification_metrics()
    assert (classes["display_name"], classes["labels"]) == (CLASSIFICATION_NAME, NAMES)


def test_a_number_has_one_name_in_both_comparisons(
    tmp_path: Path, cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]
) -> None:
    line, words = finish_run(make(make_config, "names"), tiny_spec, "names-1")
    assert main(words) == 0
    row = rows("names")["names-1"].get_metrics()
    outputs = {name: {"artifacts": [{"name": name, "uri": "gs://b/a"}]} for name in ("metrics", "summary", "page")}
    executor = json.dumps({"outputs": {"artifacts": outputs, "outputFile": str(tmp_path / "output.json")}})
    files = [f"--write-{name}={tmp_path / name}" for name in ("uri", "metrics", "summary", "page")]
    for stage in ("profile", "train", "export"):
        given = ["--stage", stage, "--line", line, "--run-id", "names-1", "--executor-input", executor]
        assert main(["report", *given, *files]) == 0
        reported = json.loads((tmp_path / "metrics").read_text())
        assert reported and {name: row.get(name) for name in reported} == pytest.approx(reported)


def test_one_recipe_has_one_hash_in_two_lines(make_config: MakeConfig) -> None:
    def params(**changes: Any) -> dict[str, Any]:
        config = make_config(**changes)
        document = DOCUMENTS["train"]
        assert isinstance(document, CheckpointManifest)
        trained = document.model_copy(update={"fingerprint": combine(train_inputs(config, shards="s"))})
        record = make_record(
            run_id="r",
            started_at="2026-11-22T06:00:00Z",
            config=config,
            traces=[StageTrace(stage, Path()) for stage in STAGES],
            wall_s=1.0,
            error="",
        )
        return describe_params(record, config, {}, trained)

    here = params(run={"name": "here"})
    there = params(run={"name": "there"}, cloud={"region": "europe-west4"}, resources={"strategy": "STANDARD"})
    other = params(run={"name": "here"}, train={"learning_rate": 0.125})
    assert here["train_fingerprint"] == there["train_fingerprint"] != other["train_fingerprint"]
    # A size of images is no parameter of texts; of the user's own task it may be one.
    texts = params(task={"name": "text_classification"}, model={"architecture": "bert"})
    assert "image_size" in here and "image_size" not in texts and texts["task"] == "text_classification"
    # Of all fields.
    assert len({here["config_sha256"], there["config_sha256"], other["config_sha256"]}) == 3


def test_the_comparison_table(cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]) -> None:
    pytest.importorskip("pandas")
    from google.cloud import aiplatform

    assert main(finish_run(make(make_config, "table"), tiny_spec, "table-1")[1]) == 0
    aiplatform.init(project=PROJECT, location=REGION)
    table = aiplatform.get_experiment_df("table")
    (row,) = table.to_dict("records")
    # One row: the job is the run's child, none of its own.
    assert (row["run_name"], row["run_type"], row["state"]) == ("table-1", "system.ExperimentRun", "COMPLETE")
    assert row["metric.train_test_accuracy"] == 0.9 and row["param.machine"] == "n1-standard-4"


def test_a_failed_run_is_a_row_too(cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]) -> None:
    line, words = finish_run(make(make_config, "failed"), tiny_spec, "failed-1")
    storage.delete(storage.join(line, "runs", "failed-1", "results", "export.json"))
    assert main(words) == 0
    (run,) = rows("failed").values()
    assert run.state.name == "FAILED"


def test_an_experiment_that_cannot_be_told_fails_no_record(
    cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    line, words = finish_run(make(make_config, "untold"), tiny_spec, "untold-1")
    # Of this name there is something else: the pipeline that the runs belong to.
    config = make_config(run={"name": "untold"}, vertex={"experiment": "tiny", "model": {"upload": False}})
    content = config.model_dump_json().encode()
    storage.replace(storage.join(line, "configs", "other.json"), content)
    words[-1] = pin(storage.join(line, "configs", "other.json"), hashlib.sha256(content).hexdigest())
    assert main(words) == 0
    assert "warning: experiment tiny was not told: ValueError" in capsys.readouterr().out
    record = RunRecord.model_validate_json(storage.read_bytes(storage.join(line, "runs", "untold-1", "run.json")))
    assert record.state == "succeeded"


def test_submitting_lists_no_second_row(cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]) -> None:
    before = len(cloud.server.access_log.entries())
    config = make(make_config, "second")
    prepared = prepare(config, compiled_line(config, tiny_spec), run_id="second-1")
    assert submit(prepared, prepared.submission()).warning == ""
    assert not [e for e in cloud.server.access_log.entries()[before:] if "MetadataService" in e.method]


@pytest.mark.parametrize(
    ("experiment", "run_id", "expected"),
    [
        ("photos", "line-photos-20261122-060000-0001", "line-photos-20261122-060000-0001"),
        ("e" * 80, "line-" + "x" * 60 + "-20261122-060000-0001-r2", "x" * 16 + "-20261122-060000-0001-r2"),
        ("e" * 80, "a" * 20 + "-" + "b" * 39, "b" * 39),
    ],
)
def test_a_row_is_called_by_the_end_of_a_long_id(experiment: str, run_id: str, expected: str) -> None:
    assert run_name(experiment, run_id) == expected
    assert len(f"{experiment}-{expected}") <= MAX_LENGTH
