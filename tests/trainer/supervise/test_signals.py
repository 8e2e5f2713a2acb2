"""Stopping two gloo ranks with loader processes: agreed, in time, leaving nothing behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.artifacts import CheckpointManifest
from contracts.errors import ErrorDocument
from contracts.events import ERROR_NAME
from contracts.goodput import account
from tests.conftest import small_config
from tests.own_code.slowly import FOLDER_VARIABLE
from tests.trainer.launch.machines import descendants
from tests.trainer.test_task import command, events, last_checkpoint, logs, wait_for_step

# Steps of 0.1 s, of which the loader processes prepare 64 ahead: one that sleeps is not waited for at once.
SLOW = {"architecture": "slowly:SlowNetwork", "arguments": {"seconds": 0.05}}
DATA = {"num_workers": 2, "prefetch_factor": 64, "transform": "slowly:sleepy"}
PATIENT = {"stop_budget_s": 120}


def slow_config(**sections: dict[str, Any]) -> dict[str, Any]:
    changes = {"model": SLOW, "data": DATA, "train": {"epochs": 400}, "resources": PATIENT}
    for name, section in sections.items():
        changes[name] = {**changes.get(name, {}), **section}
    return small_config(**changes)


class Job:
    """A training stage under way."""

    def __init__(self, root: Path, shards: str, config: dict[str, Any], attempt: str = "a", **environment: str) -> None:
        self.root, self.attempt = root, attempt
        self.process = subprocess.Popen(
            command(root, shards, attempt, config),
            env={**os.environ, FOLDER_VARIABLE: str(root), **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.family: set[int] = set()

    def wait_for_step(self, step: int) -> None:
        wait_for_step(self.root, self.attempt, step)
        self.family |= set(descendants(self.process.pid))

    def put_a_loader_to_sleep(self) -> None:
        (self.root / "sleep").touch()
        wait_until((self.root / "asleep").exists)

    @property
    def ranks(self) -> list[int]:
        return sorted(pid for pid in self.family if parent(pid) == self.process.pid)

    def end(self) -> int:
        """Wait for the stage, and show that all it started is gone."""
        try:
            _, said = self.process.communicate(timeout=150)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail("it hangs")
        print(said)
        wait_until(lambda: not [pid for pid in self.family if is_running(pid)])
        return self.process.returncode

    def kill(self) -> None:
        for pid in [self.process.pid, *self.family]:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    @property
    def error(self) -> ErrorDocument:
        return ErrorDocument.model_validate_json((self.root / "attempts" / self.attempt / ERROR_NAME).read_bytes())

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in events(self.root, self.attempt) if event["event"] == kind]


def wait_until(happened: Callable[[], object], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_running(pid: int) -> bool:
    return bool(command_line(pid))


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def check_agreed(job: Job, cause: str) -> int:
    """Show that all ranks stopped as agreed at one step that is saved, and return it."""
    (stop,) = job.told("stop")
    assert cause in stop["cause"]
    assert stop["preempted"]
    assert last_checkpoint(job.root).step == stop["step"]
    assert job.told("checkpoint")[-1]["step"] == stop["step"], "the agreed stop's is told too"
    return int(stop["step"])


def test_sigterm_while_a_loader_sleeps(small_shards: str, tmp_path: Path) -> None:
    job = Job(tmp_path, small_shards, slow_config())
    job.wait_for_step(5)
    assert len(job.family) == 2 + 4, "two ranks, two loader processes each"
    job.put_a_loader_to_sleep()
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 75
    step = check_agreed(job, "SIGTERM")
    # No epoch ends there by rule, and no checkpoint is written but at the ends of epochs.
    assert 5 <= step < 2000
    assert not list(tmp_path.glob("*/manifest.json"))
    found = account([events(tmp_path, "a")])
    assert (found.interruptions, found.starts, found.steps, found.lost_steps) == (1, 1, step, 0)
    assert found.preemptions == 0, "nobody takes this machine away"


@pytest.mark.line
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("target", ["the launcher", "one rank", "all ranks", "everything"])
def test_a_signal_to(small_shards: str, tmp_path: Path, target: str, number: signal.Signals) -> None:
    if number == signal.SIGUSR1 and target in ("the launcher", "everything"):
        pytest.skip("SIGUSR1 is for ranks; it ends other processes at once")
    job = Job(tmp_path, small_shards, slow_config())
    job.wait_for_step(5)
    job.put_a_loader_to_sleep()
    targets = {
        "the launcher": [job.process.pid],
        "one rank": job.ranks[1:],
        "all ranks": job.ranks,
        "everything": [job.process.pid, *job.family],
    }
    for pid in targets[target]:
        os.kill(pid, number)
    assert job.end() == 75
    check_agreed(job, number.name)


@pytest.mark.line
def test_a_stop_changes_no_bit(small_shards: str, tmp_path: Path) -> None:
    """Stopped three times at whatever step, the last time at the end of an epoch, that is then not evaluated."""
    config = slow_config(train={"epochs": 8}, model={"arguments": {"seconds": 0.02}}, data={"prefetch_factor": 4})
    undisturbed = run_to_end(tmp_path / "undisturbed", small_shards, config)
    root = tmp_path / "disturbed"
    for attempt, step in (("a", 5), ("b", 15), ("c", 25)):
        job = Job(root, small_shards, config, attempt)
        job.wait_for_step(step)
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == 75
        check_agreed(job, "SIGTERM")
    disturbed = run_to_end(root, small_shards, config, "d")
    assert disturbed.parameters_sha256 == undisturbed.parameters_sha256
    assert disturbed.metrics == undisturbed.metrics
    assert disturbed.best_step == undisturbed.best_step
    found = account([events(root, attempt) for attempt in "abcd"])
    assert (found.interruptions, found.starts, found.steps, found.lost_steps) == (3, 4, 40, 0)


def run_to_end(root: Path, shards: str, config: dict[str, Any], attempt: str = "a") -> CheckpointManifest:
    job = Job(root, shards, config, attempt)
    assert job.end() == 0, logs(root, attempt)
    return last_checkpoint(root)


@pytest.mark.line
def test_ranks_that_cannot_agree_leave_all_the_same(small_shards: str, tmp_path: Path) -> None:
    """The loader that all wait for sleeps on: the budget is spent, and the newest checkpoint stands."""
    config = slow_config(data={"prefetch_factor": 1}, resources={"stop_budget_s": 2})
    job = Job(tmp_path, small_shards, config)
    job.wait_for_step(5)
    job.put_a_loader_to_sleep()
    # One rank waits for the loader, the other one for it.
    time.sleep(2)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 75
    assert "within 2 s (resources.stop_budget_s) the ranks did not save" in job.error.message
    assert job.told("stop") == []
    assert last_checkpoint(tmp_path).step % 5 == 0
