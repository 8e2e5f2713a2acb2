"""Ctrl-C in a terminal that runs the training stage: a stop as agreed, that a user asked for."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch.distributed.run as torch_run

from contracts import storage
from contracts.config import ResourcesSection
from contracts.errors import ErrorDocument, Preempted, ShardlineError
from contracts.goodput import account
from tests.trainer.launch.machines import kill
from tests.trainer.supervise.test_signals import Job, check_agreed, slow_config
from tests.trainer.test_task import events
from trainer.launch import agent, generations
from trainer.launch.assignment import Assignment
from trainer.launch.attempts import JobRecord
from trainer.launch.generations import Launcher, run_ranks
from trainer.launch.nodes import find_nodes
from trainer.supervise.sections import Sections
from trainer.supervise.signals import RankExit, SignalReceiver, StopRequest, ignore_stop_signals


def launcher_of(tmp_path: Path, **resources: float) -> Launcher:
    folder = storage.normalise(tmp_path)
    assignment = Assignment(
        config={},
        shards="file:///shards",
        profile=None,
        folder=folder,
        fingerprint="f",
        made_from={},
        attempt="a",
        attempt_folder=str(tmp_path),
        ranks=2,
        threads=1,
    )
    section = ResourcesSection.model_validate(resources)
    return Launcher(assignment, find_nodes({}, section), section, JobRecord(folder, ""), print)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_launcher_ends_its_ranks_in_agreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    launcher = launcher_of(tmp_path)

    def interrupted(launcher: Launcher, generation: int, attempt: str) -> ErrorDocument:
        os.kill(os.getpid(), number)
        return ErrorDocument.of(launcher.stop.reason())

    monkeypatch.setattr(generations, "run_generation", interrupted)
    with pytest.raises(Preempted, match=rf"told to stop \({number.name}\)"):
        run_ranks(launcher)


def test_torchrun_hears_the_launcher_alone_and_waits_as_long_as_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two keys at a terminal, and the launcher's SIGTERM, made it leave its ranks before they had saved."""
    given: dict[str, str] = {}

    class Process:
        returncode, pid = 0, 0

        def __init__(self, command: list[str], env: dict[str, str], **options: object) -> None:
            given.update(env)

        def wait(self, timeout: float) -> None:
            pass

    monkeypatch.setattr(subprocess, "Popen", Process)
    generations.run_generation(launcher_of(tmp_path, stop_budget_s=120), 0, "a")
    assert "SIGINT" not in given["PET_SIGNALS_TO_HANDLE"]
    # The launcher kills them itself; torchrun by itself would after 30 s.
    assert int(given["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) > 120 + generations.STOP_SLACK_S
    monkeypatch.undo()
    for name in ("PET_SIGNALS_TO_HANDLE", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"):
        monkeypatch.setenv(name, given[name])
    heard: list[tuple[object, str]] = []
    monkeypatch.setattr(
        torch_run,
        "main",
        lambda arguments: heard.append(
            (signal.getsignal(signal.SIGINT), torch_run.parse_args(arguments).signals_to_handle)
        ),
    )
    monkeypatch.setattr(agent, "end_with_parent", lambda: None)
    before = signal.getsignal(signal.SIGINT)
    try:
        agent.main([str(os.getppid()), "script"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [(signal.SIG_IGN, given["PET_SIGNALS_TO_HANDLE"])]


def test_a_rank_hears_it_and_its_loader_processes_do_not() -> None:
    stop = StopRequest()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    receiver = SignalReceiver(
        stop, Sections(), budget_s=60, explain=ShardlineError, rank_exit=RankExit(lambda document: None)
    )
    # What is told after the end changes nothing but this.
    receiver.close()
    try:
        os.kill(os.getpid(), signal.SIGINT)
        deadline = time.monotonic() + 30
        while not stop.wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (stop.wanted.words, stop.wanted.is_preemption) == ("SIGINT", True)
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
    # The launcher tells the ranks by SIGTERM too.
    step = check_agreed(job, "SIG")
    assert "told to stop (SIGINT)" in job.error.message
    found = account([events(tmp_path, "a")])
    assert (found.interruptions, found.preemptions, found.steps, found.lost_steps) == (1, 0, step, 0)
    (told,) = job.told("interrupted")
    assert told["signal"] == "SIGINT", "no platform sends it, wherever this runs"
