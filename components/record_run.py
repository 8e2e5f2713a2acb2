"""Record of a pipeline run, also of a failed one: run.json, the report, the row of the experiment."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Mapping
from typing import Any

from components.experiment import log_run
from components.task import OUTPUTS, Task, Unreadable, attempt, require_finished
from contracts import storage
from contracts.artifacts import RunRecord
from contracts.canonical import canonical
from contracts.config import STAGES, RunConfig
from contracts.errors import DataError, ErrorDocument
from contracts.result import RUN_START_NAME, run_uri
from inspection.pages.rendering import plain_page
from inspection.record import close_run, make_record
from inspection.report.page import write_report
from inspection.stages import StageTrace, find_errors, find_last_error, in_order, list_attempts, read_events
from inspection.training import read_goodput

# Tasks of the pipeline, and the artifact that points to a stage's folder.
TASKS = {"list-source": "", **OUTPUTS, "register": "registered"}
# Time limit of the request for the states of the tasks.
_LIMIT_S = 180.0


def record(task: Task, config: RunConfig) -> None:
    """Write the record and the report of the run, and copy them to the line's folder.

    Raises:
        DataError: All tasks succeeded or were cached, but the folder of a cached artifact was deleted.
    """
    line, job = storage.join(storage.normalise(config.run.root), config.run.name), task.parameter("job")
    # On Kubeflow there is no job to query: this task runs last, and the stages' events suffice.
    read = attempt("how the tasks ended", lambda: read_tasks(job)) if job else {}
    tasks = {} if isinstance(read, Unreadable) else read
    run_record = collect(line, task.run_id, config, tasks)
    close_run(run_record, line=line)
    page = attempt("the report", lambda: storage.read_bytes(write_report(run_uri(line, task.run_id), None)).decode())
    metadata = {"state": run_record.state, "error": run_record.error, "run": run_uri(line, task.run_id)}
    if isinstance(page, Unreadable):
        page = plain_page(f"Run {task.run_id}", run_record.error or page)
    if task.has_output("report"):
        task.set_artifact("report", metadata, content=page, suffix=".html")
    if config.vertex.experiment and job:
        attempt("the row of the experiment", lambda: log_run(run_record, config, job))
    print(f"record: {run_record.state}{': ' + run_record.error.splitlines()[0] if run_record.error else ''}")
    task.finish()
    loss = next(filter(None, (_find_loss(name, detail) for name, detail in tasks.items())), None)
    if loss is not None and all(map(_is_good, tasks.values())):
        raise loss


def collect(line: str, run_id: str, config: RunConfig, tasks: Mapping[str, Any]) -> RunRecord:
    """Return the record of a run, collected from its stages and tasks.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run.
        config: Its whole configuration.
        tasks: PipelineTaskDetail of the tasks by name.
    """
    started_at_s, started_at = _find_start(line, run_id)
    traces = [_read_trace(line, stage, run_id, tasks.get(stage)) for stage in STAGES]
    stage_errors = find_errors(line, run_id)
    finished = [trace.name for trace in traces if trace.finished]
    # Without an answer of the service, the errors that tasks and stages have written.
    names = tasks or TASKS
    errors = [_explain(line, run_id, name, tasks.get(name), stage_errors.get(name), name in finished) for name in names]
    document = make_record(
        run_id=run_id,
        started_at=started_at,
        config=config,
        traces=traces,
        wall_s=time.time() - started_at_s,
        error=next(filter(None, errors), "") or _find_gap(traces, config),
        goodput=read_goodput(line, run_id, training=_find_fingerprint(tasks.get("train"))),
    )
    decision = _read_decision(tasks["register"]) if "register" in tasks else {}
    return document.model_copy(update={"results": {**document.results, **({"register": decision} if decision else {})}})


def read_tasks(job: str) -> dict[str, Any]:
    """Return the details of the started tasks of a PipelineJob by name.

    Args:
        job: projects/P/locations/REGION/pipelineJobs/ID.
    """
    from google.api_core.retry import Retry
    from google.cloud import aiplatform_v1

    region = job.split("/")[3]
    client = aiplatform_v1.PipelineServiceClient(client_options={"api_endpoint": f"{region}-aiplatform.googleapis.com"})
    message = client.get_pipeline_job(name=job, retry=Retry(timeout=_LIMIT_S), timeout=_LIMIT_S)
    details = {detail.task_name: detail for detail in message.job_detail.task_details}
    return {name: details[name] for name in TASKS if name in details}


def _is_good(detail: Any) -> bool:
    """Whether a task has outputs: its own (SUCCEEDED), or those of KFP's cache (SKIPPED)."""
    return detail.state.name in ("SUCCEEDED", "SKIPPED")


def _find_artifact(name: str, detail: Any) -> Any | None:
    output = TASKS[name]
    artifacts = detail.outputs[output].artifacts if output in detail.outputs else []
    return artifacts[0] if artifacts else None


def _read_decision(detail: Any) -> dict[str, Any]:
    """Return the decision of the task `register` as JSON values; empty if there is none."""
    from google.protobuf.json_format import MessageToDict

    artifact = _find_artifact("register", detail)
    if artifact is None:
        return {}
    decision: dict[str, Any] = canonical(MessageToDict(type(artifact).pb(artifact).metadata))
    return decision


def _read_trace(line: str, stage: str, run_id: str, detail: Any | None) -> StageTrace:
    """Return the merged events of a stage's attempts in a run."""
    attempts, problems = read_events(line, stage, list_attempts(line, stage, run_id))
    for problem in problems:
        print(f"record: warning: stage {stage}: {problem}")
    trace = StageTrace(stage)
    for event in in_order(attempts):
        trace.apply(event)
    if detail is None:
        return trace
    artifact = _find_artifact(stage, detail) if _is_good(detail) else None
    if artifact is not None and _find_loss(stage, detail) is None:
        trace.uri, trace.exit_code, trace.reused = artifact.uri, 0, trace.reused or detail.state.name == "SKIPPED"
    else:
        trace.uri = None
    return trace


def _find_start(line: str, run_id: str) -> tuple[float, str]:
    try:
        start = json.loads(storage.read_bytes(storage.join(run_uri(line, run_id), RUN_START_NAME)))
    except FileNotFoundError:
        # The first task has failed.
        return time.time(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return datetime.datetime.fromisoformat(start["started_at"]).timestamp(), start["started_at"]


def _explain(line: str, run_id: str, name: str, detail: Any, stage_error: ErrorDocument | None, finished: bool) -> str:
    """Return why a task has no outputs; empty if it has, or if it was not started."""
    if detail is not None and _is_good(detail):
        return str(_find_loss(name, detail) or "")
    if stage_error is not None:
        return f"task {name}: {stage_error.message}"
    if name in STAGES and not finished and (error := find_last_error(line, name, run_id)) is not None:
        return f"stage {name}: {error.message}"
    if detail is None or detail.state.name in ("NOT_TRIGGERED", "PENDING"):
        return ""
    return (
        f"task {name}: {detail.error.message or detail.state.name}\n  to do: shardline status {run_uri(line, run_id)}"
    )


def _find_fingerprint(detail: Any | None) -> str:
    artifact = _find_artifact("train", detail) if detail is not None else None
    return str(dict(artifact.metadata or {}).get("fingerprint", "")) if artifact is not None else ""


def _find_loss(name: str, detail: Any) -> DataError | None:
    """Return the error for a deleted folder of a task's artifact; None if it exists."""
    artifact = _find_artifact(name, detail)
    try:
        if artifact is not None:
            require_finished(f"task {name}", artifact.uri)
    except DataError as error:
        return error
    return None


def _find_gap(traces: list[StageTrace], config: RunConfig) -> str:
    """Return an error for the first stage without an output; empty if all have one."""
    expected = [trace for trace in traces if trace.name != "profile" or config.profile.method != "off"]
    gap = next((trace.name for trace in expected if not trace.finished), None)
    return "" if gap is None else f"stage {gap}: no output, and no task gives a reason"
