"""The machines of a custom job: what runs on each, and what Vertex tells it by its environment.

Variables: https://docs.cloud.google.com/vertex-ai/docs/training/code-requirements#environment-variables and
https://docs.cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-variables. RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT are those of machines, as some have seen them set there.
"""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.process import available_cores, thread_environment
from rehearsal.machines.processes import MEMORY_VARIABLE

HOST = "127.0.0.1"
_FIRST_PORT = 2222
# What the launchers of a training on this machine need: one to meet, the others for the stores of their ranks. Below
# those that the system gives to clients.
PORTS = 17
_PORTS_FROM, _PORTS_TO = 20000, 32000
RANKS_VARIABLE = "SHARDLINE_REHEARSAL_RANKS"
PORT_VARIABLE = "SHARDLINE_REHEARSAL_PORT"


class UnknownCommand(ValueError):
    """A specification leaves the command to its image, which nobody opens here."""


@dataclass(frozen=True)
class Scale:
    """How machines that this one cannot hold are played."""

    processes_per_node: int | None = None
    """Training processes of each machine; None: what the training decides."""
    time_scale: float = 1.0
    """Seconds here for one of the platform's: of the time between a notice and the end, say."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Further variables of every container."""

    @property
    def environment(self) -> dict[str, str]:
        """The runner variables that are the same on every machine."""
        ranks = {} if self.processes_per_node is None else {RANKS_VARIABLE: str(self.processes_per_node)}
        return {**ranks, **self.extra}

    @property
    def variables(self) -> dict[str, str]:
        """All runner variables, for a report: what containers have here and not on Vertex, and act upon."""
        varying = {PORT_VARIABLE: "a free port, another at each start", MEMORY_VARIABLE: "a folder of each machine"}
        return {**varying, **self.environment}


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
    if pool.python_package_spec.python_module:
        package = pool.python_package_spec
        words = ("python", "-m", package.python_module, *package.args)
        return Machine(node, number, index, words, _variables(package.env), package.executor_image_uri)
    container = pool.container_spec
    if not container.command:
        raise UnknownCommand(
            f"worker_pool_specs[{number}].container_spec.command is empty: a rehearsal does not open image "
            f"{container.image_uri} to find its entry point"
        )
    words = (*container.command, *container.args)
    return Machine(node, number, index, words, _variables(container.env), container.image_uri)


def _variables(env: Sequence[Any]) -> dict[str, str]:
    return {variable.name: variable.value for variable in env}


def cluster(machines: Sequence[Machine]) -> dict[str, list[str]]:
    """Return the addresses of all machines by pool. They are one machine here: ports tell them apart."""
    pools: dict[str, list[str]] = {}
    for machine in machines:
        pools.setdefault(f"workerpool{machine.pool}", []).append(f"{HOST}:{_FIRST_PORT + machine.node}")
    return pools


def environment_of(machine: Machine, machines: Sequence[Machine], job: Any, scale: Scale, port: int) -> dict[str, str]:
    """Return what a machine's container finds in its environment beside what all containers have.

    Args:
        machine: This one.
        machines: All of the job.
        job: The CustomJob.
        scale: Of the rehearsal.
        port: The first of the job's own.
    """
    pools = cluster(machines)
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
        PORT_VARIABLE: str(port),
        **scale.environment,
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


def free_ports(count: int = PORTS) -> int:
    """Return the first of so many ports in a row that nobody has now."""
    draw = random.SystemRandom()
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
