"""From golden environments to a machine's place."""

import json
from typing import Any

import pytest

from contracts.config.resources import ResourcesSection
from contracts.errors import ConfigError
from trainer.launch.nodes import Nodes, find_nodes, without_ranks

# As Vertex AI sets them: per machine, and of no use to ranks.
LEAK = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "cmle-training-workerpool0-0", "MASTER_PORT": "2222"}


def cluster_spec(workers: int, pool: str, index: int, **more: Any) -> dict[str, str]:
    """CLUSTER_SPEC and its companions, in the form of Vertex AI's documentation."""
    cluster = {"workerpool0": ["cmle-training-workerpool0-ab12-0:2222"]}
    if workers:
        cluster["workerpool1"] = [f"cmle-training-workerpool1-ab12-{number}:2222" for number in range(workers)]
    cluster |= more.pop("pools", {})
    task = {"type": pool, "index": index, "trial": "7f5a"}
    spec = {"cluster": cluster, "environment": "cloud", "task": task, "job": '{"python_module":""}', **more}
    return {"CLUSTER_SPEC": json.dumps(spec), "CLOUD_ML_JOB_ID": "6712093442", **LEAK}


def vertex(node_rank: int, nodes: int) -> Nodes:
    return Nodes(node_rank, nodes, "cmle-training-workerpool0-ab12-0", 2222, "vertex", "6712093442")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (cluster_spec(0, "workerpool0", 0), vertex(0, 1)),
        (cluster_spec(3, "workerpool1", 2), vertex(3, 4)),
        (cluster_spec(1, "workerpool1", 0, pools={"workerpool2": ["r0:1", "r1:1"]}), vertex(1, 2)),
    ],
)
def test_cluster_spec(environment: dict[str, str], expected: Nodes) -> None:
    assert find_nodes(environment, ResourcesSection()) == expected


def test_machines_meet_at_the_port_of_the_cluster_spec() -> None:
    for endpoint, place in (("worker-0", ("worker-0", 29500)), ("[fd00::1]:2223", ("fd00::1", 2223))):
        found = find_nodes(cluster_spec(0, "workerpool0", 0, pools={"workerpool0": [endpoint]}), ResourcesSection())
        assert (found.host, found.port) == place


KUBEFLOW = {
    "PET_NNODES": "4",
    "PET_NODE_RANK": "2",
    "PET_NPROC_PER_NODE": "8",
    "PET_MASTER_ADDR": "train-node-0-0.train",
    "PET_MASTER_PORT": "29400",
}


@pytest.mark.parametrize(
    ("environment", "resources", "expected"),
    [
        # Kubeflow's machines are an Indexed Job.
        ({**KUBEFLOW, "JOB_COMPLETION_INDEX": "2"}, {}, Nodes(2, 4, "train-node-0-0.train", 29400, "torchrun", "")),
        ({"PET_NNODES": "1", "SHARDLINE_JOB_ID": "mine"}, {}, Nodes(0, 1, "", 29500, "torchrun", "mine")),
        (
            {"JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "train-0.train", "SHARDLINE_JOB_ID": "uid/1"},
            {"nodes": 2},
            Nodes(1, 2, "train-0.train", 29500, "indexed job", "uid-1"),
        ),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "x"}, {"nodes": 1}, Nodes(0, 1, "", 29500, "local", "")),
    ],
)
def test_other_environments(environment: dict[str, str], resources: dict[str, Any], expected: Nodes) -> None:
    assert find_nodes(environment, ResourcesSection(**resources)) == expected


@pytest.mark.parametrize(
    ("environment", "resources", "words"),
    [
        ({"CLUSTER_SPEC": "{"}, {}, "CLUSTER_SPEC is not what Vertex AI writes"),
        (cluster_spec(1, "workerpool2", 0), {}, "workerpool2"),
        (cluster_spec(1, "workerpool0", 0, pools={"workerpool0": ["a:1", "b:1"]}), {}, "not what Vertex AI writes"),
        (cluster_spec(1, "workerpool0", 0), {"nodes": 4}, "resources.nodes = 4"),
        ({**cluster_spec(1, "workerpool0", 0), **KUBEFLOW}, {}, "CLUSTER_SPEC and PET_NNODES"),
        ({**KUBEFLOW, "PET_NNODES": "2:4"}, {}, "PET_NNODES='2:4'"),
        ({**KUBEFLOW, "PET_NODE_RANK": "4"}, {}, "PET_NODE_RANK=4 of 4"),
        ({**KUBEFLOW, "PET_MASTER_ADDR": ""}, {}, "no PET_MASTER_ADDR"),
        ({"JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "a", "NNODES": "2"}, {}, "nothing says how many machines"),
        ({"JOB_COMPLETION_INDEX": "1"}, {"nodes": 2}, "no MASTER_ADDR"),
        (LEAK, {}, "WORLD_SIZE=2"),
    ],
)
def test_what_contradicts_itself_is_refused(environment: dict[str, str], resources: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find_nodes(environment, ResourcesSection(**resources))
    assert words in refused.value.given
    assert refused.value.exit_code == 2


def test_nothing_of_the_environments_ranks_reaches_the_ranks() -> None:
    rest = {"PATH": "/bin", "CLUSTER_SPEC": "{}", "CLOUD_ML_JOB_ID": "1", "NCCL_DEBUG": "INFO"}
    leaking = {**LEAK, **KUBEFLOW, "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "1", "GROUP_RANK": "1"}
    assert without_ranks({**rest, **leaking}) == rest
