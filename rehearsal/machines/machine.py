"""The machines of a custom job: what runs on each, and what Vertex AI tells it by its environment.

Variables: https://docs.cloud.google.com/vertex-ai/docs/training/code-requirements#environment-variables and
https://docs.cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-variables. RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT are those of machines, as some have seen them set there.
"""

from __future__ import annotations

import functools
import json
import os
import random
import socket
import subprocess
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.process import available_cores, thread_environment
from rehearsal.machines.metadata import LOOPBACK, Identity

# Used by a training: one port to meet, the others for the stores of its ranks. Below those that the system gives to
# clients.
_PORTS, _PORTS_FROM, _PORTS_TO = 17, 20000, 32000
LINKS_PREFIX = "shl-"
"""Of the folders of links to machines' disks (rehearsal/jobs/machines.py), beside the temporary folders."""
# torchrun's own: processes of a machine, where resources.ranks is auto.
RANKS_VARIABLE = "PET_NPROC_PER_NODE"
_GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"


class UnknownCommand(ValueError):
    """A specification leaves the command to its image, which nobody opens here."""


@dataclass(frozen=True)
class Scale:
    """How machines are simulated that this one cannot hold."""

    processes_per_node: int | None = None
    """Training processes of each machine where the configuration leaves them open; None: what the training decides."""
    time_scale: float = 1.0
    """Seconds here per second of the platform, e.g. of the time between a notice and the end."""

    @property
    def variables(self) -> dict[str, str]:
        """Variables that containers have here and not on Vertex AI."""
        return {} if self.processes_per_node is None else {RANKS_VARIABLE: str(self.processes_per_node)}


@dataclass(frozen=True)
class Machine:
    """One replica of a worker pool."""

    node: int
    """0 is the first pool's, then the second's in order."""
    pool: int
    index: int
    command: tuple[str, ...]
    env: Mapping[str, str]
    type: str = ""
    """Machine type."""

    @property
    def name(self) -> str:
        """As Vertex AI names it in logs and errors."""
        return f"workerpool{self.pool}-{self.index}"


def find_machines(job: Any) -> tuple[Machine, ...]:
    """Return the machines of a CustomJob (google.cloud.aiplatform_v1).

    Raises:
        UnknownCommand: A container without a command.
    """
    machines: list[Machine] = []
    for number, pool in enumerate(job.job_spec.worker_pool_specs):
        container = pool.container_spec
        if pool.replica_count and not container.command:
            raise UnknownCommand(
                f"worker_pool_specs[{number}].container_spec.command is empty: a rehearsal does not open image "
                f"{container.image_uri} to find its entry point"
            )
        command = (*container.command, *container.args)
        env = {variable.name: variable.value for variable in container.env}
        for index in range(pool.replica_count):
            machines.append(Machine(len(machines), number, index, command, env, pool.machine_spec.machine_type))
    return tuple(machines)


def make_folders(disk: Path) -> dict[str, Path]:
    """Make the folders of a container on its machine's disk: home, tmp and work."""
    folders = {name: disk / name for name in ("home", "tmp", "work")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    return folders


def tenant_identity(
    number: str, region: str, machine_type: str, service_account: str, token: Callable[[], str]
) -> Identity:
    """Return what the metadata server of a machine of Vertex AI says: a project that is not the user's.

    Custom jobs run in a tenant project of Google's, and their clients find that one as their default:
    https://docs.cloud.google.com/vertex-ai/docs/training/code-requirements#projects

    `service_account` is an email; "": that of Vertex AI's agent.
    """
    tenant = zlib.crc32(number.encode())
    return Identity(
        project=f"v{tenant:08x}-tp",
        project_number=str(100_000_000_000 + tenant),
        zone=f"{region}-a",
        machine_type=machine_type,
        email=service_account or f"service-{number}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com",
        token=token,
    )


def cluster(machines: Sequence[Machine], first_port: int) -> dict[str, list[str]]:
    """Return the addresses of a job's machines by pool; `first_port` is the first of `free_ports`."""
    pools: dict[str, list[str]] = {}
    for machine in machines:
        # Ranks meet at the first machine only: the other ports tell machines apart.
        address = f"{LOOPBACK}:{first_port + (_PORTS + machine.node if machine.node else 0)}"
        pools.setdefault(f"workerpool{machine.pool}", []).append(address)
    return pools


def environment_of(
    machine: Machine, machines: Sequence[Machine], job: Any, scale: Scale, pools: Mapping[str, list[str]]
) -> dict[str, str]:
    """Return what a machine's container finds in its environment beside what all containers have."""
    task = {"type": f"workerpool{machine.pool}", "index": machine.index}
    spec = {"cluster": pools, "environment": "cloud", "task": task, "job": "{}"}
    host, _, port = pools["workerpool0"][0].partition(":")
    threads = max(1, len(cores_of(machine, len(machines))) // (scale.processes_per_node or 1))
    environment = {
        **thread_environment(threads),
        "CLUSTER_SPEC": json.dumps(spec),
        "CLOUD_ML_JOB_ID": job.name.rpartition("/")[2],
        "CLOUD_ML_PROJECT_ID": job.name.split("/")[1],
        "RANK": str(machine.node),
        "WORLD_SIZE": str(len(machines)),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        **gpus_of(machine, len(machines), scale),
        **scale.variables,
    }
    if base := job.job_spec.base_output_directory.output_uri_prefix.rstrip("/"):
        environment["AIP_MODEL_DIR"] = f"{base}/model/"
        environment["AIP_CHECKPOINT_DIR"] = f"{base}/checkpoints/"
        environment["AIP_TENSORBOARD_LOG_DIR"] = f"{base}/logs/"
    if job.job_spec.tensorboard:
        environment["AIP_TENSORBOARD_RESOURCE_NAME"] = job.job_spec.tensorboard
    return {**environment, **machine.env}


def cores_of(machine: Machine, num_machines: int) -> list[int]:
    """Return the cores that a machine may use: its part of this one's, at least one."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(available_cores()))
    return cores[machine.node :: num_machines] or [cores[machine.node % len(cores)]]


def gpus_of(machine: Machine, num_machines: int, scale: Scale) -> dict[str, str]:
    """Return the variable by which a machine sees its part of this one's GPUs, as a container runtime would give it.

    NCCL takes one rank per GPU: where there are fewer GPUs than ranks, all machines compute on the CPU.
    """
    gpus = _visible_gpus()
    share = scale.processes_per_node or len(gpus) // num_machines
    part = gpus[machine.node * share : (machine.node + 1) * share] if share * num_machines <= len(gpus) else []
    return {_GPUS_VARIABLE: ",".join(part)} if gpus else {}


@functools.cache
def _visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, by what CUDA_VISIBLE_DEVICES calls them."""
    if (given := os.environ.get(_GPUS_VARIABLE)) is not None:
        return [name for name in given.split(",") if name]
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        # No driver, no GPUs.
        return []


def free_ports(num_machines: int) -> int:
    """Return the first of the consecutive ports that a job of so many machines needs, all of them free now."""
    draw, count = random.SystemRandom(), _PORTS + num_machines
    while True:
        first = draw.randrange(_PORTS_FROM, _PORTS_TO - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
