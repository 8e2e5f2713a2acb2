"""What the replicas of a custom job are told: GPUs, ranks, addresses."""

from __future__ import annotations

import pytest
from google.cloud import aiplatform_v1

from rehearsal.machines import machine as module
from rehearsal.machines.machine import Scale, cluster, environment_of, find_machines, gpus_of, tenant_identity

JOB = aiplatform_v1.CustomJob(
    name="projects/123456789012/locations/europe-west4/customJobs/7",
    job_spec={
        "worker_pool_specs": [
            {"replica_count": 1, "container_spec": {"command": ["true"], "image_uri": "image"}},
            {"replica_count": 2, "container_spec": {"command": ["true"], "image_uri": "image"}},
        ]
    },
)


@pytest.mark.parametrize(
    ("gpus", "ranks", "expected"),
    [
        ([], None, [None, None, None]),
        (["A", "B", "C"], None, ["A", "B", "C"]),
        (["A", "B", "C", "D", "E", "F", "G"], None, ["A,B", "C,D", "E,F"]),
        (["A", "B", "C"], 1, ["A", "B", "C"]),
        # NCCL takes one rank per GPU.
        (["A", "B"], None, ["", "", ""]),
        (["A", "B", "C"], 2, ["", "", ""]),
    ],
)
def test_each_machine_has_its_part_of_the_gpus(
    monkeypatch: pytest.MonkeyPatch, gpus: list[str], ranks: int | None, expected: list[str | None]
) -> None:
    monkeypatch.setattr(module, "_visible_gpus", lambda: gpus)
    machines = find_machines(JOB)
    found = [gpus_of(one, 3, Scale(processes_per_node=ranks)).get("CUDA_VISIBLE_DEVICES") for one in machines]
    assert found == expected


def test_what_is_told_is_what_vertex_tells_and_torchruns_number() -> None:
    machines = find_machines(JOB)
    pools = cluster(machines, 20000)
    # The first port is followed by those of the ranks' stores.
    assert pools == {"workerpool0": ["127.0.0.1:20000"], "workerpool1": ["127.0.0.1:20018", "127.0.0.1:20019"]}
    found = environment_of(machines[2], machines, JOB, Scale(processes_per_node=3), pools)
    assert (found["RANK"], found["WORLD_SIZE"], found["MASTER_PORT"]) == ("2", "3", "20000")
    assert found["PET_NPROC_PER_NODE"] == "3"
    assert not [name for name in found if name.startswith("SHARDLINE_")]


def test_a_custom_jobs_default_project_is_a_tenant_project() -> None:
    found = tenant_identity("123456789012", "europe-west4", "g2-standard-12", "", lambda: "token")
    assert found.project.endswith("-tp") and found.project_number != "123456789012"
    assert (found.zone, found.machine_type) == ("europe-west4-a", "g2-standard-12")
    assert found.email == "service-123456789012@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"
