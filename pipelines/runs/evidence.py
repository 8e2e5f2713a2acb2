"""What is known of a run's failure: what the services say of it, and what its stages left in the bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from contracts.config import STAGES
from contracts.errors import ErrorDocument, ShardlineError
from contracts.result import PIPELINE_FOLDER
from inspection.attempts import find_errors, find_last_error
from pipelines.runs.diagnosis import Diagnosis, Said, diagnose
from pipelines.runs.jobs import Job
from pipelines.runs.logs import read_errors
from pipelines.runs.name import RunName
from pipelines.runs.tasks import Task, error_text


def explain(name: RunName, pipeline: Any, tasks: Sequence[Task], jobs: Sequence[Job]) -> Diagnosis:
    """Return the likely cause of a failed run.

    Args:
        name: Its name.
        pipeline: The PipelineJob's message.
        tasks: Its tasks.
        jobs: Its jobs.
    """
    said = [Said(job.error, job.error_code) for job in jobs if job.state != "SUCCEEDED"]
    said += [Said(task.error, task.error_code) for task in tasks if task.state == "FAILED"]
    said.append(Said(error_text(pipeline.error), pipeline.error.code))
    documents: list[ErrorDocument] = []
    try:
        documents = list(_read_documents(line_of(pipeline), name.id, tasks))
    except ShardlineError as error:
        # The bucket itself may be what failed.
        said.append(Said(str(error)))
    found = diagnose(said, documents)
    if found.kind not in ("unknown", "exit") or not pipeline.create_time:
        return found
    # What a launcher was refused (a quota, a permission), nobody but its own log tells.
    try:
        errors = read_errors(name, tasks, jobs, pipeline.create_time)
    except ShardlineError:
        # Whoever may not read logs is told what is known without them.
        return found
    in_logs = diagnose([Said(text) for text in errors])
    return found if in_logs.kind in ("unknown", "exit") else in_logs


def line_of(pipeline: Any) -> str:
    """Return the URI of the line that a run belongs to; empty: the run does not say."""
    line, _, name = str(pipeline.runtime_config.gcs_output_directory).rstrip("/").rpartition("/")
    return line if name == PIPELINE_FOLDER else ""


def _read_documents(line: str, run_id: str, tasks: Sequence[Task]) -> Iterator[ErrorDocument]:
    """Yield why tasks have failed: their own words are newer than those of their stages."""
    if not line.startswith("gs://"):
        return
    kept = find_errors(line, run_id)
    for name in [task.name.rpartition(".")[2] for task in tasks if task.state == "FAILED"]:
        found = kept.get(name) or (find_last_error(line, name, run_id) if name in STAGES else None)
        if found is not None:
            yield found
