"""The record of a run becomes a row of its experiment: by the real SDK, in the local Vertex."""

from typing import Any

from google.cloud import aiplatform

from components.experiment import log_run
from contracts.artifacts import RunRecord
from contracts.config import RunConfig
from inspection.record import make_record
from pipelines.submit import submit
from tests.pipelines.vertex.conftest import NUMBER, PROJECT, REGION, Cloud, MakeConfig, make_ready, wait_for


def log(cloud: Cloud, config: RunConfig, spec: dict[str, Any], run_id: str, accuracy: float) -> tuple[RunRecord, str]:
    """Submit a run, and log what its record would have; return the record and the job's name."""
    job = submit(make_ready(config, spec), run_id, lambda _: None).resource_name
    wait_for(lambda: cloud.store.get(job).state.name == "PIPELINE_STATE_SUCCEEDED")
    record = make_record(
        run_id=run_id, started_at="2026-11-22T06:00:00Z", config=config, traces=[], wall_s=1.0, error=""
    ).model_copy(update={"state": "succeeded", "row": {"train_test_accuracy": accuracy, "train_cost_usd": 10.0}})
    assert log_run(record, config, job) == run_id
    return record, job


def test_a_run_is_a_row_once_with_what_was_asked_and_what_came_out(
    cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]
) -> None:
    configs = [
        make_config(
            run={"name": "rows"},
            vertex={"experiment": "rows"},
            train={"learning_rate": rate},
            resources={"machine": {"type": "n1-standard-4"}},
        )
        for rate in (0.25, 0.5)
    ]
    record, job = log(cloud, configs[0], tiny_spec, "rows-1", 0.9)
    log(cloud, configs[1], tiny_spec, "rows-2", 0.95)
    # A record that is written again makes no second row.
    log_run(record, configs[0], job)
    aiplatform.init(project=PROJECT, location=REGION)
    found = {run.name: run for run in aiplatform.ExperimentRun.list(experiment="rows")}
    assert set(found) == {"rows-1", "rows-2"}
    run, params = found["rows-1"], found["rows-1"].get_params()
    # The region is that of the job, not of the configuration: a try may be in another.
    expected = {"train.learning_rate": 0.25, "machine": "n1-standard-4", "run.seed": 0, "region": REGION}
    assert {name: params[name] for name in expected} == expected
    assert run.get_metrics() == {"train_test_accuracy": 0.9, "train_cost_usd": 10.0}
    assert found["rows-2"].get_metrics()["train_test_accuracy"] == 0.95
    assert run.state.name == "COMPLETE"
    assert [logged.name for logged in run.get_logged_pipeline_jobs()] == ["rows-1"]
    # The job is the row's child, and none of its own beside it.
    place = f"projects/{NUMBER}/locations/{REGION}/metadataStores/default/contexts/"
    children = [one for one in cloud.store.list(place) if f"{place}rows" in one.parent_contexts]
    assert [one.schema_title for one in children] == ["system.ExperimentRun"] * 2
