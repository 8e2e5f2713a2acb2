"""The machines of a custom job: what runs on each, and what Vertex tells it by its environment.

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
from typing import Any

from contracts.process import available_cores, thread_environment
from rehearsal.machines.metadata import LOOPBACK, Identity

# What the launchers of a training need: one to meet, the others for the stores of their ranks. Below those that the
# system gives to clients.
_PORTS = 17
_PORTS_FROM, _PORTS_TO = 20000, 32000
# torchrun's own: processes of a machine, where resources.ranks is auto.
RANKS_VARIABLE = "PET_NPROC_PER_NODE"
_GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"


class UnknownCommand(ValueError):
    """A specification leaves the command to its image, which nobody opens here."""


@dataclass(frozen=True)
class Scale:
    """How machines that this one cannot hold are played."""

    processes_per_node: int | None = None
    """Training processes of each machine where the configuration leaves them open; None: what the training decides."""
    time_scale: float = 1.0
    """Seconds here for one of the platform's: of the time between a notice and the end, say."""

    @property
    def variables(self) -> dict[str, str]:
        """All runner variables: what containers have here and not on Vertex, and act upon."""
        return {} if self.processes_per_node is None else {RANKS_VARIABLE: str(self.processes_per_node)}


@dataclass(frozen=True)
class Machine:
    """One replica of a worker pool."""

    node: int
    """0 is the first pool's, then the second's in order."""
    pool: int
    index: int
    words: tuple[str, ...]
    env: Mapping[str, str]
    image: str
    type: str = ""
    """Machine type."""

    @property
    def name(self) -> str:
        """As Vertex names it in logs and errors."""
        return f"workerpool{self.pool}-{self.index}"


def find_machines(job: Any) -> tuple[Machine, ...]:
    """Return the machines of a CustomJob (google.cloud.aiplatform_v1).

    Raises:
        UnknownCommand: A container without a command.
    """
    found: list[Machine] = []
    for number, pool in enumerate(job.job_spec.worker_pool_specs):
        for index in range(pool.replica_count):
            found.append(_machine(len(found), number, index, pool))
    return tuple(found)


def _machine(node: int, number: int, index: int, pool: Any) -> Machine:
    kind = pool.machine_spec.machine_type
    if pool.python_package_spec.python_module:
        package = pool.python_package_spec
        words = ("python", "-m", package.python_module, *package.args)
        return Machine(node, number, index, words, _variables(package.env), package.executor_image_uri, kind)
    container = pool.container_spec
    if not container.command:
        raise UnknownCommand(
            f"worker_pool_specs[{number}].container_spec.command is empty: a rehearsal does not open image "
            f"{container.image_uri} to find its entry point"
        )
    words = (*container.command, *container.args)
    return Machine(node, number, index, words, _variables(container.env), container.image_uri, kind)


def _variables(env: Sequence[Any]) -> dict[str, str]:
    return {variable.name: variable.value for variable in env}


def host_name(machine: Machine, job: Any) -> str:
    """Return a machine's name on the network, as Vertex's are; the same when it is started again."""
    return f"cmle-training-workerpool{machine.pool}-{job.name.rpartition('/')[2]}-{machine.index}"


def identity_of(machine: Machine, job: Any, token: Callable[[], str]) -> Identity:
    """Return what the metadata server of a custom job's machine says; `token` returns one of the service account."""
    _, number, _, region, *_ = job.name.split("/")
    return tenant_identity(number, region, machine.type, job.job_spec.service_account, token)


def tenant_identity(
    number: str, region: str, machine_type: str, service_account: str, token: Callable[[], str]
) -> Identity:
    """Return what the metadata server of a machine of Vertex's says: a project that is not the user's.

    Custom jobs run in a tenant project of Google's, and their clients find that one as their default:
    https://docs.cloud.google.com/vertex-ai/docs/training/code-requirements#projects

    Args:
        number: Of the user's project.
        region: Of the job.
        machine_type: Machine type.
        service_account: Email; "": that of Vertex's agent.
        token: Returns a token of the service account.
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
    """Return the addresses of all machines by pool.

    Args:
        machines: All of the job.
        first_port: The first of so many that are free (`free_ports`).
    """
    pools: dict[str, list[str]] = {}
    for machine in machines:
        # Nobody meets at another machine than the first: ports only tell them apart.
        address = f"{LOOPBACK}:{first_port + (_PORTS + machine.node if machine.node else 0)}"
        pools.setdefault(f"workerpool{machine.pool}", []).append(address)
    return pools


def environment_of(
    machine: Machine, machines: Sequence[Machine], job: Any, scale: Scale, pools: Mapping[str, list[str]]
) -> dict[str, str]:
    """Return what a machine's container finds in its environment beside what all containers have.

    Args:
        machine: This one.
        machines: All of the job.
        job: The CustomJob.
        scale: Of the rehearsal.
        pools: Addresses of all machines (`cluster`).
    """
    task = {"type": f"workerpool{machine.pool}", "index": machine.index}
    spec = {"cluster": pools, "environment": "cloud", "task": task, "job": "{}"}
    first, _, first_port = pools["workerpool0"][0].partition(":")
    ranks = scale.processes_per_node or 1
    found = {
        **thread_environment(max(1, len(cores_of(machine, len(machines))) // ranks)),
        "CLUSTER_SPEC": json.dumps(spec),
        "TF_CONFIG": json.dumps(
            {**spec, "cluster": {"chief" if k == "workerpool0" else k: v for k, v in pools.items()}}
        ),
        "CLOUD_ML_JOB_ID": job.name.rpartition("/")[2],
        "CLOUD_ML_PROJECT_ID": job.name.split("/")[1],
        "RANK": str(machine.node),
        "WORLD_SIZE": str(len(machines)),
        "MASTER_ADDR": first,
        "MASTER_PORT": first_port,
        **gpus_of(machine, len(machines), scale),
        **scale.variables,
    }
    if base := job.job_spec.base_output_directory.output_uri_prefix.rstrip("/"):
        found["AIP_MODEL_DIR"] = f"{base}/model/"
        found["AIP_CHECKPOINT_DIR"] = f"{base}/checkpoints/"
        found["AIP_TENSORBOARD_LOG_DIR"] = f"{base}/logs/"
    if job.job_spec.tensorboard:
        found["AIP_TENSORBOARD_RESOURCE_NAME"] = job.job_spec.tensorboard
    return {**found, **machine.env}


def cores_of(machine: Machine, machines: int) -> list[int]:
    """Return the cores that a machine may use: its part of this one's, at least one."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(available_cores()))
    return cores[machine.node :: machines] or [cores[machine.node % len(cores)]]


def gpus_of(machine: Machine, machines: int, scale: Scale) -> dict[str, str]:
    """Return the variable by which a machine sees its part of this one's GPUs, as a container runtime would give it.

    NCCL takes one rank per GPU: where there are fewer GPUs than ranks, all machines compute on the CPU.
    """
    found = _visible_gpus()
    share = scale.processes_per_node or len(found) // machines
    own = found[machine.node * share : (machine.node + 1) * share] if share * machines <= len(found) else []
    return {_GPUS_VARIABLE: ",".join(own)} if found else {}


@functools.cache
def _visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, by what CUDA_VISIBLE_DEVICES calls them."""
    if (given := os.environ.get(_GPUS_VARIABLE)) is not None:
        return [name for name in given.split(",") if name]
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        # No driver, no GPUs.
        return []
    return listed.split()


def free_ports(machines: int) -> int:
    """Return the first of the ports in a row that a job of so many machines needs, which nobody has now."""
    draw, count = random.SystemRandom(), _PORTS + machines
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
