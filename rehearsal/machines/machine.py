"""Machines of a custom job: commands, and environment variables as set by Vertex AI.

Variables: https://docs.cloud.google.com/vertex-ai/docs/training/code-requirements#environment-variables and
https://docs.cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-variables. RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT count machines, as reported by users (undocumented).
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

# Ports of a training: one for the rendezvous, the others for its ranks' stores. Below the system's ephemeral ports.
_PORTS, _PORTS_FROM, _PORTS_TO = 17, 20000, 32000
LINKS_PREFIX = "shl-"
"""Prefix of folders with links to machines' disks (rehearsal/jobs/machines.py), in the folder for temporary files."""
# torchrun's variable: processes per machine if resources.ranks is auto.
RANKS_VARIABLE = "PET_NPROC_PER_NODE"
_GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"


class UnknownCommand(ValueError):
    """A specification has no command; images are not pulled, so their entry point is unknown."""


@dataclass(frozen=True)
class Scale:
    """How simulated machines are scaled down to this one."""

    processes_per_node: int | None = None
    """Training processes per machine if resources.ranks is auto; None: the default of the training."""
    time_scale: float = 1.0
    """Real seconds per simulated second of waiting, e.g. between a preemption notice and the end."""

    @property
    def variables(self) -> dict[str, str]:
        """Variables of containers that Vertex AI does not set."""
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
        """Vertex AI's name in logs and errors."""
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
    """Create the folders of a container on its machine's disk: home, tmp and work."""
    folders = {name: disk / name for name in ("home", "tmp", "work")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    return folders


def tenant_identity(
    number: str, region: str, machine_type: str, service_account: str, token: Callable[[], str]
) -> Identity:
    """Return the identity of a Vertex AI machine, which is not in the user's project.

    Custom jobs run in a tenant project of Google, which is the default project of their clients:
    https://docs.cloud.google.com/vertex-ai/docs/training/code-requirements#projects

    `service_account` is an email; "": Vertex AI's service agent.
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
        # The rendezvous uses the first machine's port only; the others are just distinct.
        address = f"{LOOPBACK}:{first_port + (_PORTS + machine.node if machine.node else 0)}"
        pools.setdefault(f"workerpool{machine.pool}", []).append(address)
    return pools


def environment_of(
    machine: Machine, machines: Sequence[Machine], job: Any, scale: Scale, pools: Mapping[str, list[str]]
) -> dict[str, str]:
    """Return the variables of a machine's container, in addition to those of all containers."""
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
    """Return the cores of a simulated machine: its share of this machine's, at least one."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(available_cores()))
    return cores[machine.node :: num_machines] or [cores[machine.node % len(cores)]]


def gpus_of(machine: Machine, num_machines: int, scale: Scale) -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES of a simulated machine: its share of this machine's GPUs.

    NCCL needs a GPU per rank: with fewer GPUs than ranks, all machines use the CPU.
    """
    gpus = _visible_gpus()
    share = scale.processes_per_node or len(gpus) // num_machines
    share_of_gpus = gpus[machine.node * share : (machine.node + 1) * share] if share * num_machines <= len(gpus) else []
    return {_GPUS_VARIABLE: ",".join(share_of_gpus)} if gpus else {}


@functools.cache
def _visible_gpus() -> list[str]:
    """Return the GPUs of this process, as named in CUDA_VISIBLE_DEVICES."""
    if (visible := os.environ.get(_GPUS_VARIABLE)) is not None:
        return [name for name in visible.split(",") if name]
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        # No driver, no GPUs.
        return []


def free_ports(num_machines: int) -> int:
    """Return the first of the consecutive free ports for a job with this number of machines."""
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
