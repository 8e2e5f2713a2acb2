"""The last task of a run on Vertex AI: its record and its report, written whether it went well or not."""

from __future__ import annotations

import argparse
import datetime
import json
import time
from pathlib import Path

from contracts import storage
from contracts.artifacts import RunRecord
from contracts.config import STAGES, RunConfig
from contracts.config.load import read_stage_config
from contracts.previous import RUN_NAME
from contracts.registration import Registration, find_registration
from contracts.result import RUN_START_NAME, find_result, run_uri
from inspection.attempts import find_errors, find_last_error
from inspection.goodput import read_goodput
from inspection.profile_page import leave_profile_page
from inspection.report import to_markdown
from inspection.run.events import list_attempts, of_run, read_events_of
from inspection.summary import make_record
from inspection.trace import StageTrace

REPORT_NAME = "report.md"


def run(options: argparse.Namespace) -> None:
    """Write run.json and report.md of the run, copy them to the line's top, and leave the pages of run and profile."""
    config = read_stage_config(options.config, None, None)
    record = collect(options.line, options.run_id, config)
    record = leave_profile_page(record, run_uri(options.line, record.id))
    close_run(record, line=options.line)
    print(leave_page(options.line, record.id))
    if config.vertex.experiment:
        print(log_experiment(record, config, options.line))
    print(f"record: {record.state}{': ' + record.error.splitlines()[0] if record.error else ''}")


def leave_page(line: str, run_id: str) -> str:
    """Write report.html of the run; return what became of that, in a line: the run is recorded either way."""
    from inspection.report_file import write_report

    try:
        return f"record: {write_report(run_uri(line, run_id), None)}"
    except Exception as error:  # noqa: BLE001 - a page that cannot be drawn is no reason to fail a run
        said = (str(error).splitlines() or [""])[0]
        return f"record: warning: no page: {type(error).__name__}: {said}"


def log_experiment(record: RunRecord, config: RunConfig, line: str) -> str:
    """Write the run into its experiment; return what became of that, in a line: the run is recorded either way."""
    from inspection.run.find import RunPlace
    from inspection.run.read import read_run
    from pipeline_tasks.experiment import log_run

    try:
        name = log_run(record, config, read_run(RunPlace(line, record.id), pictures=False))
    except Exception as error:  # noqa: BLE001 - a comparison that misses a run is no reason to fail it
        said = (str(error).splitlines() or [""])[0]
        return f"record: warning: experiment {config.vertex.experiment} was not told: {type(error).__name__}: {said}"
    return f"record: experiment {config.vertex.experiment} has the run as {name}"


def collect(line: str, run_id: str, config: RunConfig) -> RunRecord:
    """Return the record of a run from what its stages have left.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run.
        config: Its whole configuration.
    """
    started_at_s, started_at = _find_start(line, run_id)
    traces = [read_trace(line, stage, run_id) for stage in STAGES]
    missing = [trace.name for trace in traces if not trace.finished]
    registration = find_registration(line, run_id)
    error = _explain(line, run_id, missing) if missing else ""
    if not error and config.vertex.model.upload:
        error = _explain_registration(registration, run_id)
    record = make_record(
        run_id=run_id,
        started_at=started_at,
        config=config,
        traces=traces,
        wall_s=time.time() - started_at_s,
        error=error,
        goodput=read_goodput(line, run_id),
    )
    results = {"register": registration.model_dump(mode="json")} if registration is not None else {}
    return record.model_copy(update={"results": {**record.results, **results}})


def _explain_registration(registration: Registration | None, run_id: str) -> str:
    """Return why the export is not what the gate said it should become; empty: it is."""
    if registration is None:
        return f"the gate before the model registry did not decide\n  to do: shardline status {run_id}"
    if registration.verdict == "upload" and not registration.upload:
        return f"the export was not uploaded to the model registry\n  to do: shardline status {run_id}"
    return ""


def read_trace(line: str, stage: str, run_id: str) -> StageTrace:
    """Return what the attempts of a run tell about a stage, taken together."""
    # A record is written once: a bucket that fails now answers this task's next attempt.
    attempts, _ = read_events_of(line, stage, of_run(list_attempts(line, stage), run_id), whole=True)
    events = sorted((event for told in attempts.values() for event in told), key=lambda event: float(event["time"]))
    trace = StageTrace(stage, Path())
    for event in events:
        trace.apply(event)
    starts = [float(event["launched_at"]) for event in events if event["event"] == "start"]
    trace.launched_at = min(starts, default=None)
    if (result := find_result(line, run_id, stage)) is not None:
        trace.uri, trace.reused, trace.exit_code = result.uri, result.reused, 0
        trace.launched_at = trace.launched_at or time.time()
        trace.exit_wall_s = max(0.0, trace.last_at - trace.launched_at)
    return trace


def close_run(record: RunRecord, *, line: str) -> None:
    """Write a run's record and report, and copy them to the line's top."""
    for name, content in publish_record(record, line=line).items():
        storage.replace(storage.join(line, name), content)


def publish_record(record: RunRecord, *, line: str) -> dict[str, bytes]:
    """Write a run's record and report; return them by name."""
    folder = run_uri(line, record.id)
    written = {REPORT_NAME: to_markdown(record).encode(), RUN_NAME: record.to_json()}
    for name, content in written.items():
        # A run that is tried in another region has the record of its last try.
        storage.replace(storage.join(folder, name), content)
    return written


def _find_start(line: str, run_id: str) -> tuple[float, str]:
    try:
        start = json.loads(storage.read_bytes(storage.join(run_uri(line, run_id), RUN_START_NAME)))
    except FileNotFoundError:
        # The first task has failed.
        return time.time(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return datetime.datetime.fromisoformat(start["started_at"]).timestamp(), start["started_at"]


def _explain(line: str, run_id: str, missing: list[str]) -> str:
    of_tasks = find_errors(line, run_id)
    if (refused := of_tasks.get("begin")) is not None:
        return refused.message
    for stage in missing:
        if (error := find_last_error(line, stage, run_id)) is not None:
            return f"stage {stage}: {error.message}"
    for task, error in of_tasks.items():
        return f"task {task}: {error.message}"
    return f"{', '.join(missing)} did not end well\n  to do: shardline status {run_id}"
