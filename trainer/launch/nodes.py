"""From the environment of a machine to its place among the machines of a job.

Three environments are known, and none of them is believed in more than it says:

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
import json
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from contracts.config.resources import ResourcesSection
from contracts.errors import ConfigError
from contracts.process import JOB_ID_VARIABLE

Platform = Literal["vertex", "torchrun", "indexed job", "local"]

# By one of these a platform says which machine this is.
PLATFORM_VARIABLES = ("CLUSTER_SPEC", "PET_NNODES", "PET_NODE_RANK", "JOB_COMPLETION_INDEX")
# What torchrun or a platform sets for ranks, and torchrun's own flags by environment (PET_*): none of it may reach the
# ranks that are started here.
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
    # Vertex AI adds fields as it likes.
    model_config = ConfigDict(extra="ignore")

    cluster: dict[str, list[str]]
    task: _Task


def find_nodes(environment: Mapping[str, str], resources: ResourcesSection) -> Nodes:
    """Return this machine's place.

    Args:
        environment: Environment variables.
        resources: The configuration's section: nodes, ranks, port and job_id.

    Raises:
        ConfigError: The environment is malformed, or contradicts itself or the configuration.
    """
    claims = [find(environment, resources) for find in (_from_cluster_spec, _from_torchrun, _from_indexed_job)]
    found = [nodes for nodes in claims if nodes is not None]
    places = {(nodes.node_rank, nodes.nodes) for nodes in found}
    if len(places) > 1:
        said = ", ".join(f"{nodes.platform} says node {nodes.node_rank} of {nodes.nodes}" for nodes in found)
        raise _contradiction(said, "set only one of CLUSTER_SPEC, PET_* and JOB_COMPLETION_INDEX, or make them agree")
    nodes = found[0] if found else _alone(environment, resources)
    if resources.nodes not in ("auto", nodes.nodes):
        raise _contradiction(
            f"resources.nodes = {resources.nodes}, and the environment ({nodes.platform}) has {nodes.nodes}",
            "set resources.nodes to auto, or start that many machines",
        )
    return nodes


def without_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what belongs to another torchrun, or to a platform's idea of ranks."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _RANK_VARIABLES and not name.startswith(_RANK_PREFIXES)
    }


def find_interface(address: str) -> str | None:
    """Return the network interface that has an IPv4 address; None where there is none, or not on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def _from_cluster_spec(environment: Mapping[str, str], resources: ResourcesSection) -> Nodes | None:
    text = environment.get("CLUSTER_SPEC")
    if not text:
        return None
    try:
        spec = _ClusterSpec.model_validate(json.loads(text))
    except (json.JSONDecodeError, ValidationError) as error:
        raise ConfigError(
            f"CLUSTER_SPEC is not what Vertex AI writes ({str(error).splitlines()[0]}): {text[:200]}",
            allowed='{"cluster": {"workerpool0": ["HOST:PORT"], ...}, "task": {"type": "workerpool0", "index": 0}}',
            todo="unset CLUSTER_SPEC outside of Vertex AI",
        ) from None
    first = spec.cluster.get("workerpool0", [])
    if len(first) != 1:
        raise ConfigError(
            f"CLUSTER_SPEC has {len(first)} machines in workerpool0",
            allowed="one: replicaCount of the first worker pool is 1, the others are in the second",
            todo="put all machines but the first into the second worker pool",
        )
    pools = {"workerpool0": first, "workerpool1": spec.cluster.get("workerpool1", [])}
    pool = pools.get(spec.task.type)
    if pool is None:
        raise ConfigError(
            f"this machine is of {spec.task.type} (CLUSTER_SPEC), which takes no part in training",
            allowed="workerpool0 and workerpool1",
            todo="run this command in the first and the second worker pool only",
        )
    if spec.task.index >= len(pool):
        raise _contradiction(
            f"CLUSTER_SPEC: task index {spec.task.index} in {spec.task.type} of {len(pool)} machines",
            "unset CLUSTER_SPEC outside of Vertex AI",
        )
    return Nodes(
        node_rank=0 if spec.task.type == "workerpool0" else spec.task.index + 1,
        nodes=1 + len(pools["workerpool1"]),
        host=_host(first[0]),
        # As Google's own launchers do. The ports above it are nobody's.
        port=_port(first[0], resources.port),
        platform="vertex",
        job_id=_job_id(environment),
    )


def _from_torchrun(environment: Mapping[str, str], resources: ResourcesSection) -> Nodes | None:
    text = environment.get("PET_NNODES")
    if text is None:
        if "PET_NODE_RANK" in environment:
            raise _contradiction("PET_NODE_RANK without PET_NNODES", "set PET_NNODES to the number of machines")
        return None
    smallest, _, largest = text.partition(":")
    nodes = _number("PET_NNODES", smallest, at_least=1)
    if largest and _number("PET_NNODES", largest, at_least=1) != nodes:
        raise ConfigError(
            f"PET_NNODES={text}: a range of machines",
            allowed="one number: a job's machines are known when it starts; a later attempt may have others",
            todo="set it to the number of machines",
        )
    node_rank = _number("PET_NODE_RANK", environment.get("PET_NODE_RANK", "0" if nodes == 1 else ""), at_least=0)
    _check_place("PET_NODE_RANK", node_rank, nodes)
    ranks = environment.get("PET_NPROC_PER_NODE", "auto")
    if ranks.isdecimal() and resources.ranks not in ("auto", int(ranks)):
        raise _contradiction(
            f"PET_NPROC_PER_NODE={ranks}, and resources.ranks = {resources.ranks}", "make them agree, or unset one"
        )
    endpoint = environment.get("PET_MASTER_ADDR") or _host(environment.get("PET_RDZV_ENDPOINT", ""))
    if nodes > 1 and not endpoint:
        raise _contradiction(
            f"PET_NNODES={nodes} and no PET_MASTER_ADDR", "set PET_MASTER_ADDR to the first machine's name"
        )
    port = environment.get("PET_MASTER_PORT")
    return Nodes(
        node_rank=node_rank,
        nodes=nodes,
        host=endpoint,
        port=resources.port if port is None else _number("PET_MASTER_PORT", port, at_least=1),
        platform="torchrun",
        job_id=_job_id(environment),
    )


def _from_indexed_job(environment: Mapping[str, str], resources: ResourcesSection) -> Nodes | None:
    text = environment.get("JOB_COMPLETION_INDEX")
    if text is None:
        return None
    index = _number("JOB_COMPLETION_INDEX", text, at_least=0)
    if "PET_NNODES" in environment and resources.nodes == "auto":
        # Kubeflow runs its machines as an Indexed Job: PET_* says the rest.
        nodes, host = _number("PET_NNODES", environment["PET_NNODES"].partition(":")[0], at_least=1), ""
    elif resources.nodes == "auto":
        raise _contradiction(
            f"JOB_COMPLETION_INDEX={index}, and nothing says how many machines there are",
            "set resources.nodes to the Job's completions",
        )
    else:
        nodes, host = resources.nodes, environment.get("MASTER_ADDR", "")
    _check_place("JOB_COMPLETION_INDEX", index, nodes)
    if nodes > 1 and not host and "PET_NNODES" not in environment:
        raise _contradiction(
            f"JOB_COMPLETION_INDEX={index} of {nodes} and no MASTER_ADDR",
            "set MASTER_ADDR to JOB-0.SERVICE, SERVICE being the headless service that the Job's subdomain names",
        )
    return Nodes(index, nodes, host, resources.port, "indexed job", _job_id(environment))


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
    given = environment.get(JOB_ID_VARIABLE) or environment.get("SHARDLINE_JOB_ID") or ""
    # It becomes the name of a folder.
    return "".join(_safe(given))[:128].lstrip(".")


def _safe(text: str) -> Iterator[str]:
    for letter in text:
        yield letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-"


def _host(endpoint: str) -> str:
    """Return HOST of HOST:PORT, [ADDRESS]:PORT or HOST."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    return endpoint.rpartition(":")[0] if endpoint.count(":") == 1 else endpoint


def _port(endpoint: str, default: int) -> int:
    """Return PORT of what `_host` takes; the default where it has none."""
    text = endpoint.removesuffix(_host(endpoint)) and endpoint.rpartition(":")[2].rpartition("]")[2]
    return _number("the port in CLUSTER_SPEC", text, at_least=1) if text else default


def _number(name: str, text: str, *, at_least: int) -> int:
    if not text.isdecimal() or int(text) < at_least:
        raise ConfigError(
            f"{name}={text!r}" if text else f"{name} is not set",
            allowed=f"a whole number, {at_least} or more",
            todo=f"correct {name}",
        )
    return int(text)


def _check_place(name: str, node_rank: int, nodes: int) -> None:
    if node_rank >= nodes:
        raise _contradiction(f"{name}={node_rank} of {nodes} machines", "number the machines from 0")


def _contradiction(given: str, todo: str) -> ConfigError:
    return ConfigError(
        given, allowed="one machine, or an environment that says which of how many this is (docs/launch.md)", todo=todo
    )
