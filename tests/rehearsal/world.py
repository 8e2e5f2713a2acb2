"""What tests of executed jobs share: where they are, their logs, waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from rehearsal.clock import Clock
from rehearsal.cloud import LocalCloud
from rehearsal.jobs.threads import Place
from rehearsal.machines.processes import has_mark
from rehearsal.servers.access import Caller
from rehearsal.vertex import pipeline_jobs
from rehearsal.vertex.logs import LogBook
from rehearsal.vertex.store import Store, has_ended

PROJECT, NUMBER = "acme-vision", "123456789012"
PARENT = f"projects/{NUMBER}/locations/europe-west4"
# For a machine that is slow and busy; nothing waits so long unless it hangs. Well below the limit of one test, so that
# it is the wait that fails, with what is known then.
LIMIT_S = 120.0


def make_place(folder: Path) -> Place:
    """Return a place for jobs without a server."""
    return Place(Store(), LogBook(), Clock(), folder)


def texts(logs: LogBook, **labels: str) -> list[str]:
    """Return the lines whose entry has these labels."""
    entries = [entry for entry in logs.entries() if labels.items() <= entry["resource"]["labels"].items()]
    return [entry["jsonPayload"]["message"] for entry in entries]


def wait_until(is_reached: Callable[[], Any], explain: Callable[[], Any] = lambda: "") -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + LIMIT_S
    while not (value := is_reached()):
        assert time.monotonic() < deadline, explain()
        time.sleep(0.02)
    return value


def wait_for_end(store: Store, name: str) -> Any:
    """Wait for the end of a job, and return it."""
    return store.wait(name, has_ended, LIMIT_S)


def find_marked(mark: str) -> list[int]:
    """Return the living processes of this user whose environment has a mark."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if has_mark(pid, mark)]


def submit(cloud: LocalCloud, pipeline: Any, run: str, **parameters: Any) -> str:
    """Create a job of a compiled pipeline in a cloud; return its name."""
    job = {
        "display_name": run,
        "pipeline_spec": json_format.MessageToDict(pipeline.pipeline_spec),
        "runtime_config": {"gcs_output_directory": "gs://line/root", "parameter_values": parameters},
    }
    request = {"parent": PARENT, "pipeline_job": job, "pipeline_job_id": run}
    created = pipeline_jobs.create(
        cloud.vertex.state, pipeline_jobs.types.CreatePipelineJobRequest(request), Caller("grpc")
    )
    return str(created.name)


def run(cloud: LocalCloud, pipeline: Any, run: str = "", **parameters: Any) -> Any:
    """Run a compiled pipeline in a cloud, and return its ended job; its id is new unless it is given."""
    job = wait_for_end(cloud.store, submit(cloud, pipeline, run or f"run-{cloud.store.new_id()}", **parameters))
    assert job.end_time, "\n".join(texts(cloud.logs))
    return job


def states(job: Any) -> dict[str, str]:
    """Return the state of each task by its unique name; the pipeline's own is the empty one."""
    return {detail.task_unique_name: detail.state.name for detail in job.job_detail.task_details}


def detail(job: Any, name: str) -> Any:
    """Return the detail of a task."""
    (found,) = [one for one in job.job_detail.task_details if one.task_unique_name == name]
    return found
