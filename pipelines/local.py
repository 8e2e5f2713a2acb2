"""Runs stages on this machine, in the foreground: the whole line (`shardline run`) or a single stage.

A stage is a command (components/launch.py) in its own process group; its events are displayed while it runs. Ctrl-C,
SIGTERM and SIGHUP end it; a training saves a checkpoint first, unless a second signal arrives. If this process is
killed, the stage ends too, and the same command resumes the run.

    RUN.ROOT/RUN.NAME/                     the line
        run.json                           copy of the newest run's record
        runs/ID/run-start.json             configuration; written first, create-only
        runs/ID/run.json                   record; written last
        production.json                    the export in production (components/gate.py)
        code/HASH.tar.gz                   the user's code, which the stages import
        STAGE/FINGERPRINT/                 outputs, shared by all runs of the line
        STAGE/attempts/ID/                 events.jsonl, log.txt and error.json of the run's attempt
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType

from components.gate import PRODUCTION_NAME, Decision, require_comparable
from components.launch import (
    OPTIONAL_INPUTS,
    STAGE_INPUTS,
    attempt_folder,
    last_line,
    stage_command,
    stage_environment,
)
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
    ForwardedError,
    Preempted,
    ShardlineError,
    StorageError,
)
from contracts.events import LOG_NAME, EventLog, print_error
from contracts.output import Lock, check_apart, mark_folder, require_room
from contracts.own_code import pin_code, publish_code
from contracts.previous import RUN_NAME, describe_previous
from contracts.result import RUN_START_NAME, run_uri
from contracts.stage import new_attempt_id
from inspection.stages import StageTrace, read_warnings
from pipelines.checks import check_local
from pipelines.place import line_uri, stage_root
from pipelines.progress import Bars, PlainLines, make_view
from pipelines.rules import check_cost_cap, check_line

_POLL_S = 0.1
# Time for a cancelled stage to exit. Results are already committed by manifests, and a training has saved.
_GRACE_S = 3.0
# The stage that saves on SIGTERM, and the time for its processes to exit after resources.stop_budget_s.
_SAVING_STAGE = "train"
_SAVING_SLACK_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class LineRun:
    """A run of the whole line that has ended."""

    line: str
    """URI of the line's folder."""
    record: RunRecord
    error: ErrorDocument | None


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
        # Checks the user's folder, since the archive is not published yet.
        check_local(config, print_error)
    config = code.config
    with _writable(f"run.root = {config.run.root!r}: ", line):
        require_room(line)
        # Held until the end: `shardline runs` tells a running run from a killed one by it.
        lock = Lock(run_uri(line, run_id))
        _open_run(config, line, run_id, started_at_s)
        publish_code(code)
    traces = {stage: StageTrace(stage, attempt_folder(storage.join(line, stage), run_id)) for stage in STAGES}
    uris: dict[str, str] = {}
    error, decision = None, None
    with _caught_signals() as received, make_view(STAGES) as view:
        for stage, trace in traces.items():
            options = {"line": line, "run": run_id, "attempt": run_id}
            options |= {name: uris[maker] for name, maker in STAGE_INPUTS[stage].items()}
            try:
                command = stage_command(stage, config, options, flags=["fresh"] if fresh else [])
                uris[stage] = _run_command(command, trace, received, view, config.resources.stop_budget_s)
                if received and stage != STAGES[-1]:
                    raise ForwardedError(ErrorDocument.interrupted(signal.Signals(received[0])))
            except ForwardedError as failure:
                error = failure.document.model_copy(update={"message": f"stage {stage}: {failure}"})
                break
        else:
            try:
                decision = _decide(config, line, run_id, uris, received)
            except ShardlineError as failure:
                error = ErrorDocument.of(failure)
    record = _close_run(config, line, run_id, list(traces.values()), error, started_at_s, decision)
    # Not in a `finally`: an abandoned lock file without a record marks a killed run.
    lock.release()
    return LineRun(line, record, error)


def run_stage_alone(
    stage: str, config: RunConfig, *, to: str | None, fresh: bool, **input_uris: str | None
) -> tuple[str, bool]:
    """Run one stage on the outputs of earlier stages; return the URI of its output, and whether that existed already.

    Args:
        stage: Its name.
        config: The resolved configuration, with absolute paths.
        to: Path or URI of the folder to write; None: the line's own folder.
        fresh: Delete the stage's own output for this configuration first.
        **input_uris: Paths or URIs of inputs, by name; None: the line's own.

    Raises:
        ForwardedError: It failed, or an earlier stage has not run.
        UserError: A path or URI cannot be used, or a cost cap has no price.
    """
    if stage == "train":
        check_cost_cap(config)
    if "code" in STAGE_KEYS[stage]:
        # For its errors and warnings only: the stage repeats it and copies the code.
        for warning in pin_code(config, line_uri(config)).warnings:
            print_error(f"{stage}: warning: {warning}")
    inputs = locate_inputs(stage, config, input_uris)
    place = {"output": storage.normalise(to)} if to is not None else {"root": stage_root(config, stage)}
    root = place["root"] if to is None else place["output"].rpartition("/")[0]
    if stage == "shard":
        check_apart(config.sharding.source, next(iter(place.values())))
    attempt = new_attempt_id()
    trace = StageTrace(stage, attempt_folder(root, attempt))
    with _writable("", root):
        require_room(root)
        if to is not None:
            # Refuses a foreign folder before an attempt is written beside it.
            mark_folder(place["output"], stage)
        trace.folder.mkdir(parents=True, exist_ok=True)
    options = {**place, **inputs, "attempt": attempt, "events": str(trace.folder)}
    command = stage_command(stage, config, options, flags=["fresh"] if fresh else [])
    with _caught_signals() as received, make_view([stage]) as view:
        uri = _run_command(command, trace, received, view, config.resources.stop_budget_s)
    # The shard stage prints its own warnings.
    for warning in read_warnings(inputs["shards"]) if stage != "shard" else []:
        print_error(f"{stage}: warning: {warning}")
    return uri, trace.reused


def locate_inputs(stage: str, config: RunConfig, input_uris: Mapping[str, str | None]) -> dict[str, str]:
    """Return the URI of each input of a stage: from `input_uris`, else the line's own.

    The line's own is the finished output of the earlier stage for this configuration. That stage's command finds it
    (`--locate`), since only the stage can compute its fingerprint.

    Raises:
        ForwardedError: An earlier stage has not run; the error says which.
    """
    inputs: dict[str, str] = {}
    for name, maker in STAGE_INPUTS[stage].items():
        if (value := input_uris.get(name)) is not None:
            inputs[name] = storage.normalise(value)
            continue
        # Shards, which the others are made from, come first.
        options = {need: inputs[need] for need in STAGE_INPUTS[maker] if need in inputs}
        command = stage_command(maker, config, {"root": stage_root(config, maker), **options}, flags=["locate"])
        try:
            inputs[name] = last_line(_query_stage(maker, command))
        except ForwardedError as failure:
            if name not in OPTIONAL_INPUTS or failure.exit_code != EXIT_USER_ERROR:
                raise
            print_error(f"{stage}: continues without a {name}: {str(failure).splitlines()[0]}")
    return inputs


def describe_shards(config: RunConfig) -> str:
    """Return a description of the shards that the shard stage would write.

    Raises:
        ForwardedError: The source cannot be used.
    """
    command = stage_command("shard", config, {"root": stage_root(config, "shard")}, flags=["dry-run"])
    return _query_stage("shard", command).decode().rstrip()


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
    """Decide whether the export goes into production; print a decision that needs the user.

    Raises:
        ShardlineError: The comparison failed, or a signal ended it.
    """
    from pipelines.promote import decide_here

    def run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
        print_error("gate: compares the export with the one in production")
        # Files, not pipes: nothing reads while the process runs.
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
                raise ForwardedError(ErrorDocument.interrupted(signal.Signals(received[0])))
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(command, process.returncode, out.read(), err.read())

    decision = decide_here(config, line, run_id, export=uris["export"], shards=uris["shard"], run=run)
    if decision["verdict"] in ("kept out", "not compared"):
        reason = decision["reason"].replace("promote RUN", f"promote {storage.display(run_uri(line, run_id))}")
        print_error(f"gate: {decision['verdict']}, {storage.display(line)}/{PRODUCTION_NAME} is unchanged: {reason}")
    return decision


def _has_succeeded(config: RunConfig, line: str) -> bool:
    """Return whether the line's newest run had this configuration and succeeded: its stages are reused."""
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


def _close_run(
    config: RunConfig,
    line: str,
    run_id: str,
    traces: list[StageTrace],
    error: ErrorDocument | None,
    started_at_s: float,
    decision: Decision | None,
) -> RunRecord:
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
def _writable(prefix: str, folder: str) -> Iterator[None]:
    """Convert write errors of a folder to ConfigError."""
    try:
        yield
    except (OSError, StorageError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.given
        raise ConfigError(
            f"{prefix}{storage.display(folder)} cannot be written ({reason})",
            allowed="a folder that you may write, or one that can be made",
            todo="set run.root, or --to, to another folder, or correct its permissions",
        ) from None


def _run_command(
    command: list[str], trace: StageTrace, received: list[int], view: PlainLines | Bars, stop_budget_s: float
) -> str:
    """Run a stage's command and display its events; return the URI of its finished output.

    Args:
        command: The command and its arguments; its output is appended to the attempt's log.
        trace: Reads the events.
        received: Signals to this process; appended by the signal handler.
        view: Displays the events.
        stop_budget_s: Seconds within which a training saves after SIGTERM.

    Raises:
        ForwardedError: It failed, or a signal to this process ended it.
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
        raise ForwardedError(ErrorDocument.interrupted(signal.Signals(received[0])))
    if (error := trace.find_error()) is not None:
        # A signal sent directly to the stage also means that the user stopped it.
        trace.interrupted = trace.interrupted or error.kind in (INTERRUPTED, Preempted.__name__)
        raise ForwardedError(error)
    if trace.uri is None:
        message = (
            f"the stage ended with exit code {exit_code}, without events in {trace.folder}\n"
            "  to do: see whether that disk is full, and run the same command again"
        )
        raise ForwardedError(ErrorDocument(kind="Crash", exit_code=EXIT_FAULT, message=message))
    return trace.uri


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process group: SIGTERM, then SIGKILL after a grace period; returns when it has ended."""
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
    """Return whether the process runs, after waiting up to _POLL_S for its end."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_POLL_S)
    return process.returncode is None


def _draw(trace: StageTrace, view: PlainLines | Bars) -> None:
    for event in trace.poll():
        view.show(trace, event)


@contextlib.contextmanager
def _caught_signals() -> Iterator[list[int]]:
    """Yield a list that collects the signals to this process; they do not end it."""
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        received.append(number)

    # What was ignored from outside (nohup, a job in the background) stays ignored.
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, remember) for number in handled}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _query_stage(stage: str, command: list[str]) -> bytes:
    """Run a stage's query command (--locate, --dry-run) and return its output.

    Raises:
        ForwardedError: It ended with an error.
    """
    answer = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, env=stage_environment(), check=False
    )
    if answer.returncode == EXIT_OK:
        return answer.stdout
    output = answer.stderr.decode(errors="replace").strip()
    # The output ends with `NAME: error: MESSAGE`, of several lines; warnings of libraries may precede it.
    message = (
        output.rpartition(f"{stage}: error: ")[2] or f"the command of stage {stage} ended with {answer.returncode}"
    )
    code = max(answer.returncode, 0) or EXIT_FAULT
    raise ForwardedError(ErrorDocument(kind="Answer", exit_code=code, message=message))
