"""`shardline cancel`: ends a run and everything that it started, and waits until nothing of it runs.

Vertex Pipelines cancels the tasks, and Google's launchers the jobs that they started, but each of them may be gone
itself. So the jobs are looked at afterwards, and what still runs is cancelled by itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from components.record_run import collect
from contracts import storage
from contracts.config.load import parse_config
from contracts.errors import ShardlineError, TryAgain
from contracts.previous import RUN_NAME
from contracts.result import RUN_START_NAME, run_uri
from inspection.summary import close_run
from pipelines.google import explained, first_line, read_options
from pipelines.runs.evidence import line_of
from pipelines.runs.jobs import Job, JobFinder
from pipelines.runs.name import RunName
from pipelines.runs.tasks import ENDED, read_tasks, state_of
from pipelines.submission.submit import read_job

# Vertex AI gives a CustomJob's containers 30 s; Dataflow takes minutes.
WAIT_S = 900.0
# How long the service has to end the jobs by itself.
_PATIENCE_S = 60.0
_POLL_S = 5.0


@dataclass(frozen=True)
class Cancelled:
    """What a cancellation came to."""

    name: RunName
    state: str
    """Of the run."""
    had_ended: bool
    """Whether the run had ended before."""
    jobs: tuple[Job, ...]
    """Every job of the run; all have ended."""
    by_hand: tuple[str, ...]
    """Names of the jobs that the service had left running."""

    def in_words(self) -> Iterator[str]:
        """Yield a line for the run and for each of its jobs."""
        before = "had ended before" if self.had_ended else "ended"
        yield f"run {self.name.id} in {self.name.region} {before}: {self.state.lower()}"
        for job in self.jobs:
            how = "cancelled here, since the service left it running" if job.name in self.by_hand else "ended"
            yield f"{job.kind} {job.id} in {job.region} {how}: {job.state.lower()}"


def cancel(
    client: Any,
    name: RunName,
    *,
    say: Callable[[str], None] = lambda text: None,
    wait_s: float = WAIT_S,
    patience_s: float = _PATIENCE_S,
    poll_s: float = _POLL_S,
) -> Cancelled:
    """Cancel a run and wait until it and its jobs have ended; one that has ended already is no error.

    Args:
        client: The PipelineServiceClient of the run's region.
        name: The run.
        say: Told in a line what happens.
        wait_s: Seconds to wait in all.
        patience_s: Seconds for the service to end the jobs by itself; then each is cancelled here.
        poll_s: Seconds between two looks.

    Raises:
        ConfigError: There is no such run.
        TryAgain: Something of it still runs after that time.
    """
    finder = JobFinder(name.project, name.region, name.id)
    pipeline = read_job(client, name)
    had_ended = state_of(pipeline) in ENDED
    if not had_ended:
        _ask(client, name)
        say(f"run {name.id}: cancelling")
    deadline = time.monotonic() + wait_s
    hurry = time.monotonic() + (0.0 if had_ended else patience_s)
    by_hand: list[str] = []
    while True:
        pipeline = read_job(client, name)
        jobs = finder.find(pipeline, read_tasks(pipeline), complete=True)
        running = [job for job in jobs if not job.ended]
        ended = state_of(pipeline) in ENDED
        if ended and not running:
            _leave_record(line_of(pipeline), name, say)
            return Cancelled(name, state_of(pipeline), had_ended, tuple(jobs), tuple(by_hand))
        if ended or time.monotonic() > hurry:
            for job in running:
                if job.name not in by_hand:
                    say(f"{job.kind} {job.id} in {job.region} still runs: cancelling it")
                    finder.cancel(job)
                    by_hand.append(job.name)
        if time.monotonic() > deadline:
            left = [f"run {name.id}"] * (not ended) + [f"{job.kind} {job.id} in {job.region}" for job in running]
            raise TryAgain(
                f"after {wait_s:g} s there still runs: {', '.join(left)}\n"
                f"  to do: run the same command again, or see {name.console}"
            )
        time.sleep(poll_s)


def _leave_record(line: str, name: RunName, say: Callable[[str], None]) -> None:
    """Write the record of a run whose own task did not: else it counts as one that works."""
    start_uri, record_uri = (storage.join(run_uri(line, name.id), file) for file in (RUN_START_NAME, RUN_NAME))
    try:
        if not line.startswith("gs://") or storage.exists(record_uri) or not storage.exists(start_uri):
            return
        config = parse_config(json.loads(storage.read_bytes(start_uri))["config"], where=start_uri)
        record = collect(line, name.id, config, {})
        close_run(record.model_copy(update={"state": "interrupted", "error": "cancelled"}), line=line)
    except ShardlineError as error:
        say(f"warning: no record of run {name.id}: {first_line(error)}")


def _ask(client: Any, name: RunName) -> None:
    from google.api_core.exceptions import FailedPrecondition

    with explained(f"cancelling run {name.id}", project=name.project):
        try:
            # Asking twice for the same end does no harm: so it may be repeated as a read.
            client.cancel_pipeline_job(name=name.resource, **read_options())
        except FailedPrecondition:
            # It has ended meanwhile.
            return
