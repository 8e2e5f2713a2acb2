"""Pipeline jobs: what each of them is given."""

from __future__ import annotations

from google.cloud import aiplatform_v1

from contracts import storage
from rehearsal.gcs import BucketServer
from tests.rehearsal.execution.world import PARENT, Pipelines, detail, states
from tests.rehearsal.pipelines import programs_values as values


def test_runs_have_a_uuid_of_their_own(pipelines: Pipelines) -> None:
    uuids = set()
    # Of two schedules, or of one on two days: they end alike.
    for run in ("digits-20261102060000", "digits-20261112060000", "other-20261112060000"):
        name = f"{PARENT}/pipelineJobs/{run}"
        pipelines.store.add(name, aiplatform_v1.PipelineJob(name=name, pipeline_spec={"root": {}}))
        uuids.add(pipelines.runs._make_job(name).uuid)
    assert len(uuids) == 3
    assert all(uuid.isdecimal() and int(uuid) < 2**63 for uuid in uuids)


def test_a_run_is_given_artifacts_of_the_metadata_store(pipelines: Pipelines, bucket_environment: BucketServer) -> None:
    uri = f"gs://line/{pipelines.folder.name}/there"
    storage.replace(uri, b"there already")
    name = f"{PARENT}/metadataStores/default/artifacts/mine"
    given = {"name": name, "uri": uri, "schema_title": "system.Dataset", "metadata": {"rows": 3}}
    pipelines.store.add(name, aiplatform_v1.Artifact(given))
    job = pipelines.run(values.given_artifact, input_artifacts={"made": "mine"})
    assert set(states(job).values()) == {"SUCCEEDED"}, pipelines.orchestrator_log()
    (artifact,) = detail(job, "read-text").inputs["made"].artifacts
    assert (artifact.name, artifact.uri, artifact.metadata["rows"]) == (name, uri, 3)
    assert "there already" in detail(job, "read-text").execution.metadata["output:heard"]


def test_an_artifact_that_is_not_in_the_store_fails_the_run(pipelines: Pipelines) -> None:
    job = pipelines.run(values.given_artifact, input_artifacts={"made": "nobodys"})
    assert job.state == aiplatform_v1.PipelineState.PIPELINE_STATE_FAILED and job.error.code == 3
    assert "input_artifacts names 'nobodys'" in job.error.message and not pipelines.runs.failures
