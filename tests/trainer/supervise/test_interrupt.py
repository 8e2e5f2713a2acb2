"""Ctrl-C in a terminal that runs the training stage: a stop as agreed, that a user asked for."""

import signal
from pathlib import Path

import pytest

from contracts.goodput import account
from tests.trainer.launch.machines import kill
from tests.trainer.supervise.test_signals import Job, check_agreed, slow_config
from tests.trainer.test_task import events


@pytest.mark.slow
def test_ctrl_c_saves_what_all_ranks_have_come_to(small_shards: str, tmp_path: Path) -> None:
    job = Job(tmp_path, small_shards, slow_config(data={"num_workers": 1}))
    job.wait_for_step(5)
    # A terminal sends it to all that runs in the foreground, loader processes too.
    # Those that are told later may have ended by then.
    kill([job.process.pid, *job.family], signal.SIGINT)
    assert job.end() == 75
    step = check_agreed(job, "SIGINT")
    assert "stopped by SIGINT" in job.error.message
    found = account([events(tmp_path, "a")])
    assert (found.interruptions, found.preemptions, found.steps, found.lost_steps) == (1, 0, step, 0)
    (event,) = job.told("interrupted")
    assert event["signal"] == "SIGINT", "no platform sends it, wherever this runs"
