"""The machines of a job: starts, preemptions, and what is restarted by each rule, as processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from google.cloud import aiplatform_v1

from pipelines.rehearse.steps import StepWatch
from rehearsal.jobs import machines
from rehearsal.jobs.market import Market, Preemption
from rehearsal.machines.machine import Scale
from tests.rehearsal.jobs.jobs import COUNT, TRAIN, Jobs, wait_for_preemptions
from tests.rehearsal.world import LIMIT_S, texts, wait_for_end

TOGETHER: dict[str, Any] = {"strategy": "SPOT", "restart_job_on_worker_restart": True}


def starts_by_disk(jobs: Jobs) -> str:
    """How often the container had been started on its disk, at each of its starts."""
    return "".join(text[-1] for text in texts(jobs.logs, task_name="workerpool0-0") if text.startswith("starts"))


def test_a_non_zero_code_ends_the_job(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.run(COUNT, str(tmp_path / "starts"), "75,0")
    assert job.state == aiplatform_v1.JobState.JOB_STATE_FAILED
    assert (tmp_path / "starts").read_text() == "x"
    assert job.error.code == 3
    assert "workerpool0-0 exited with a non-zero status of 75." in job.error.message


def test_sigabrt_restarts_the_job_three_times(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.run(COUNT, str(tmp_path / "three"), "134,134,134,0")
    assert job.state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED
    # On new machines each time.
    assert starts_by_disk(jobs) == "1111"


def test_a_signal_counts_as_its_exit_code(jobs: Jobs, tmp_path: Path) -> None:
    # By an address that is none, of which process 1 dies too; a signal that it sends to itself would be dropped.
    job = jobs.run("import ctypes; ctypes.string_at(0)")
    assert "a non-zero status of 139. The job was restarted 3 times." in job.error.message


def test_machines_come_one_by_one_and_the_job_runs_when_all_are_up(
    make_jobs: Callable[..., Jobs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w').close(); time.sleep(600)"
    jobs = make_jobs()
    monkeypatch.setattr(machines, "STAGGER_S", 1e6)
    name = jobs.submit(code, str(tmp_path), nodes=3)
    while not (up := [path for path in tmp_path.iterdir() if path.name.isdecimal()]):
        time.sleep(0.02)
    assert len(up) == 1
    assert jobs.store.get(name).state == aiplatform_v1.JobState.JOB_STATE_PENDING
    jobs.runs.cancel(name)
    assert not wait_for_end(jobs.store, name).start_time
    monkeypatch.setattr(machines, "STAGGER_S", 0.0)
    name = jobs.submit(code, str(tmp_path), nodes=3)
    jobs.store.wait(name, lambda job: job.state == aiplatform_v1.JobState.JOB_STATE_RUNNING, LIMIT_S)
    assert jobs.store.get(name).start_time


@pytest.mark.parametrize("kind", ["sigterm", "sigkill"])
def test_a_preempted_job_starts_again_on_new_machines(
    make_jobs: Callable[..., Jobs], tmp_path: Path, kind: Literal["sigterm", "sigkill"]
) -> None:
    market = Market(
        watch=StepWatch, preemptions=[Preemption(1, kind, at_fraction=0.2), Preemption(0, kind, at_fraction=0.5)]
    )
    jobs, steps = make_jobs(market=market), tmp_path / "steps"
    name = jobs.submit(TRAIN, "100", str(steps), "20,50", "wait", nodes=2, **TOGETHER)
    for count, step in ((1, 20), (2, 50)):
        wait_for_preemptions(market, count)
        (tmp_path / f"steps.go-{step}").touch()
    job = wait_for_end(jobs.store, name)
    assert job.state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED
    assert market.missing == 0
    first, second = market.preempted
    assert (first.node, second.node) == (1, 0)
    assert (first.step, second.step) == (20, 50)
    # Who was told waits to be killed.
    assert {(one.exit_code, one.escalated) for one in (first, second)} == {(-signal.SIGKILL, kind == "sigterm")}
    told = texts(jobs.logs, task_name="workerpool0-0").count("told to stop")
    # Those that remain are told in any case; the one that is killed at once is not.
    assert told == (2 if kind == "sigterm" else 1)


def test_an_exit_during_the_notice_is_judged_by_its_code(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    market = Market(watch=StepWatch, preemptions=[Preemption(0, "sigterm", at_fraction=0.2)])
    jobs = make_jobs(market=market, scale=Scale(time_scale=10.0))
    name = jobs.submit(TRAIN, "100", str(tmp_path / "steps"), "20", "75", strategy="SPOT")
    wait_for_preemptions(market, 1)
    (tmp_path / "steps.go-20").touch()
    assert wait_for_end(jobs.store, name).state.name == "JOB_STATE_FAILED"
    (gone,) = market.preempted
    assert (gone.exit_code, gone.escalated) == (75, False)


def test_only_spot_machines_are_taken_away(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    market = Market(watch=StepWatch, preemptions=[Preemption(0, "sigkill", at_fraction=0.0)])
    jobs = make_jobs(market=market)
    jobs.run(TRAIN, "5", str(tmp_path / "steps"), "", "wait", strategy="STANDARD")
    assert not market.preempted
    assert market.missing == 1


def test_without_restarts_of_all_one_machine_is_replaced(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    market = Market(watch=StepWatch, preemptions=[Preemption(1, "sigkill", at_fraction=0.2)])
    jobs = make_jobs(market=market)
    name = jobs.submit(TRAIN, "100", str(tmp_path / "steps"), "20", "wait", nodes=2, strategy="SPOT")
    wait_for_preemptions(market, 1)
    (tmp_path / "steps.go-20").touch()
    job = wait_for_end(jobs.store, name)
    assert job.state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED
    assert [one.node for one in market.preempted] == [1]
    # The first machine was let alone: it counted through.
    assert (tmp_path / "steps").stat().st_size == 100
    assert "told to stop" not in texts(jobs.logs, task_name="workerpool0-0")


def test_a_first_machine_that_finishes_while_another_has_its_notice_ends_the_job(
    make_jobs: Callable[..., Jobs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "STAGGER_S", 0.0)
    market = Market(watch=StepWatch, preemptions=[Preemption(1, "sigterm", at_fraction=0.2)])
    # The notice is longer than the test.
    jobs = make_jobs(market=market, scale=Scale(time_scale=100.0))
    name = jobs.submit(TRAIN, "100", str(tmp_path / "steps"), "20", "twice", nodes=2, **TOGETHER)
    while "told to stop" not in texts(jobs.logs, task_name="workerpool1-0"):
        time.sleep(0.01)
    (tmp_path / "steps.go-20").touch()
    assert wait_for_end(jobs.store, name).state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED
    # No machine was lost before the end.
    assert (market.preempted, market.missing) == ([], 1)


def test_who_does_not_heed_the_notice_is_killed(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    market = Market(watch=StepWatch, preemptions=[Preemption(0, "sigterm", at_fraction=0.0)])
    jobs = make_jobs(market=market, scale=Scale(time_scale=0.01))
    name = jobs.submit(TRAIN, "3", str(tmp_path / "steps"), "1", "deaf", strategy="SPOT")
    wait_for_preemptions(market, 1)
    (tmp_path / "steps.go-1").touch()
    assert wait_for_end(jobs.store, name).state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED
    (gone,) = market.preempted
    assert (gone.exit_code, gone.escalated) == (-signal.SIGKILL, True)
