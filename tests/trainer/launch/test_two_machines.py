"""Two launchers with a golden CLUSTER_SPEC train together, and recover from losing either."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import CheckpointManifest
from tests.conftest import small_config
from tests.trainer.launch.machines import Machine, network

pytestmark = [pytest.mark.line, pytest.mark.timeout(900)]

# One rank each, 200 steps: long enough for a kill to land in it.
CONFIG = small_config(
    train={"epochs": 40},
    checkpoint={"every_steps": 3},
    resources={"ranks": 1},
    model={"architecture": "models_for_tests:without_batchnorm", "arguments": {}},
)
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

    Its two ranks share the cores; a machine of two has one core, so that threads, which change the bits, are as many.
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


def test_losing_the_second_and_then_the_first_machine(pair: Pair, tmp_path: Path, undisturbed: str) -> None:
    first, second = pair(tmp_path)
    for machine in (first, second):
        machine.start()
    first.wait_for_step(20)
    second.kill()
    # Its platform starts it again.
    second.start()
    first.wait_for(lambda: first.num_starts() == 2)
    first.wait_for_step(first.newest_step() + 20)
    first.kill()
    assert second.process.poll() is None, "it waits for the first machine to come back"
    first.start()
    assert first.wait() == 0, first.stderr()
    assert second.wait() == 0, second.stderr()
    assert "the ranks start again" in (tmp_path / "stderr" / "machine0-0").read_text()
    assert "the first machine is gone" in second.stderr()
    assert "continues from" in first.logs()
    assert last_checkpoint(tmp_path).parameters_sha256 == undisturbed


def test_a_machine_that_is_gone_without_a_word(pair: Pair, tmp_path: Path) -> None:
    """Its cable is out: no process has ended, no connection was closed, and collectives would wait for minutes."""
    first, second = pair(tmp_path)
    if first.net is None or not first.net.hub:
        pytest.skip("no network namespaces here")
    for machine in (first, second):
        machine.start()
    first.wait_for_step(20)
    before = first.ranks()
    first.net.connect(1, "down")
    for machine in (first, second):
        machine.wait_for(lambda machine=machine: "is gone" in machine.logs())  # type: ignore[misc]
        machine.wait_for(lambda machine=machine: not machine.ranks())  # type: ignore[misc]
    assert before
    first.net.connect(1, "up")
    first.wait_for(lambda: first.num_starts() == 2)
    assert (first.wait(), second.wait()) == (0, 0), first.stderr()


def test_without_its_first_machine_a_launcher_waits_as_long_as_it_may(pair: Pair, tmp_path: Path) -> None:
    _, second = pair(tmp_path)
    second.config({"setup_timeout_s": 5})
    second.start()
    assert second.wait() == 75
    assert "did not answer within 5 s" in second.stderr()


def test_a_machine_told_to_stop_ends_with_75_and_the_other_waits_for_it(pair: Pair, tmp_path: Path) -> None:
    first, second = pair(tmp_path)
    for machine in (first, second):
        machine.start()
    first.wait_for_step(20)
    second.process.terminate()
    assert second.wait() == 75
    assert first.process.poll() is None
    second.start()
    assert (first.wait(), second.wait()) == (0, 0), first.stderr()


def test_a_user_error_on_one_machine_ends_all_and_later_attempts_of_the_job(pair: Pair, tmp_path: Path) -> None:
    first, second = pair(tmp_path)
    for machine in (first, second):
        # Only seen by the ranks, after their start.
        machine.config({}, train={"learning_rate": 1e30, "epochs": 3})
        machine.start(environment={"CLOUD_ML_JOB_ID": "job-1"})
    assert (first.wait(), second.wait()) == (2, 2), first.stderr()
    for machine in (first, second):
        machine.start(environment={"CLOUD_ML_JOB_ID": "job-1"})
        assert machine.wait() == 2
        assert "an earlier attempt of job job-1 has ended it: the gradients were not finite" in machine.stderr()
        assert machine.num_starts() == 0
