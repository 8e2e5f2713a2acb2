"""The frame of every stage command: arguments, reuse, events, errors and exit codes.

A stage is `python -m sharding.task`, `trainer.profiling.task`, `trainer.task` or `trainer.export.task`. All take

    --config URI --config-sha256 HEX    its sections of the configuration as JSON (or --config-json TEXT, by hand)
    --root URI | --output URI           the folder of this stage's outputs (the fingerprint is appended), or one folder
    --line URI --run ID                 the folder of the stage below a line, and the run that it works for
    --shards, --profile, --checkpoint   URIs of inputs
    --fresh                             delete this configuration's own output first
    --locate                            print the URI of a finished output and do no work
    --where                             say where the output is or will be, and whether it is finished; do no work
    --dry-run                           print what would be done and do no work (stage shard)

print the URI of the finished folder as the last line on stdout, and leave events.jsonl, and error.json when they fail,
in `attempts/ATTEMPT/` beside the output: events begin before a folder given by --output is known to be this stage's, go
on while --fresh empties it, and an error must outlive both. `--events FOLDER` puts them elsewhere. Of an output in a
bucket they are kept where the stage asks for it: written on this machine's disk, and copied as they grow.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, Contract, OtherVersion, find_damage
from contracts.config import STAGE_KEYS, RunConfig
from contracts.config.load import read_stage_config, with_data_date
from contracts.endings import JOB_ID_VARIABLE, final_exit_code, outliving_notice
from contracts.errors import (
    EXIT_OK,
    EXIT_USER_ERROR,
    ConfigError,
    DataError,
    ErrorDocument,
    ShardlineError,
    UserError,
)
from contracts.events import ERROR_NAME, EventLog
from contracts.fingerprint import combine
from contracts.job import JobMarker, ToldError
from contracts.keeper import Keeper, open_events, parent_of
from contracts.output import Lock, empty_folder, mark_folder, require_room
from contracts.own_code import install_code, pin_code, publish_code, with_installed
from contracts.process import end_with_parent, imports_done
from contracts.result import leave_result
from contracts.stage_options import parse_options

# Local outputs up to this size are read whole before they are reused. Above it only sizes are compared: reading would
# take longer than a reuse may, and every sample is checked again when it is read.
REUSE_CHECKSUM_BYTES = 1 << 30
# Its first line names the version of NVIDIA's driver, where there is one.
DRIVER_FILE = Path("/proc/driver/nvidia/version")


def new_attempt_id() -> str:
    """Return an id of time (UTC) and four digits: sortable, and unique enough for one folder."""
    now = time.time_ns()
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(now // 10**9)) + f"-{(now // 10**5 + os.getpid()) % 10**4:04d}"


@dataclass
class Output:
    """The folder that a stage writes, claimed for this process."""

    uri: str
    fingerprint: str
    made_from: dict[str, str]
    reused: bool
    """A finished document was found: there is nothing to do."""


@dataclass
class Stage:
    """One attempt of a stage: its configuration, inputs and voice."""

    name: str
    config: RunConfig
    events: EventLog
    attempt: str
    run: str = ""
    """Id of the run that it works for; empty: none."""
    root: str | None = None
    output: str | None = None
    shards: str | None = None
    profile: str | None = None
    checkpoint: str | None = None
    fresh: bool = False
    locate: bool = False
    dry_run: bool = False
    where: bool = False
    """Only where the output is, and whether it is finished, is asked for."""
    machine: str | None = None
    """What the machine that this is for is called; None: this one is looked at."""
    software: str | None = None
    """What stands for the installed software, e.g. the digest of an image; None: it is looked at."""
    launch: Path | None = None
    """File for the name of the service's job (stage shard): the work is begun, and not waited for."""
    expect: str | None = None
    """Where a task that looked before has seen the output."""
    claimed: Output | None = None
    """The folder that `claim` has found."""
    _lock: Lock | None = field(default=None, repr=False)
    _keeper: Keeper | None = field(default=None, repr=False)

    @property
    def line(self) -> str:
        """URI of the line's folder; empty: the work is for none."""
        return parent_of(self.root) if self.root is not None else ""

    @property
    def place(self) -> str:
        """URI of the folder that holds this stage's outputs, and what tells about them."""
        return self.root if self.root is not None else parent_of(self.output or "")

    def keep(self, folder: Path, uri: str) -> None:
        """Copy a folder of this machine to a folder of the same name at `uri`, where that is a bucket."""
        self.keep_at(folder, storage.join(uri, folder.name))

    def keep_at(self, folder: Path, uri: str) -> None:
        """Copy a folder of this machine to `uri`, where that is a bucket."""
        if self._keeper is not None and not storage.is_local(uri):
            self._keeper.add(folder, uri)

    def require_events_folder(self) -> Path:
        """Return the folder of this attempt's events.

        Raises:
            DataError: Nothing is kept of this attempt.
        """
        if self.events.folder is None:
            raise DataError(
                f"nowhere to keep events of an output in {storage.display(self.place)}",
                allowed="a folder of this machine",
                todo="pass --events FOLDER",
            )
        return self.events.folder

    def log(self, message: str) -> None:
        """Say something: an event, and a line on stderr."""
        self.events.emit("log", message=message)
        print(f"{self.name}: {message}", file=sys.stderr, flush=True)

    def progress(self, done: float, total: float, unit: str, message: str = "") -> None:
        """Say how far the work is."""
        self.events.emit("progress", done=done, total=total, unit=unit, message=message)

    def ready(self) -> None:
        """Say that imports are done; what came before counts as process start."""
        imports_done()
        self.events.emit("ready")

    def require(self, name: str) -> str:
        """Return the URI of an input.

        Raises:
            ConfigError: It was not given.
        """
        value: str | None = getattr(self, name)
        if value is None:
            raise ConfigError(f"no --{name} given", allowed=f"--{name} URI", todo="pass the URI that its stage printed")
        return value

    def claim(
        self,
        contract: type[Contract],
        made_from: dict[str, str],
        *,
        joins: bool = False,
    ) -> Output:
        """Take the folder of this work: finished and sound means reuse, else it is this process's until it ends.

        Args:
            contract: Type of the document that ends the work.
            made_from: Hashes that decide the result.
            joins: A process on another machine has the folder, and this one works for it: it only looks.

        Raises:
            ConfigError: `--output` holds a finished document of other inputs.
            DataError: `--locate`, and nothing finished is there.
            TryAgain: Another process works on this folder.
        """
        self.claimed = self._claim(contract, made_from, joins=joins)
        return self.claimed

    def _claim(self, contract: type[Contract], made_from: dict[str, str], *, joins: bool) -> Output:
        key = combine(made_from)
        uri = self.output or storage.join(self.root or "", key)
        looks = self.locate or self.where or joins
        if not looks:
            self._lock = Lock(uri)
            if self.output is not None:
                mark_folder(uri, self.name)
            if self.fresh:
                self.discard(uri)
        self.events.emit("folder", uri=uri, fingerprint=key)
        if looks and self.fresh:
            # What is there now is about to be deleted.
            return Output(uri, key, made_from, reused=False)
        if storage.exists(storage.join(uri, MANIFEST_NAME)):
            document = self._load(contract, uri)
            if document is not None and document.fingerprint != key:
                changed = sorted(name for name in made_from if document.made_from.get(name) != made_from[name])
                raise ConfigError(
                    f"{storage.display(uri)} holds a result of other inputs ({', '.join(changed) or 'unknown'})",
                    allowed="an empty folder, or one of the same configuration",
                    todo="choose another --output, or delete that folder yourself",
                )
            damage = find_output_damage(uri, document)
            if damage is None:
                self.events.emit("reused", uri=uri)
                return Output(uri, key, made_from, reused=True)
            if not looks:
                self.log(f"{storage.display(uri)} is damaged ({damage}): it is made again")
                self.discard(uri)
        if self.locate:
            raise DataError(
                f"no finished output of stage {self.name} for this configuration in {storage.display(uri)}",
                allowed="a configuration whose earlier stages have run",
                todo=f"run `shardline {self.name} CONFIG` first, or pass the URI of its output",
            )
        return Output(uri, key, made_from, reused=False)

    def _load(self, contract: type[Contract], uri: str) -> Contract | None:
        """Return the document of a folder; None when it is damaged in a folder that only this stage writes."""
        try:
            return contract.load(uri)
        except OtherVersion:
            raise
        except DataError:
            if self.output is not None:
                raise
            return None

    def discard(self, uri: str) -> None:
        """Delete what is in this stage's folder."""
        if self.output is None:
            storage.delete_tree(uri, manifest_name=MANIFEST_NAME)
        else:
            empty_folder(uri)

    def commit(self, output: Output, document: Contract, made: str) -> None:
        """Publish the document that makes the output exist, and say what was made."""
        storage.publish(storage.join(output.uri, MANIFEST_NAME), document.to_json())
        self.finished(output, made)

    def finished(self, output: Output, made: str) -> None:
        """Say what was made; its document is published."""
        self.events.emit("finish", uri=output.uri, made=made)

    def release(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def run_stage(
    name: str,
    execute: Callable[[Stage], str],
    arguments: Sequence[str] | None = None,
    *,
    keep_attempt: bool = False,
) -> int:
    """Run a stage command and return its exit code.

    Args:
        name: Name of the stage.
        execute: Does the work and returns the URI of the finished folder.
        arguments: Command line, default that of the process.
        keep_attempt: Copy what the attempt leaves beside an output in a bucket.
    """
    options = parse_options(name, arguments)
    if options.end_with_parent:
        end_with_parent()

    def say(message: str) -> None:
        print(f"{name}: {message}", file=sys.stderr, flush=True)

    if DRIVER_FILE.is_file():
        # First: what a container's CUDA fails on is the driver of its machine.
        say(DRIVER_FILE.read_text(encoding="utf-8", errors="replace").partition("\n")[0])
    with outliving_notice(say):
        error = _attempt(name, execute, options, keep_attempt=keep_attempt)
        return final_exit_code(EXIT_OK if error is None else error.exit_code, error, say)


def _attempt(
    name: str, execute: Callable[[Stage], str], options: argparse.Namespace, *, keep_attempt: bool
) -> ErrorDocument | None:
    """Do the work of a stage command; return why it failed. Everything that it keeps is in its place then."""
    attempt = options.attempt or (f"{options.run}." if options.run else "") + new_attempt_id()
    events = EventLog(None, stage=name, attempt=attempt)
    stage = keeper = marker = None
    try:
        events, keeper = open_events(name, options, attempt, keep=keep_attempt or options.run is not None)
        events.emit("start", launched_at=options.launched_at or time.time(), pid=os.getpid(), run=options.run)
        if not options.looks and (place := options.root or options.output):
            require_room(storage.normalise(place) if options.root else parent_of(storage.normalise(place)))
        if not options.looks and options.root:
            marker = JobMarker(storage.normalise(options.root), os.environ.get(JOB_ID_VARIABLE, ""))
            marker.require_open()
        stage = _make_stage(name, options, events, keeper)
        _take_own_code(stage, looks=options.looks)
        print(execute(stage), flush=True)
        _tell_result(stage, options)
    except KeyboardInterrupt as error:
        events.emit("interrupted", signal=signal.SIGINT.name)
        return _report(name, error, events, debug=False)
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        document = ErrorDocument.of(error)
        if marker is not None and document.exit_code == EXIT_USER_ERROR and isinstance(error, (UserError, ToldError)):
            _end_job(name, marker, document)
        return _report(name, error, events, debug=options.debug)
    finally:
        if stage is not None:
            stage.release()
        if keeper is not None and keeper.close() and not options.events and events.folder is not None:
            shutil.rmtree(events.folder, ignore_errors=True)
    return None


def _take_own_code(stage: Stage, *, looks: bool) -> None:
    """Pin own code, copy it where that has not been done, and make it importable; who only looks does neither."""
    if "code" not in STAGE_KEYS[stage.name]:
        return
    pinned = pin_code(stage.config, parent_of(stage.root) if stage.root is not None else stage.place)
    stage.config = pinned.config
    for warning in pinned.warnings:
        stage.log(f"warning: {warning}")
    if stage.software is None:
        # Else the digest of the image stands for what is installed.
        stage.config = with_installed(stage.config)
    if not looks:
        publish_code(pinned)
        install_code(stage.config.code)


def _tell_result(stage: Stage, options: argparse.Namespace) -> None:
    """Say where the output is: to the run that the stage works for, and in the files that a task's outputs are."""
    found = stage.claimed
    if found is None or options.dry_run or options.locate:
        return
    finished = found.reused or not (stage.where or options.launch)
    if finished and options.line and options.run:
        leave_result(storage.normalise(options.line), options.run, stage.name, found.uri, reused=found.reused)
    for path, text in ((options.write_uri, found.uri), (options.write_finished, "yes" if finished else "no")):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def find_output_damage(uri: str, document: Contract | None) -> str | None:
    """Return what is wrong with a finished output before it is reused, or None."""
    if document is None:
        return f"{MANIFEST_NAME} cannot be read"
    if contradiction := document.find_contradiction():
        return contradiction
    files = document.owned_files()
    # A bucket tells its own checksums, with the sizes.
    checksums = not storage.is_local(uri) or sum(entry.bytes for entry in files) <= REUSE_CHECKSUM_BYTES
    return find_damage(uri, files, checksums=checksums)


def _end_job(name: str, marker: JobMarker, document: ErrorDocument) -> None:
    """End later attempts of the job; where that cannot be written, e.g. in a bucket that is gone, the error stays."""
    try:
        marker.end(document)
    except (OSError, ShardlineError) as unsaid:
        print(f"{name}: the end of job {marker.job_id} could not be written down: {unsaid}", file=sys.stderr)


def _report(name: str, error: BaseException, events: EventLog, *, debug: bool) -> ErrorDocument:
    document = ErrorDocument.of(error, traceback.format_exc())
    try:
        events.emit("error", exit_code=document.exit_code, message=document.message)
        if events.folder is not None:
            target = storage.normalise(events.folder / ERROR_NAME)
            storage.replace(target, document.model_dump_json(indent=1).encode())
    except (OSError, ShardlineError) as unsaid:
        # A full disk must not change how the stage ends.
        print(f"{name}: the error below could not be written down: {unsaid}", file=sys.stderr)
    if debug:
        print(document.traceback, file=sys.stderr)
    print(f"{name}: error: {document.message}", file=sys.stderr, flush=True)
    return document


def _make_stage(name: str, options: argparse.Namespace, events: EventLog, keeper: Keeper | None) -> Stage:
    if (options.root is None) == (options.output is None):
        raise ConfigError("neither or both of --root and --output", allowed="one of them", todo="pass one of them")

    uris = ("root", "output", "shards", "profile", "checkpoint", "expect")
    passed = ("fresh", "locate", "dry_run", "where", "machine", "software", "launch")
    given: dict[str, Any] = {name: getattr(options, name) for name in (*uris, *passed)}
    given |= {name: storage.normalise(given[name]) for name in uris if given[name] is not None}
    config = read_stage_config(options.config, options.config_sha256, options.config_json)
    return Stage(
        name=name,
        config=with_data_date(config, options.data_date),
        events=events,
        attempt=events.attempt,
        run=options.run or "",
        **given,
        _keeper=keeper,
    )
