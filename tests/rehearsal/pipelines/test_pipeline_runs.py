"""Pipeline jobs: what each of them is given."""

from __future__ import annotations

from google.cloud import aiplatform_v1

from tests.rehearsal.execution.world import PARENT, Pipelines


def test_runs_have_a_uuid_of_their_own(pipelines: Pipelines) -> None:
    uuids = set()
    # Of two schedules, or of one on two days: they end alike.
    for run in ("digits-20261102060000", "digits-20261112060000", "other-20261112060000"):
        name = f"{PARENT}/pipelineJobs/{run}"
        pipelines.store.add(name, aiplatform_v1.PipelineJob(name=name, pipeline_spec={"root": {}}))
        uuids.add(pipelines.runs._make_job(name).uuid)
    assert len(uuids) == 3
    assert all(uuid.isdecimal() and int(uuid) < 2**63 for uuid in uuids)
