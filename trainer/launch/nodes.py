"""Number of this machine in its job and address of the first machine, read from the environment.

Three platforms are known:

    Vertex AI      CLUSTER_SPEC: workerpool0 is node 0, workerpool1[i] is node i + 1, other pools take no part
                   (https://docs.cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-variables)
    torchrun       PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT: what Kubeflow sets for torchrun
    Indexed Job    JOB_COMPLETION_INDEX with resources.nodes and MASTER_ADDR
                   (https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode)

Else the job is this machine alone. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of the environment are per machine,
not per rank, where Vertex AI sets them: they are never passed on.
"""

from __future__ import annotations

import fcntl
import re
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError

from contracts.config.base import Auto
from contracts.config.resources import ResourcesSection
from contracts.errors import ConfigError
from contracts.process import JOB_ID_VARIABLE

Platform = Literal["vertex", "torchrun", "indexed job", "local"]

# Each platform sets one of these.
PLATFORM_VARIABLES = ("CLUSTER_SPEC", "PET_NNODES", "PET_NODE_RANK", "JOB_COMPLETION_INDEX")
# Variables of torchrun or of the platform that must not reach the ranks started here.
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
_RANK_PREFIXES = ("PET_", "TORCHELASTIC_", "GROUP_", "ROLE_")
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Nodes:
    """This machine among the machines of its job."""

    node_rank: int
    nodes: int
    host: str
    """Name or address of the first machine; empty when the job is one machine."""
    port: int
    """Port of the first machine on which launchers meet."""
    platform: Platform
    job_id: str
    """Empty: the environment names no job."""

    @property
    def is_primary(self) -> bool:
        """Whether this is the first machine."""
        return self.node_rank == 0


class _Task(BaseModel):
    type: str
    index: int = Field(ge=0)


class _ClusterSpec(BaseModel):
    cluster: dict[str, list[str]]
    task: _Task


def find_nodes(environment: Mapping[str, str], resources: ResourcesSection) -> Nodes:
    """Return this machine's number in the job, and the first machine's address.

    Raises:
        ConfigError: The environment is malformed, or contradicts itself or the configuration.
    """
    variables = [name for name in PLATFORM_VARIABLES if environment.get(name)]
    if "CLUSTER_SPEC" in variables:
        if len(variables) > 1:
            raise _contradiction(f"{' and '.join(variables)} are set", "unset CLUSTER_SPEC outside of Vertex AI")
        nodes = _from_cluster_spec(environment, resources)
    elif "PET_NNODES" in variables or "PET_NODE_RANK" in variables:
        # Kubeflow runs its machines as an Indexed Job: PET_* has all of it.
        nodes = _from_variables("torchrun", "PET_NODE_RANK", "PET_", environment, resources)
    elif variables:
        nodes = _from_variables("indexed job", "JOB_COMPLETION_INDEX", "", environment, resources)
    else:
        nodes = _alone(environment, resources)
    if resources.nodes not in ("auto", nodes.nodes):
        raise _contradiction(
            f"resources.nodes = {resources.nodes}, and the environment ({nodes.platform}) has {nodes.nodes}",
            "set resources.nodes to auto, or start that many machines",
        )
    return nodes


def without_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the rank variables of torchrun and the platform."""
    dropped = {name for name in environment if name in _RANK_VARIABLES or name.startswith(_RANK_PREFIXES)}
    return {name: value for name, value in environment.items() if name not in dropped}


def find_interface(address: str) -> str | None:
    """Return the network interface with this IPv4 address; None if there is none, or not on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                response = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            if socket.inet_ntoa(response[20:24]) == address:
                return name
    return None


def _from_cluster_spec(environment: Mapping[str, str], resources: ResourcesSection) -> Nodes:
    text = environment["CLUSTER_SPEC"]
    try:
        spec = _ClusterSpec.model_validate_json(text)
        (first,) = spec.cluster["workerpool0"]
        endpoint = urlsplit(f"//{first}")
        # Google's launchers use this port too.
        host, port = endpoint.hostname or "", endpoint.port or resources.port
        pools = {"workerpool0": [first], "workerpool1": spec.cluster.get("workerpool1", [])}
        pool, index = spec.task.type, spec.task.index
        if index >= len(pools.get(pool, [0])):
            raise ValueError(f"task index {index} of {pool}")
    except (ValidationError, ValueError, KeyError) as error:
        raise ConfigError(
            f"CLUSTER_SPEC is not what Vertex AI writes ({str(error).splitlines()[0]}): {text[:200]}",
            allowed='{"cluster": {"workerpool0": ["HOST:PORT"], ...}, "task": {"type": "workerpool0", "index": 0}}, '
            "with one machine in workerpool0: the others are in the second worker pool",
            todo="unset CLUSTER_SPEC outside of Vertex AI",
        ) from None
    if pool not in pools:
        raise ConfigError(
            f"this machine is of {pool} (CLUSTER_SPEC), which takes no part in training",
            allowed="workerpool0 and workerpool1",
            todo="run this command in the first and the second worker pool only",
        )
    node_rank = 0 if pool == "workerpool0" else index + 1
    return Nodes(node_rank, 1 + len(pools["workerpool1"]), host, port, "vertex", _job_id(environment))


def _from_variables(
    platform: Platform, rank_name: str, prefix: str, environment: Mapping[str, str], resources: ResourcesSection
) -> Nodes:
    """Return this machine from its number `rank_name`; `prefix` is that of MASTER_ADDR, empty for an Indexed Job."""
    if prefix:
        nodes = _number("PET_NNODES", environment, resources.nodes, at_least=1)
    elif resources.nodes != "auto":
        nodes = resources.nodes
    else:
        raise _contradiction(
            f"{rank_name} is set, and nothing says how many machines there are",
            "set resources.nodes to the Job's completions",
        )
    node_rank = _number(rank_name, environment, 0 if nodes == 1 else "auto", at_least=0)
    host = environment.get(f"{prefix}MASTER_ADDR", "")
    if node_rank >= nodes or (nodes > 1 and not host):
        raise _contradiction(
            f"{rank_name}={node_rank} of {nodes} machines" + ("" if host else f" and no {prefix}MASTER_ADDR"),
            f"number the machines from 0, and set {prefix}MASTER_ADDR to the first machine's name (of an Indexed Job "
            "JOB-0.SERVICE, SERVICE being the headless service that the Job's subdomain names)",
        )
    # Kubernetes sets MASTER_PORT to a URL where a service is called master.
    port = _number("PET_MASTER_PORT", environment, resources.port, at_least=1) if prefix else resources.port
    return Nodes(node_rank, nodes, host, port, platform, _job_id(environment))


def _alone(environment: Mapping[str, str], resources: ResourcesSection) -> Nodes:
    world_size = environment.get("WORLD_SIZE", "1")
    if world_size not in ("", "1") and "MASTER_ADDR" in environment:
        raise _contradiction(
            f"WORLD_SIZE={world_size} and MASTER_ADDR are set, but neither CLUSTER_SPEC, PET_NNODES nor "
            "JOB_COMPLETION_INDEX says which machine this is",
            "set PET_NNODES, PET_NODE_RANK and PET_MASTER_ADDR, or unset WORLD_SIZE to train on this machine alone",
        )
    return Nodes(0, 1, "", resources.port, "local", _job_id(environment))


def _job_id(environment: Mapping[str, str]) -> str:
    job_id = environment.get(JOB_ID_VARIABLE) or environment.get("SHARDLINE_JOB_ID") or ""
    # The id becomes a folder name.
    return re.sub(r"[^A-Za-z0-9._-]", "-", job_id)[:128].lstrip(".")


def _number(name: str, environment: Mapping[str, str], default: int | Auto, *, at_least: int) -> int:
    """Return the number in a variable; `auto`: it has no default."""
    text = environment.get(name, "") or ("" if default == "auto" else str(default))
    if not text.isdecimal() or int(text) < at_least:
        raise ConfigError(
            f"{name}={text!r}" if text else f"{name} is not set",
            allowed=f"a whole number, {at_least} or more",
            todo=f"correct {name}, or set resources.nodes where the environment lacks the number of machines",
        )
    return int(text)


def _contradiction(problem: str, todo: str) -> ConfigError:
    allowed = "one machine, or an environment that says which of how many this is (docs/launch.md)"
    return ConfigError(problem, allowed=allowed, todo=todo)
