"""Launchers of several machines meet, start together and end together; here they are threads, without ranks."""

import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.config import ResourcesSection
from contracts.errors import ConfigError, ErrorDocument, ForwardedError, TryAgain
from tests.trainer.launch.machines import make_assignment
from trainer.launch import rendezvous
from trainer.launch.attempts import JobRecord
from trainer.launch.launcher import Launcher, StoreAddress
from trainer.launch.nodes import Nodes

LIMIT_S = 60
BAD = ErrorDocument.of(ConfigError("given", allowed="allowed", todo="todo"))
LOST = ErrorDocument.of(TryAgain("a peer is gone"))
FULL = ErrorDocument(kind="OutOfMemory", exit_code=75, message="no memory", step=5)


class Machine(Launcher):
    """A launcher whose starts end as a list says; None: training is finished."""

    ends: list[ErrorDocument | None]
    starts: list[tuple[str, str]]

    def run_start(
        self, attempt: str, address: StoreAddress, *, must_stop: Callable[[], bool] = lambda: False
    ) -> ErrorDocument | None:
        assert address.port and (address.listener is None) == (self.nodes.node_rank > 0)
        if address.listener is not None:
            address.listener.close()
        self.starts.append((attempt, address.host))
        return self.ends.pop(0)


@pytest.fixture
def machines(port: int, tmp_path: Path) -> Callable[..., Machine]:
    def make(node: int, *ends: ErrorDocument | None, folder: str = "out", **changes: Any) -> Machine:
        place = storage.normalise(tmp_path / folder)
        (tmp_path / folder).mkdir(exist_ok=True)
        assignment = make_assignment(
            tmp_path,
            folder=place,
            fingerprint=changes.pop("fingerprint", "f"),
            attempt=f"attempt-{node}",
            ranks=1,
            nodes=2,
            node_rank=node,
        )
        # Limits may be shorter than anybody may set them.
        section = ResourcesSection().model_copy(update={"setup_timeout_s": LIMIT_S, **changes})
        nodes = Nodes(node, 2, "localhost", port, "vertex", "job-1")
        machine = Machine(assignment, nodes, section, JobRecord(place, "job-1"), print)
        machine.ends, machine.starts = list(ends), []
        return machine

    return make


def run(*machines: Machine) -> list[Future[None]]:
    """Run the launchers side by side to their ends."""
    with ThreadPoolExecutor(len(machines)) as pool:
        return [pool.submit(rendezvous.run_together, machine) for machine in machines]


def test_all_start_together_with_the_first_machines_attempt_until_training_is_finished(machines: Any) -> None:
    first, second = machines(0, LOST, None), machines(1, LOST, None)
    assert [future.exception(LIMIT_S) for future in run(second, first)] == [None, None]
    assert first.starts == second.starts == [("attempt-0", "localhost")] * 2
    assert first.record.read().fruitless == 2


@pytest.mark.parametrize(
    ("first", "second", "message", "code"),
    [
        ([LOST], [BAD], BAD.message, 2),
        # Two in a row at a step are final, whichever machine it was and whoever recorded the loss of a peer first.
        ([LOST, LOST], [FULL, FULL], "no memory", 2),
        ([LOST, LOST], [LOST, LOST], "2 attempts in a row have left no new checkpoint", 70),
    ],
)
def test_what_is_final_on_one_machine_ends_all(
    machines: Any, first: list[Any], second: list[Any], message: str, code: int
) -> None:
    both = [machines(node, *ends, max_attempts=2) for node, ends in enumerate((first, second))]
    for future in run(*both):
        error = future.exception(LIMIT_S)
        assert isinstance(error, ForwardedError), error
        assert message in str(error) and error.exit_code == code


def test_a_machine_that_never_comes(machines: Any) -> None:
    (alone,) = run(machines(0, setup_timeout_s=2))
    error = alone.exception(LIMIT_S)
    assert isinstance(error, TryAgain)
    assert "not all 2 machines came within 2 s (resources.setup_timeout_s): machine 1 was never seen" in str(error)


def test_a_launcher_of_another_job_is_refused_and_disturbs_none(machines: Any) -> None:
    first, second, other = machines(0, LOST, None), machines(1, LOST, None), machines(1, fingerprint="g")
    *both, refused = run(first, second, other)
    assert isinstance(refused.exception(LIMIT_S), ConfigError)
    assert "this launcher is machine 1 of job-1 (training g" in str(refused.exception())
    assert [future.exception(LIMIT_S) for future in both] == [None, None]


@pytest.mark.parametrize(("has_begun", "code"), [(False, 2), (True, 75)])
def test_machines_with_outputs_of_their_own(
    machines: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_begun: bool, code: int
) -> None:
    """They end the job before it begins; a mount that is missing later ends one machine for another attempt."""
    monkeypatch.setattr(rendezvous, "OUTPUT_TIMEOUT_S", 0.2)
    if has_begun:
        (tmp_path / "out" / "checkpoints" / "step-00000001.000001").mkdir(parents=True)
    first, second = run(machines(0, setup_timeout_s=2), machines(1, folder="its own"))
    error = second.exception(LIMIT_S)
    assert "machine 1 does not share its output with the first machine" in str(error)
    assert getattr(error, "exit_code", 0) == code
    assert getattr(first.exception(LIMIT_S), "exit_code", 0) == code


def test_a_port_of_another_process_is_a_user_error(machines: Any, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_PORT_TIMEOUT_S", "STOP_SLACK_S"):
        monkeypatch.setattr(rendezvous, limit, 0.1)
    with socket.create_server(("", port)):
        (refused,) = run(machines(0, stop_budget_s=1))
    assert isinstance(refused.exception(LIMIT_S), ConfigError)
    assert f"port {port} of this machine" in str(refused.exception())
