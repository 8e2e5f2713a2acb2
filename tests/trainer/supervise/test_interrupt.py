"""Ctrl-C in a terminal that runs the training stage: a stop as agreed, that a user asked for."""

import os
import signal
import time
from pathlib import Path

import pytest

from contracts.goodput import account
from tests.trainer.launch.machines import kill
from tests.trainer.supervise.test_signals import Job, check_agreed, slow_config
from tests.trainer.test_task import events
from trainer.supervise.account import Sections
from trainer.supervise.stop import RankExit, SignalReceiver, StopRequest, ignore_stop_signals


def test_a_rank_hears_it_and_its_loader_processes_do_not() -> None:
    stop = StopRequest()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    receiver = SignalReceiver(stop, Sections(), budget_s=60, rank_exit=RankExit(lambda document: None))
    # What is told after the end changes nothing but this.
    receiver.close()
    try:
        os.kill(os.getpid(), signal.SIGINT)
        deadline = time.monotonic() + 30
        while not stop.wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        assert stop.wanted.words == "SIGINT"
        ignore_stop_signals()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)


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
    (told,) = job.told("interrupted")
    assert told["signal"] == "SIGINT", "no platform sends it, wherever this runs"
