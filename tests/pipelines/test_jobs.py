"""Machines of a stage's job."""

from contracts.config import RunConfig
from pipelines.jobs import Container, worker_pools
from tests.conftest import small_config


def test_training_has_the_machines_and_export_the_gpu_that_serves() -> None:
    resources = {
        "nodes": 3,
        "machine": {"type": "g2-standard-12", "boot_disk_gb": 200},
        "serving_machine": {"type": "n1-standard-4"},
        "env": {"NCCL_DEBUG": "INFO"},
    }
    config = RunConfig.model_validate(small_config(run={"name": "small"}, resources=resources))
    container = Container("host/image@sha256:1", ("python", "-m", "trainer.task"), {"A": "b"})
    first, others = worker_pools(config, "train", container, ("--run", "r"))
    assert (first["replica_count"], others["replica_count"]) == (1, 2)
    assert first["machine_spec"]["accelerator_type"] == "NVIDIA_L4"
    assert first["disk_spec"] == {"boot_disk_type": "pd-ssd", "boot_disk_size_gb": 200}
    assert first["container_spec"]["env"] == [{"name": "A", "value": "b"}]
    (alone,) = worker_pools(config, "export", container, ())
    assert alone["machine_spec"] == {"machine_type": "n1-standard-4"}
