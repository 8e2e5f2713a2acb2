"""`shardline run`: the whole line on this machine.

This process writes the run's documents and draws; the graph is run by a child (pipelines/local/orchestrator.py), since
kfp prints, and since Ctrl-C must be able to end everything that runs. This process never imports kfp.

    RUN.ROOT/RUN.NAME/                     the line
        run.json, report.md                copies of the newest run's
        runs/ID/run-start.json             first, create-only: configuration, arguments of the graph
        runs/ID/STAGE.json                 the sections of the configuration that a stage is given
        runs/ID/kfp.log                    what kfp and its executors print
        runs/ID/profile.html               the profile's page, made of what its stage left
        runs/ID/run.json, report.md        last: what happened
        code/HASH/                         own code: what the stages import
    STAGE/FINGERPRINT/                 outputs, shared by all runs of the line
        STAGE/attempts/ID/                 events.jsonl, log.txt and error.json of the run's attempt
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from components.launch import attempt_folder
from contracts import storage
from contracts.artifacts import RunRecord
from contracts.config import STAGES, RunConfig
from contracts.config.load import DATE_MARK, stage_config
from contracts.errors import (
    EXIT_FAULT,
    INTERRUPTED,
    ConfigError,
    DataError,
    ErrorDocument,
    Preempted,
    StorageError,
)
from contracts.output import Lock, require_room
from contracts.own_code import PinnedCode, pin_code, publish_code
from contracts.pinned import pin
from contracts.previous import RUN_NAME, describe_previous
from contracts.result import RUN_START_NAME, run_uri
from contracts.stage import new_attempt_id
from inspection.goodput import read_goodput
from inspection.profile_page import leave_profile_page
from inspection.summary import Times, make_record
from inspection.trace import StageTrace
from pipeline_tasks.record import close_run
from pipelines.local.progress import make_view
from pipelines.local.stages import check_cost_cap
from pipelines.local.watch import Ending, find_interruption, watch
from pipelines.place import line_uri
from pipelines.reported import say
from pipelines.rules.checks import check_here
from pipelines.rules.preflight import MANIFEST_SUFFIXES, find_early_stopping_problems

KFP_LOG_NAME = "kfp.log"


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    line: str
    """URI of the line's folder."""
    record: RunRecord
    error: ErrorDocument | None


def run_local(config: RunConfig, *, fresh: bool, debug: bool, started_at_s: float) -> Outcome:
    """Run every stage and write the run's documents.

    Args:
        config: The resolved configuration, with absolute paths.
        fresh: Each stage deletes its own output for this configuration first.
        debug: Stages show their tracebacks in their logs.
        started_at_s: When the command started, in seconds since the epoch.

    Raises:
        UserError: The line's folder cannot be used, or a later stage could not succeed.
    """
    check_line(config)
    source = storage.normalise(config.sharding.source)
    storage.bill(config.cloud.billing_project, source)
    if storage.is_local(source) and DATE_MARK not in source and not storage.exists(source):
        raise ConfigError(
            f"sharding.source {storage.display(source)} does not exist",
            allowed="one folder of images per class, or a manifest",
            todo="check the path: one without / at its start is below the folder that the command runs in",
        )
    line = line_uri(config)
    code = pin_code(config, line)
    checked = check_here(config)
    checked.require(say, is_finished=_has_succeeded(code.config, line))
    run_id = new_attempt_id()
    with _explained(config, line):
        require_room(line)
    # For its life: who looks at the run sees by it whether it goes on or was killed.
    lock = _lock_run(config, line, run_id)
    outcome = _run(code, line, run_id, fresh=fresh, debug=debug, started_at_s=started_at_s)
    # Not where there is no record: then the kernel drops it, and what is left of it says that nobody works any more.
    lock.release()
    return outcome


def _run(code: PinnedCode, line: str, run_id: str, *, fresh: bool, debug: bool, started_at_s: float) -> Outcome:
    config = code.config
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started_at_s))
    folder = _open_run(config, line=line, run_id=run_id, started_at=started_at, fresh=fresh, debug=debug)
    with _explained(config, line):
        # Not before: `clean` removes copies that no run's document names.
        publish_code(code)
    traces = [StageTrace(name, attempt_folder(storage.join(line, name), run_id)) for name in STAGES]
    ending = _run_graph(folder, traces, config.resources.stop_budget_s)
    # A signal that comes behind the last stage ends nothing.
    interrupted = None if _is_done(ending, traces) else find_interruption(ending)
    error = interrupted or _find_error(ending, traces, folder / KFP_LOG_NAME)
    record = make_record(
        run_id=run_id,
        started_at=started_at,
        config=config,
        traces=traces,
        times=Times(wall_s=time.time() - started_at_s, orchestrator_s=ending.wall_s),
        error=error.message if error else "",
        interrupted=error is not None and error.kind in (INTERRUPTED, Preempted.__name__),
        goodput=read_goodput(line, run_id),
    )
    record = leave_profile_page(record, run_uri(line, run_id))
    close_run(record, line=line)
    return Outcome(line, record, error)


def _has_succeeded(config: RunConfig, line: str) -> bool:
    """Whether the line's newest run was of this very configuration, and succeeded: its stages are reused here."""
    try:
        newest = RunRecord.parse(storage.read_bytes(storage.join(line, RUN_NAME)), where=line)
    except (FileNotFoundError, NotADirectoryError, DataError):
        return False
    return newest.state == "succeeded" and newest.config == config.model_dump(mode="json")


def check_line(config: RunConfig) -> None:
    """Find what no data can mend before the first stage spends anything.

    Raises:
        ConfigError: A later stage could not succeed.
    """
    batch, ranks = config.train.global_batch_size, config.resources.ranks
    if ranks != "auto" and batch < ranks:
        raise ConfigError(
            f"train.global_batch_size {batch} for resources.ranks = {ranks}",
            allowed="at least one sample per rank and step",
            todo=f"set train.global_batch_size to {ranks} or more, or resources.ranks to {batch} or less",
        )
    # A manifest may give the splits itself; folders are split by these fractions alone.
    gives_splits = config.sharding.source.lower().endswith(MANIFEST_SUFFIXES)
    if config.sharding.splits.test == 0 and not gives_splits:
        raise ConfigError(
            "sharding.splits.test = 0, and export proves the exported graphs on the test split",
            allowed="a fraction above 0 for `shardline run`",
            todo="set sharding.splits.test, or run the stages shard, profile and train one by one",
        )
    for problem in find_early_stopping_problems(config):
        raise problem.error()
    check_cost_cap(config)


def _open_run(config: RunConfig, *, line: str, run_id: str, started_at: str, fresh: bool, debug: bool) -> Path:
    """Write the documents that a run starts from, and return its folder."""
    folder = run_uri(line, run_id)
    flags = " ".join(word for word, wanted in (("fresh", fresh), ("debug", debug)) if wanted)
    contents = {stage: _to_json(stage_config(config, stage)) for stage in STAGES}
    configs = {stage: storage.join(folder, f"{stage}.json") for stage in STAGES}
    arguments = {"line": line, "run_id": run_id, "flags": flags} | {
        f"{stage}_config": pin(configs[stage], hashlib.sha256(contents[stage]).hexdigest()) for stage in STAGES
    }
    start: dict[str, object] = {"id": run_id, "started_at": started_at, "arguments": arguments}
    start |= {"config": config.model_dump(mode="json"), **describe_previous(config, line)}
    with _explained(config, line):
        storage.publish(storage.join(folder, RUN_START_NAME), _to_json(start))
        for stage in STAGES:
            storage.publish(configs[stage], contents[stage])
    return storage.local_path(folder)


def _lock_run(config: RunConfig, line: str, run_id: str) -> Lock:
    with _explained(config, line):
        return Lock(run_uri(line, run_id))


@contextmanager
def _explained(config: RunConfig, line: str) -> Iterator[None]:
    """Turn what a folder refuses into an error about the configuration."""
    try:
        yield
    except (OSError, StorageError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.given
        raise ConfigError(
            f"run.root = {config.run.root!r}: {storage.display(line)} cannot be written ({reason})",
            allowed="a folder that you may write, or one that can be made",
            todo="set run.root to another folder, or correct its permissions",
        ) from None


def _run_graph(folder: Path, traces: list[StageTrace], stop_budget_s: float) -> Ending:
    """Run the child that runs the graph, and draw its stages."""
    # kfp leaves a folder a task in the temporary directory: they go with this one.
    with tempfile.TemporaryDirectory(prefix="shardline-", ignore_cleanup_errors=True) as temporary:
        command = [sys.executable, "-m", "pipelines.local.orchestrator", str(folder)]
        view = make_view([trace.name for trace in traces])
        return watch(
            command,
            {**os.environ, "TMPDIR": temporary},
            folder / KFP_LOG_NAME,
            traces=traces,
            view=view,
            stop_budget_s=stop_budget_s,
        )


def _find_error(ending: Ending, traces: list[StageTrace], log: Path) -> ErrorDocument | None:
    """Return why the run failed: the stage's own error, else kfp's; None: it did not."""
    for trace in traces:
        if (error := trace.find_error()) is not None:
            # Told to stop by a signal of its own: on this machine that is somebody who sits here.
            trace.interrupted = trace.interrupted or error.kind in (INTERRUPTED, Preempted.__name__)
            return error.model_copy(update={"message": f"stage {trace.name}: {error.message}"})
    if _is_done(ending, traces):
        return None
    missing = [trace.name for trace in traces if not trace.finished]
    message = f"kfp ended with exit code {ending.exit_code} ({', '.join(missing)} not finished)\n  to do: see {log}"
    return ErrorDocument(kind="Crash", exit_code=EXIT_FAULT, message=message)


def _is_done(ending: Ending, traces: list[StageTrace]) -> bool:
    return ending.exit_code == 0 and all(trace.finished for trace in traces)


def _to_json(value: object) -> bytes:
    return (json.dumps(value, sort_keys=True, indent=1) + "\n").encode()
