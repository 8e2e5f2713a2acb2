"""Two launchers with a golden CLUSTER_SPEC train together, and recover from losing either."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import CheckpointManifest
from tests.conftest import small_config
from tests.trainer.launch.machines import Machine, Network, network

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# One rank each, 200 steps: long enough for a kill to land in it.
CONFIG = small_config(train={"epochs": 40}, checkpoint={"every_steps": 3}, resources={"ranks": 1})
Pair = Callable[[Path], list[Machine]]


@pytest.fixture
def pair(port: int, small_shards: str) -> Iterator[Pair]:
    with network(port, 2) as net:
        made: list[Machine] = []

        def machines(root: Path) -> list[Machine]:
            made.extend(Machine(root, small_shards, CONFIG, node=node, net=net) for node in range(2))
            return made[-2:]

        yield machines
        for machine in made:
            machine.end()


@pytest.fixture(scope="module")
def undisturbed(small_shards: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Hash of the parameters after an undisturbed training of two ranks on one machine.

    A rank alone on its machine has all its cores for threads; here two share them, as they do in two namespaces.
    """
    root = tmp_path_factory.mktemp("undisturbed")
    machine = Machine(root, small_shards, {**CONFIG, "resources": {"ranks": 2}})
    machine.start()
    assert machine.wait() == 0, machine.stderr()
    return last_checkpoint(root).parameters_sha256


def last_checkpoint(root: Path) -> CheckpointManifest:
    return CheckpointManifest.load(storage.normalise(max(root.glob("*/checkpoints/*/manifest.json"))))


def test_two_machines_train_together(pair: Pair, tmp_path: Path) -> None:
    first, second = pair(tmp_path)
    second.start()
    first.start()
    assert first.wait() == 0, first.stderr()
    assert second.wait() == 0, second.stderr()
    assert "machine 1 of 2 (vertex), 1 ranks" in second.logs()
    assert last_checkpoint(tmp_path).environment["ranks"] == "2"
