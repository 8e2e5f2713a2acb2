"""Stages in the foreground of this machine: the whole line (`shardline run`), or one of them.

A stage is a command (components/launch.py) in a process group of its own. Its events are followed and drawn while it
works. Ctrl-C, SIGTERM and SIGHUP end it; a training saves first, unless a second signal comes. Each stage ends with
this process, also where that is killed: the same command goes on.

    RUN.ROOT/RUN.NAME/                     the line
        run.json                           a copy of the newest run's
        runs/ID/run-start.json             first, create-only: the configuration
        runs/ID/run.json                   last: what happened
        production.json                    the export in production (components/gate.py)
        code/HASH.tar.gz                   own code: what the stages import
        STAGE/FINGERPRINT/                 outputs, shared by all runs of the line
        STAGE/attempts/ID/                 events.jsonl, log.txt and error.json of the run's attempt
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType

from components.gate import PRODUCTION_NAME, Decision, require_comparable
from components.launch import attempt_folder, last_line, stage_command, stage_environment
from contracts import storage
from contracts.artifacts import RunRecord
from contracts.config import STAGE_KEYS, STAGES, RunConfig
from contracts.config.load import DATE_MARK
from contracts.errors import (
    EXIT_FAULT,
    EXIT_OK,
    EXIT_USER_ERROR,
    INTERRUPTED,
    ConfigError,
    DataError,
    ErrorDocument,
    Preempted,
    ShardlineError,
    StorageError,
)
from contracts.events import LOG_NAME, EventLog
from contracts.output import Lock, check_apart, mark_folder, require_room
from contracts.own_code import pin_code, publish_code
from contracts.previous import RUN_NAME, describe_previous
from contracts.result import RUN_START_NAME, run_uri
from contracts.stage import new_attempt_id
from inspection.stages import StageTrace, read_warnings
from pipelines.checks import check_here
from pipelines.place import line_uri, stage_root
from pipelines.progress import Bars, PlainLines, make_view
from pipelines.rules import check_cost_cap, check_line

# Short enough to look alive, long enough to cost nothing.
_POLL_S = 0.1
# Time that a cancelled stage has to end by itself. Nothing is lost without it: results are committed by manifests, and
# a training has saved before.
_GRACE_S = 3.0
# The stage that saves when it is told to stop, and what its processes take to end behind resources.stop_budget_s.
_SAVING_STAGE = "train"
_SAVING_SLACK_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Training cuts the batch by itself when nothing was measured.
_OPTIONAL = ("profile",)
INPUTS: dict[str, dict[str, str]] = {
    "shard": {},
    "profile": {"shards": "shard"},
    "train": {"shards": "shard", "profile": "profile"},
    "export": {"shards": "shard", "checkpoint": "train"},
}
"""The inputs of each stage, and the stage that makes each of them."""


class StageFailed(ShardlineError):
    """A stage's command failed; `document` is the stage's own error."""

    def __init__(self, document: ErrorDocument) -> None:
        super().__init__(document.message)
        self.document = document
        self.exit_code = document.exit_code  # type: ignore[misc]


@dataclass(frozen=True)
class LineRun:
    """A run of the whole line that has ended."""

    line: str
    """URI of the line's folder."""
    record: RunRecord
    error: ErrorDocument | None


@dataclass(frozen=True)
class StageOutput:
    """The output of one stage."""

    uri: str
    """Folder of the finished document."""
    reused: bool
    """It was finished before: nothing was done."""
    attempt: str
    """URI of the folder of this attempt's events and log."""


def run_line(config: RunConfig, *, fresh: bool, started_at_s: float) -> LineRun:
    """Run every stage and write the run's documents.

    Args:
        config: The resolved configuration, with absolute paths.
        fresh: Each stage deletes its own output for this configuration first.
        started_at_s: When the command started, in seconds since the epoch.

    Raises:
        UserError: The line's folder cannot be used, or a later stage could not succeed.
    """
    check_line(config)
    _require_source(config)
    line, run_id = line_uri(config), new_attempt_id()
    require_comparable(config, line)
    code = pin_code(config, line)
    if fresh or not _has_succeeded(code.config, line):
        # With the user's folder: the archive is not published yet.
        check_here(config, say)
    config = code.config
    with _writable(f"run.root = {config.run.root!r}: ", line):
        require_room(line)
        # For its life: who looks at the run sees by it whether it goes on or was killed.
        lock = Lock(run_uri(line, run_id))
        _open_run(config, line, run_id, started_at_s)
        publish_code(code)
    threading.Thread(target=_import_closing, daemon=True).start()
    traces = {stage: StageTrace(stage, attempt_folder(storage.join(line, stage), run_id)) for stage in STAGES}
    uris: dict[str, str] = {}
    error, decision = None, None
    with _caught_signals() as received, make_view(STAGES) as view:
        for stage, trace in traces.items():
            options = {"line": line, "run": run_id, "attempt": run_id}
            options |= {name: uris[maker] for name, maker in INPUTS[stage].items()}
            try:
                command = stage_command(stage, config, options, flags=["fresh"] if fresh else [])
                uris[stage] = _run_command(command, trace, received, view, config.resources.stop_budget_s)
                if received and stage != STAGES[-1]:
                    raise StageFailed(ErrorDocument.interrupted(signal.Signals(received[0])))
            except StageFailed as failure:
                error = failure.document.model_copy(update={"message": f"stage {stage}: {failure}"})
                break
        else:
            try:
                decision = _decide(config, line, run_id, uris, received)
            except ShardlineError as failure:
                error = ErrorDocument.of(failure)
    record = _close_run(config, line, run_id, list(traces.values()), error, started_at_s, decision)
    # Not where there is no record: then the kernel drops it, and what is left of it says that nobody works any more.
    lock.release()
    return LineRun(line, record, error)


def run_stage_alone(
    stage: str, config: RunConfig, *, to: str | None, given: Mapping[str, str | None], fresh: bool
) -> StageOutput:
    """Run one stage to its end, on the outputs of the ones before.

    Args:
        stage: Its name.
        config: The resolved configuration, with absolute paths.
        to: Path or URI of the folder to write; None: the line's own folder.
        given: Paths or URIs of inputs, by name; None: the line's own.
        fresh: Delete the stage's own output for this configuration first.

    Raises:
        StageFailed: It failed, or an earlier stage has not run.
        UserError: A path or URI cannot be used, or a cost cap has no price.
    """
    if stage == "train":
        check_cost_cap(config)
    if "code" in STAGE_KEYS[stage]:
        # For what it refuses and warns of; the stage does it again, and makes the copy.
        for warning in pin_code(config, line_uri(config)).warnings:
            say(f"{stage}: warning: {warning}")
    inputs = locate_inputs(stage, config, given)
    place = {"output": storage.normalise(to)} if to is not None else {"root": stage_root(config, stage)}
    root = place["root"] if to is None else place["output"].rpartition("/")[0]
    if stage == "shard":
        check_apart(config.sharding.source, next(iter(place.values())))
    attempt = new_attempt_id()
    trace = StageTrace(stage, attempt_folder(root, attempt))
    with _writable("", root):
        require_room(root)
        if to is not None:
            # Another's folder is refused before an attempt is written beside it.
            mark_folder(place["output"], stage)
        trace.folder.mkdir(parents=True, exist_ok=True)
    options = {**place, **inputs, "attempt": attempt, "events": str(trace.folder)}
    command = stage_command(stage, config, options, flags=["fresh"] if fresh else [])
    with _caught_signals() as received, make_view([stage]) as view:
        uri = _run_command(command, trace, received, view, config.resources.stop_budget_s)
    # The shard stage has said its own.
    for warning in read_warnings(inputs["shards"]) if stage != "shard" else []:
        say(f"{stage}: warning: {warning}")
    return StageOutput(uri, trace.reused, storage.normalise(trace.folder))


def locate_inputs(stage: str, config: RunConfig, given: Mapping[str, str | None]) -> dict[str, str]:
    """Return the URI of each input of a stage: what was given, else the line's own.

    The line's own is the finished output of this configuration's earlier stage; that stage's command finds it
    (`--locate`), since only a stage knows what its fingerprint holds.

    Raises:
        StageFailed: An earlier stage has not run; the error says which.
    """
    inputs: dict[str, str] = {}
    for name, maker in INPUTS[stage].items():
        if (value := given.get(name)) is not None:
            inputs[name] = storage.normalise(value)
            continue
        # Shards, which the others are made from, come first.
        known = {need: inputs[need] for need in INPUTS[maker] if need in inputs}
        command = stage_command(maker, config, {"root": stage_root(config, maker), **known}, flags=["locate"])
        try:
            inputs[name] = last_line(_ask(maker, command))
        except StageFailed as failure:
            if name not in _OPTIONAL or failure.exit_code != EXIT_USER_ERROR:
                raise
            say(f"{stage}: goes on without a {name}: {str(failure).splitlines()[0]}")
    return inputs


def describe_shards(config: RunConfig) -> str:
    """Return in words what the shard stage would write.

    Raises:
        StageFailed: The source cannot be used.
    """
    command = stage_command("shard", config, {"root": stage_root(config, "shard")}, flags=["dry-run"])
    return _ask("shard", command).decode().rstrip()


def say(text: str) -> None:
    """Print a line on stderr, at once."""
    print(text, file=sys.stderr, flush=True)


def _require_source(config: RunConfig) -> None:
    if not config.sharding.source.strip():
        raise ConfigError(
            "sharding.source is not set",
            allowed="one folder of images per class, or a manifest",
            todo="set sharding.source to the folder of your images, or to a manifest",
        )
    source = storage.normalise(config.sharding.source)
    storage.bill(config.cloud.billing_project, source)
    if storage.is_local(source) and DATE_MARK not in source and not storage.exists(source):
        raise ConfigError(
            f"sharding.source {storage.display(source)} does not exist",
            allowed="one folder of images per class, or a manifest",
            todo="check the path: one without / at its start is below the folder that the command runs in",
        )


def _decide(config: RunConfig, line: str, run_id: str, uris: Mapping[str, str], received: list[int]) -> Decision:
    """Decide whether the export goes into production, and say what needs a user.

    Raises:
        ShardlineError: The comparison came to no end, or a signal to this process ended it.
    """
    from pipelines.promote import decide_here

    def run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
        say("gate: compares the export with the one in production")
        # Files, not pipes: nothing here reads while the process works.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            environment = stage_environment()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, process_group=0
            )
            while _is_running(process) and not received:
                pass
            if process.poll() is None:
                _end_group(process)
            if received:
                raise StageFailed(ErrorDocument.interrupted(signal.Signals(received[0])))
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(command, process.returncode, out.read(), err.read())

    decision = decide_here(config, line, run_id, export=uris["export"], shards=uris["shard"], run=run)
    if decision["verdict"] in ("kept out", "not compared"):
        reason = decision["reason"].replace("promote RUN", f"promote {storage.display(run_uri(line, run_id))}")
        say(f"gate: {decision['verdict']}, {storage.display(line)}/{PRODUCTION_NAME} is unchanged: {reason}")
    return decision


def _has_succeeded(config: RunConfig, line: str) -> bool:
    """Whether the line's newest run was of this very configuration, and succeeded: its stages are reused."""
    try:
        newest = RunRecord.parse(storage.read_bytes(storage.join(line, RUN_NAME)), where=line)
    except (FileNotFoundError, NotADirectoryError, DataError):
        return False
    return newest.state == "succeeded" and newest.config == config.model_dump(mode="json")


def _open_run(config: RunConfig, line: str, run_id: str, started_at_s: float) -> None:
    start: dict[str, object] = {"id": run_id, "started_at": _utc(started_at_s), "arguments": {"line": line}}
    start |= {"config": config.model_dump(mode="json"), **describe_previous(config, line)}
    content = json.dumps(start, sort_keys=True, indent=1) + "\n"
    storage.publish(storage.join(run_uri(line, run_id), RUN_START_NAME), content.encode())


def _import_closing() -> None:
    """Import the modules that the end of a run needs, while its first stage works: a quarter of a second."""
    for name in ("inspection.read", "inspection.record", "inspection.terminal"):
        importlib.import_module(name)


def _close_run(
    config: RunConfig,
    line: str,
    run_id: str,
    traces: list[StageTrace],
    error: ErrorDocument | None,
    started_at_s: float,
    decision: Decision | None,
) -> RunRecord:
    """Write the run's record and report."""
    from inspection.record import close_run, make_record
    from inspection.training import read_goodput

    record = make_record(
        run_id=run_id,
        started_at=_utc(started_at_s),
        config=config,
        traces=traces,
        wall_s=time.time() - started_at_s,
        error=error.message if error else "",
        interrupted=error is not None and error.kind in (INTERRUPTED, Preempted.__name__),
        goodput=read_goodput(line, run_id),
    )
    if decision is not None:
        record = record.model_copy(update={"results": {**record.results, "register": decision}})
    close_run(record, line=line)
    return record


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


@contextlib.contextmanager
def _writable(what: str, folder: str) -> Iterator[None]:
    """Turn what a folder refuses into an error about the configuration."""
    try:
        yield
    except (OSError, StorageError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.given
        raise ConfigError(
            f"{what}{storage.display(folder)} cannot be written ({reason})",
            allowed="a folder that you may write, or one that can be made",
            todo="set run.root, or --to, to another folder, or correct its permissions",
        ) from None


def _run_command(
    command: list[str], trace: StageTrace, received: list[int], view: PlainLines | Bars, stop_budget_s: float
) -> str:
    """Run a stage's command to its end, drawing its events; return the URI of the folder it finished.

    Args:
        command: The command and its arguments; all that it prints is appended to the attempt's log.
        trace: Takes in the events.
        received: Signals to this process, filled while this function runs.
        view: Draws the events.
        stop_budget_s: Seconds within which a training that is told to stop has saved.

    Raises:
        StageFailed: It failed, or a signal to this process ended it.
    """
    events = EventLog(trace.folder, stage=trace.name, attempt=trace.folder.name)
    launched_at = time.time()
    with (trace.folder / LOG_NAME).open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=stage_environment(), process_group=0
        )
    try:
        while _is_running(process) and not received:
            _draw(trace, view)
        if received:
            _draw(trace, view)
            if trace.uri is None:
                events.emit("interrupted", signal=signal.Signals(received[0]).name)
            if trace.uri is None and trace.name == _SAVING_STAGE and trace.started:
                process.send_signal(signal.SIGTERM)
                events.emit("log", message="saves and ends; a second signal ends it at once")
                deadline = time.monotonic() + stop_budget_s + _SAVING_SLACK_S
                while _is_running(process) and len(received) == 1 and time.monotonic() < deadline:
                    _draw(trace, view)
    finally:
        if received or process.poll() is None:
            _end_group(process)
    exit_code = process.wait()
    events.emit("exit", exit_code=exit_code, launched_at=launched_at, wall_s=time.time() - launched_at)
    _draw(trace, view)
    # The event is lost where the disk is full.
    trace.exit_code = exit_code
    if received and not trace.finished:
        raise StageFailed(ErrorDocument.interrupted(signal.Signals(received[0])))
    if (error := trace.find_error()) is not None:
        # Told to stop by a signal of its own: on this machine that is somebody who sits here.
        trace.interrupted = trace.interrupted or error.kind in (INTERRUPTED, Preempted.__name__)
        raise StageFailed(error)
    if trace.uri is None:
        message = (
            f"the stage ended with exit code {exit_code}, and left no events in {trace.folder}\n"
            "  to do: see whether that disk is full, and run the same command again"
        )
        raise StageFailed(ErrorDocument(kind="Crash", exit_code=EXIT_FAULT, message=message))
    return trace.uri


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End every process of a process's group: a request first, then no choice; it has ended when this returns."""
    deadline = time.monotonic() + _GRACE_S
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(_POLL_S / 2)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    """Wait a moment for the process; return whether it still runs."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_POLL_S)
    return process.returncode is None


def _draw(trace: StageTrace, view: PlainLines | Bars) -> None:
    for event in trace.poll():
        view.show(trace, event)


@contextlib.contextmanager
def _caught_signals() -> Iterator[list[int]]:
    """Collect signals instead of dying of them."""
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        received.append(number)

    # What was ignored from outside (nohup, a job in the background) stays ignored.
    wanted = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, remember) for number in wanted}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ask(stage: str, command: list[str]) -> bytes:
    """Run a stage's command that only answers, and return what it printed.

    Raises:
        StageFailed: It said no.
    """
    answer = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, env=stage_environment(), check=False
    )
    if answer.returncode == EXIT_OK:
        return answer.stdout
    said = answer.stderr.decode(errors="replace").strip()
    # A stage's last words are `NAME: error: MESSAGE`, over several lines; warnings of libraries may stand before.
    message = said.rpartition(f"{stage}: error: ")[2] or f"the command of stage {stage} ended with {answer.returncode}"
    code = max(answer.returncode, 0) or EXIT_FAULT
    raise StageFailed(ErrorDocument(kind="Answer", exit_code=code, message=message))
