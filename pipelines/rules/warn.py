"""What is no mistake, but should be known before a submission."""

from __future__ import annotations

from collections.abc import Iterator

from contracts.config import ResourcesSection, RunConfig
from contracts.machines import Machine


def find_warnings(config: RunConfig, machine: Machine | None) -> Iterator[str]:
    """Yield the warnings of a configuration."""
    resources, vertex = config.resources, config.vertex
    yield from _network(resources, machine)
    if resources.regions:
        elsewhere = ", ".join(resources.regions)
        yield f"only `submit --wait` tries {elsewhere} (resources.regions); all other runs are in {config.cloud.region}"
        yield f"jobs in {elsewhere} read the bucket across regions: slower, and the traffic is billed"
    if resources.strategy == "FLEX_START" and resources.max_wait_s == 0:
        yield "resources.max_wait_s = 0: FLEX_START waits for machines for ever"
    if resources.strategy == "SPOT":
        yield (
            "SPOT machines may be taken at any moment, perhaps without notice; Vertex AI restarts a worker up to 5 "
            "times and then the job up to 3 times (unverified), and training goes on from its newest checkpoint"
        )
    if resources.max_hours is not None and resources.max_hours > resources.timeout_hours:
        yield (
            f"resources.max_hours = {resources.max_hours:g} is beyond resources.timeout_hours = "
            f"{resources.timeout_hours:g}: the job is ended before training ends itself"
        )
    serving = config.cloud.images.serving
    if serving and not vertex.model.upload:
        yield "cloud.images.serving is set, and no model is uploaded: set vertex.model.upload=true to register models"
    if vertex.model.upload and config.export.allow_unproven:
        yield "export.allow_unproven: an engine that never ran on its GPU may be uploaded"


# Presets of https://docs.cloud.google.com/ai-hypercomputer/docs/nccl/overview.
_PRESETS = {
    "a3-highgpu": "GPUDirect-TCPX (NCCL_NET=GPUDirectTCPX_v7, its daemon and four data interfaces)",
    "a3-megagpu": "GPUDirect-TCPXO (/var/lib/tcpxo/lib64/nccl-env-profile.sh)",
    "a3-ultragpu": "gIB (/usr/local/gib/scripts/set_nccl_env.sh)",
    "a4-highgpu": "gIB (/usr/local/gib/scripts/set_nccl_env.sh)",
}


def _network(resources: ResourcesSection, machine: Machine | None) -> Iterator[str]:
    """Warn of several machines whose fast network needs what the project's images do not bring."""
    nodes = 1 if resources.nodes == "auto" else resources.nodes
    preset = _PRESETS.get(machine.type.rpartition("-")[0]) if machine is not None else None
    if nodes == 1 or preset is None or machine is None:
        return
    yield (
        f"{nodes} x {machine.type} exchange gradients over plain TCP, a fraction of their network, unless the image "
        f"has {preset}, and resources.env its settings"
    )
