"""The worker pools of a CustomJob: which machines, which container, which arguments.

Pool 0 has one replica, pool 1 the others (https://docs.cloud.google.com/vertex-ai/docs/training/distributed-training):
a single pool of N is refused by Vertex AI. Arguments are separate list items, since a value that is known only while
the pipeline runs takes the place of a whole item.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.config import MachineSection, RunConfig
from contracts.machines import find_machine


@dataclass(frozen=True)
class Container:
    """What runs on each machine of a job."""

    image: str
    command: tuple[str, ...]
    """What comes before the stage's own arguments."""
    env: Mapping[str, str]
    identity: str
    """What stands for all that is installed in it: the digest of an image, the hash of a wheel."""


def worker_pools(
    section: MachineSection, container: Container, arguments: Sequence[Any], *, nodes: int = 1
) -> list[dict[str, Any]]:
    """Return the pools of a job.

    Args:
        section: Kind of machine.
        container: What runs on each.
        arguments: Of the stage: text, or values that the pipeline knows only while it runs.
        nodes: Number of machines.

    Raises:
        ConfigError: There is no such machine.
    """
    machine = find_machine(section)
    spec: dict[str, Any] = {"machine_type": machine.type}
    if machine.accelerator_count:
        spec |= {"accelerator_type": machine.accelerator_type, "accelerator_count": machine.accelerator_count}
    pool = {
        "machine_spec": spec,
        "disk_spec": {"boot_disk_type": section.boot_disk_type, "boot_disk_size_gb": section.boot_disk_gb},
        "container_spec": {
            "image_uri": container.image,
            "command": list(container.command),
            "args": list(arguments),
            "env": [{"name": name, "value": value} for name, value in sorted(container.env.items())],
        },
    }
    pools = [{**pool, "replica_count": 1}]
    if nodes > 1:
        pools.append({**pool, "replica_count": nodes - 1})
    return pools


def num_nodes(config: RunConfig) -> int:
    """Return how many machines train together: a custom job has as many as it is given."""
    return 1 if config.resources.nodes == "auto" else config.resources.nodes


def serving_section(config: RunConfig) -> MachineSection:
    """Return the machine of the export: the one that will serve, else the training's."""
    resources = config.resources
    return resources.serving_machine if resources.serving_machine.type else resources.machine


def machine_name(section: MachineSection) -> str:
    """Return what a profile is of: the machine and its GPUs, as one word of the fingerprint.

    Raises:
        ConfigError: There is no such machine.
    """
    machine = find_machine(section)
    gpus = f"+{machine.accelerator_count}x{machine.accelerator_type}" if machine.accelerator_count else ""
    return f"{machine.type}{gpus}"
