"""The job of each stage: container, machines, and the worker pools of a CustomJob of Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.launch import STAGE_MODULES
from contracts.config import MachineSection, RunConfig
from contracts.machines import find_machine, serving_section

INPUTS: dict[str, dict[str, str]] = {
    "shard": {},
    "profile": {"shards": "shard"},
    "train": {"shards": "shard", "profile": "profile"},
    "export": {"shards": "shard", "checkpoint": "train"},
}
"""The inputs of each stage, and the stage that makes each of them."""


@dataclass(frozen=True)
class Container:
    """Container that runs on each machine of a job."""

    image: str
    """Pinned by its digest, which stands for all that is installed."""
    command: tuple[str, ...]
    """Words before the stage's own arguments."""
    env: Mapping[str, str]


def stage_container(config: RunConfig, stage: str, image: str) -> Container:
    """Return the container of a stage: an image of ours, its command, and the configuration's variables."""
    env = config.resources.env if stage in ("profile", "train") else {}
    return Container(image, ("python", "-m", STAGE_MODULES[stage]), env)


def worker_pools(config: RunConfig, stage: str, container: Container, args: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the worker pools of a stage's CustomJob.

    Pool 0 has one replica, pool 1 the others: a single pool of N is refused by Vertex AI
    (https://docs.cloud.google.com/vertex-ai/docs/training/distributed-training). Arguments are separate list items,
    since a value that is known only while the pipeline runs takes the place of a whole item.

    Args:
        config: The resolved configuration.
        stage: Name of the stage.
        container: Container on each machine.
        args: Arguments of the stage's command.

    Raises:
        ConfigError: There is no such machine.
    """
    section = serving_section(config) if stage == "export" else config.resources.machine
    machine = find_machine(section)
    machine_spec: dict[str, Any] = {"machine_type": machine.type}
    if machine.gpus:
        machine_spec |= {
            "accelerator_type": machine.accelerator_type,
            "accelerator_count": machine.gpus,
        }
    pool: Mapping[str, Any] = {
        "machine_spec": machine_spec,
        "disk_spec": {"boot_disk_type": machine.boot_disk, "boot_disk_size_gb": section.boot_disk_gb},
        "container_spec": {
            "image_uri": container.image,
            "command": list(container.command),
            "args": list(args),
            "env": [{"name": name, "value": value} for name, value in sorted(container.env.items())],
        },
    }
    nodes = config.resources.num_nodes if stage in ("profile", "train") else 1
    pools = [{**pool, "replica_count": 1}]
    if nodes > 1:
        pools.append({**pool, "replica_count": nodes - 1})
    return pools


def machine_name(section: MachineSection) -> str:
    """Return the machine and its GPUs as one word of a profile's fingerprint.

    Raises:
        ConfigError: There is no such machine.
    """
    machine = find_machine(section)
    gpus = f"+{machine.gpus}x{machine.accelerator_type}" if machine.gpus else ""
    return f"{machine.type}{gpus}"
