"""How long Get of a custom job is held: by a clock that each look at it sets one second on."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import aiplatform_v1

from rehearsal.clock import Clock
from rehearsal.servers.access import Caller
from rehearsal.vertex import custom_jobs
from rehearsal.vertex.state import CloudState
from rehearsal.vertex.store import Store

NAME = "projects/123456789012/locations/us-central1/customJobs/1"
STATE: Any = aiplatform_v1.JobState


def test_a_launcher_hears_after_two_minutes_that_its_job_runs_and_then_of_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none: Any = None
    cloud = CloudState(Store(), none, none, Clock(), {"acme": "123456789012"}, none)
    cloud.store.add(NAME, aiplatform_v1.CustomJob(name=NAME, state=STATE.JOB_STATE_PENDING))
    seconds = itertools.count()
    looks = iter(range(10**6))
    monkeypatch.setattr(custom_jobs, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(custom_jobs, "_POLL_S", 0.0)

    def is_there() -> bool:
        if next(looks) == 30:
            cloud.store.update(NAME, lambda job: setattr(job, "state", STATE.JOB_STATE_RUNNING))
        return True

    def ask(user_agent: str) -> tuple[str, int]:
        request = aiplatform_v1.GetCustomJobRequest(name=NAME)
        before = next(seconds)
        state = custom_jobs.get(cloud, request, Caller("grpc", user_agent, is_there=is_there)).state.name
        return state, next(seconds) - before - 3

    launcher = "google-cloud-pipeline-components"
    assert ask("somebody else")[0] == "JOB_STATE_PENDING"
    assert ask(launcher) == ("JOB_STATE_RUNNING", 120)
    # Once: what it asks then is held for long.
    assert ask(launcher) == ("JOB_STATE_RUNNING", 600)
    # Nobody is waited for who is gone.
    request = aiplatform_v1.GetCustomJobRequest(name=NAME)
    custom_jobs.get(cloud, request, Caller("grpc", launcher, is_there=lambda: False))
    cloud.store.update(NAME, lambda job: setattr(job, "state", STATE.JOB_STATE_SUCCEEDED))
    assert ask(launcher)[0] == "JOB_STATE_SUCCEEDED"
