"""Ranks are killed at random times, again and again: each time all start together, and nothing hangs."""

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import small_config
from tests.trainer.launch.machines import LIMIT_S, Machine, kill

# Far longer than any test: none ends by itself.
LONG: dict[str, dict[str, Any]] = {
    "train": {"epochs": 4000},
    "checkpoint": {"every_steps": 3},
    # Ranks start sooner than with one of transformers.
    "model": {"architecture": "models_for_tests:without_batchnorm", "arguments": {}},
}


@pytest.fixture
def machine(small_shards: str, tmp_path: Path) -> Iterator[Machine]:
    # Kills before the first checkpoint are many here; how many are too many is another test's.
    config = small_config(**LONG, resources={"max_attempts": 1000})
    made = Machine(tmp_path, small_shards, config)
    yield made
    made.end()


def kill_at_random_times(machine: Machine, times: int, seed: int) -> list[str]:
    """Kill a rank so many times: as it starts, joins, restores or trains; return what each kill has met.

    The moments are drawn within what a start took so far, not in seconds: on a busy machine all takes longer.
    """
    draw = random.Random(seed)
    met = []
    machine.wait_for(lambda: len(machine.ranks()) == 2)
    begun = time.monotonic()
    machine.wait_for(lambda: machine.num_starts() == 1)
    start_s = time.monotonic() - begun
    kill(last := machine.ranks())
    for _ in range(times):
        deadline = time.monotonic() + LIMIT_S
        while len(new := [pid for pid in machine.ranks() if pid not in last]) < 2:
            assert machine.process.poll() is None, f"{met}\n{machine.stderr()[-3000:]}"
            assert time.monotonic() < deadline, f"no new ranks: {met}\n{machine.stderr()[-3000:]}"
            time.sleep(0.01)
        begun, starts, trains = time.monotonic(), machine.num_starts(), False
        # From the first import to well into training.
        moment = begun + draw.uniform(0, 1.5) * start_s
        while time.monotonic() < moment:
            if not trains and machine.num_starts() > starts:
                trains = True
                start_s = (start_s + time.monotonic() - begun) / 2
            time.sleep(0.01)
        assert machine.process.poll() is None, f"{met}\n{machine.stderr()[-3000:]}"
        met.append("training" if trains else f"{(time.monotonic() - begun) / start_s:.1f} of a start")
        # Of the last generation alone: numbers of processes are used again.
        last = new
        kill([draw.choice(new)])
    return met


def goes_on(machine: Machine) -> None:
    """Show that training goes on after the last kill."""
    starts = machine.num_starts()
    machine.wait_for(lambda: machine.num_starts() > starts)
    steps = machine.newest_step()
    machine.wait_for(lambda: machine.newest_step() > steps)


# Its own limit is that of a hang: a start takes 2 s on a quiet machine and 30 s on a busy one.
@pytest.mark.line
@pytest.mark.timeout(900)
def test_ten_restarts_in_a_row(machine: Machine) -> None:
    machine.start()
    kill_at_random_times(machine, 10, seed=random.randrange(1000))
    goes_on(machine)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_100_restarts_in_a_row(machine: Machine) -> None:
    machine.start()
    met = kill_at_random_times(machine, 100, seed=0)
    goes_on(machine)
    print(json.dumps(met))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stopped_rank_and_its_peers_are_killed_and_all_start_again(machine: Machine) -> None:
    """Nobody hears of a process that is stopped: its peers end by the limit of a step, it by the launcher."""
    machine.config({"hang_timeout_s": 5})
    machine.start()
    machine.wait_for_step(20)
    stopped = machine.ranks()
    os.kill(stopped[-1], signal.SIGSTOP)
    machine.wait_for(lambda: machine.num_starts() == 2)
    assert not any(Path(f"/proc/{pid}").exists() for pid in stopped)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_crash_loop_ends_with_the_job(small_shards: str, tmp_path: Path) -> None:
    """Ranks that die before the first checkpoint, by a kill each time; the next attempt of the job does not begin."""
    config = small_config(train={"epochs": 400}, resources={"max_attempts": 2})
    machine = Machine(tmp_path, small_shards, config)
    try:
        machine.start(environment={"SHARDLINE_JOB_ID": "job-1"})
        known: set[int] = set()
        for _ in range(2):
            while len(new := set(machine.ranks()) - known) < 2:
                assert machine.process.poll() is None, machine.stderr()
                time.sleep(0.01)
            known |= new
            kill(list(new))
        assert machine.wait() == 70
        assert "2 attempts in a row have left no new checkpoint (resources.max_attempts = 2)" in machine.stderr()
        machine.start(environment={"SHARDLINE_JOB_ID": "job-1"})
        assert machine.wait() == 70
        assert "an earlier attempt of job job-1 has ended it: 2 attempts in a row" in machine.stderr()
        machine.config({"max_attempts": 5}, train={"epochs": 1})
        machine.start(environment={"SHARDLINE_JOB_ID": "job-2"})
        assert machine.wait() == 0, machine.stderr()
    finally:
        machine.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_launcher_told_to_stop_ends_with_75_and_leaves_no_process(machine: Machine, number: signal.Signals) -> None:
    machine.start()
    machine.wait_for_step(20)
    family = machine.ranks()
    assert len(family) == 2
    machine.process.send_signal(number)
    assert machine.wait() == 75
    assert number.name in machine.stderr()
    assert not any(Path(f"/proc/{pid}").exists() for pid in family)
    machine.start()
    machine.wait_for(lambda: machine.num_starts() == 1)
    assert "continues from" in machine.logs()
