"""Common part of all stage commands: arguments, claim and reuse of the output folder, events, errors, exit codes.

A stage is `python -m sharding.task`, `trainer.profiling.task`, `trainer.task` or `trainer.export.task`. All take

    --config-json TEXT                  the keys of the configuration that it reads, as JSON
    --root URI | --output URI           the folder of this stage's outputs (the fingerprint is appended), or one folder
    --shards, --profile, --checkpoint   URIs of inputs
    --fresh                             delete this configuration's own output first
    --locate                            print the URI of a finished output and do no work
    --dry-run                           print what would be done and do no work (stage shard)
    --list                              list the source and print the URI of its shards, present or future (stage shard)
    --listing URI                       shard that listing (stage shard)
    --line URI --run ID                 of a run: --root LINE/STAGE, and the attempt is the run's

and print the URI of the finished folder as the last line on stdout. events.jsonl, and error.json after a failure, are
in `attempts/ATTEMPT/` beside the output, so that they survive a refused output and --fresh; `--events FOLDER` selects
another folder. For an output in a bucket they are written locally and copied (contracts/attempts.py).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, Contract, OtherVersion, find_damage
from contracts.attempts import Copier, open_attempt, parent_of
from contracts.config import STAGE_KEYS, RunConfig
from contracts.config.load import read_stage_config, with_data_date
from contracts.errors import EXIT_OK, ConfigError, DataError, ErrorDocument, ShardlineError
from contracts.events import ERROR_NAME, EventLog
from contracts.fingerprint import combine
from contracts.output import Lock, empty_folder, mark_folder, require_room
from contracts.own_code import install_code, pin_code, publish_code
from contracts.process import end_with_parent, final_exit_code, imports_done, outliving_notice

# Checksums of local outputs up to this size are verified before reuse. Of larger ones only sizes are compared, since
# reading takes too long, and every sample is verified again when it is read.
REUSE_CHECKSUM_BYTES = 1 << 30
# Its first line has the version of NVIDIA's driver.
DRIVER_FILE = Path("/proc/driver/nvidia/version")
_INPUTS = ("shards", "profile", "checkpoint")
_SWITCHES = ("fresh", "locate", "dry-run", "list", "end-with-parent")
_OPTIONS = ("config-json", "line", "run", "root", "output", *_INPUTS, "listing", "attempt", "events")


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
    """Whether a finished output exists, so that there is nothing to do."""


@dataclass
class Stage:
    """One attempt of a stage: its configuration, input URIs, event log and output folder."""

    name: str
    config: RunConfig
    events: EventLog
    attempt: str
    root: str | None = None
    output: str | None = None
    shards: str | None = None
    profile: str | None = None
    checkpoint: str | None = None
    fresh: bool = False
    locate: bool = False
    dry_run: bool = False
    run: str = ""
    """Id of its run; empty: none."""
    list: bool = False
    """Only publish the listing in the output's work folder, and return the output's URI."""
    listing: str | None = None
    """URI that `--list` has printed; its listing is used."""
    copier: Copier | None = field(default=None, repr=False)
    _lock: Lock | None = field(default=None, repr=False)

    @property
    def line(self) -> str:
        """URI of the line's folder; empty without a root."""
        return parent_of(self.root) if self.root is not None else ""

    @property
    def place(self) -> str:
        """URI of the folder that holds this stage's outputs and their attempts."""
        return self.root if self.root is not None else parent_of(self.output or "")

    def keep(self, folder: Path, uri: str) -> None:
        """Copy a growing local folder to `uri` periodically, if that is in a bucket."""
        if self.copier is not None and not storage.is_local(uri):
            self.copier.add(folder, uri)

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
        """Write a message to the events and to stderr."""
        self.events.emit("log", message=message)
        print(f"{self.name}: {message}", file=sys.stderr, flush=True)

    def progress(self, done: float, total: float, unit: str, message: str = "") -> None:
        """Report progress."""
        self.events.emit("progress", done=done, total=total, unit=unit, message=message)

    def ready(self) -> None:
        """Report that imports are done; the time before counts as process start."""
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

    def claim(self, contract: type[Contract], made_from: dict[str, str], *, joins: bool = False) -> Output:
        """Claim the output folder: reuse a finished and intact output, else lock the folder until the process ends.

        Args:
            contract: Type of the output's manifest.
            made_from: Hashes of the inputs that determine the result.
            joins: Only inspect the folder, since a process on another machine owns it.

        Raises:
            ConfigError: `--output` holds a finished document of other inputs.
            DataError: `--locate`, and there is no finished output.
            TryAgain: Another process works on this folder.
        """
        key = combine(made_from)
        uri = self.output or storage.join(self.root or "", key)
        output = Output(uri, key, made_from, reused=False)
        looks = self.locate or self.list or joins
        if not looks:
            self._lock = Lock(uri)
            if self.output is not None:
                mark_folder(uri, self.name)
            if self.fresh:
                self.discard(uri)
        self.events.emit("folder", uri=uri, fingerprint=key)
        if looks and self.fresh:
            # The existing output will be deleted.
            return output
        if storage.exists(storage.join(uri, MANIFEST_NAME)):
            damage = self._find_damage(contract, output)
            output.reused = damage is None
            if output.reused:
                self.events.emit("reused", uri=uri)
                return output
            # --list publishes its listing in this folder, so the damaged output is deleted before.
            if not looks or self.list:
                self.log(f"{storage.display(uri)} is damaged ({damage}): it is made again")
                self.discard(uri)
        if self.locate:
            raise DataError(
                f"no finished output of stage {self.name} for this configuration in {storage.display(uri)}"
                + self._describe_newest(contract, made_from),
                allowed="a configuration whose earlier stages have run",
                todo=f"run `shardline {self.name} CONFIG` first, or pass the URI of its output",
            )
        return output

    def _describe_newest(self, contract: type[Contract], made_from: dict[str, str]) -> str:
        """Return what differs in the newest finished output of this stage; empty: there is none."""
        finished = []
        for name in storage.list_names(self.root) if self.root is not None else []:
            uri = storage.join(self.root or "", name)
            with contextlib.suppress(DataError, FileNotFoundError, NotADirectoryError):
                document = contract.load(uri)
                finished.append((storage.info(storage.join(uri, MANIFEST_NAME)).updated_s, uri, document.made_from))
        if not finished:
            return ""
        _, uri, former = max(finished)
        names = sorted(name for name in made_from.keys() | former.keys() if made_from.get(name) != former.get(name))
        return f"; the newest one, {storage.display(uri)}, was made with another {', '.join(names)}"

    def _find_damage(self, contract: type[Contract], output: Output) -> str | None:
        """Return the damage of a finished output, or None; refuse an output of other inputs or another version."""
        try:
            document = contract.load(output.uri)
        except OtherVersion:
            raise
        except DataError:
            # Only this stage writes below its root; a folder given by --output may have another owner.
            if self.output is not None:
                raise
            return f"{MANIFEST_NAME} cannot be read"
        if document.fingerprint != output.fingerprint:
            made_from = output.made_from
            changed = sorted(name for name in made_from if document.made_from.get(name) != made_from[name])
            raise ConfigError(
                f"{storage.display(output.uri)} holds a result of other inputs ({', '.join(changed) or 'unknown'})",
                allowed="an empty folder, or one of the same configuration",
                todo="choose another --output, or delete that folder yourself",
            )
        return find_output_damage(output.uri, document)

    def discard(self, uri: str) -> None:
        """Delete the content of this stage's folder."""
        if self.output is None:
            storage.delete_tree(uri, manifest_name=MANIFEST_NAME)
        else:
            empty_folder(uri)

    def commit(self, output: Output, document: Contract, made: str) -> None:
        """Publish the manifest, which completes the output, and report the result."""
        storage.publish(storage.join(output.uri, MANIFEST_NAME), document.to_json())
        self.finished(output, made)

    def finished(self, output: Output, made: str) -> None:
        """Report the result of a published output."""
        self.events.emit("finish", uri=output.uri, made=made)

    def release(self) -> None:
        """Release the lock of the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def find_output_damage(uri: str, document: Contract) -> str | None:
    """Return the damage of a finished output, or None if it can be reused."""
    if inconsistency := document.inconsistency():
        return inconsistency
    files = document.owned_files()
    # A bucket returns checksums together with sizes.
    checksums = not storage.is_local(uri) or sum(entry.bytes for entry in files) <= REUSE_CHECKSUM_BYTES
    return find_damage(uri, files, checksums=checksums)


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
        execute: Function of the stage; returns the URI of the finished folder.
        arguments: Command line; default: that of the process.
        keep_attempt: Copy events and errors to the bucket of the output.
    """
    options = _parse(name, arguments)
    if options.end_with_parent:
        end_with_parent()

    def say(message: str) -> None:
        print(f"{name}: {message}", file=sys.stderr, flush=True)

    if DRIVER_FILE.is_file():
        # Logged first, since CUDA errors in containers are often caused by the machine's driver.
        say(DRIVER_FILE.read_text(encoding="utf-8", errors="replace").partition("\n")[0])
    with outliving_notice(say):
        error = _attempt(name, execute, options, keep=keep_attempt or options.run is not None)
        return final_exit_code(EXIT_OK if error is None else error.exit_code, error, say)


def _parse(stage: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line; sets `looks` (read-only) and, with --line, `root`."""
    parser = argparse.ArgumentParser(prog=f"stage {stage}", allow_abbrev=False)
    for name in _OPTIONS:
        parser.add_argument(f"--{name}")
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--launched-at", type=float)
    parser.add_argument("--data-date", default="")
    options = parser.parse_args(arguments)
    if options.line is not None:
        if options.root is not None or options.output is not None:
            parser.error("--line beside --root or --output: one of them")
        options.root = storage.join(options.line.rstrip("/"), stage)
    options.looks = options.locate or options.list or options.dry_run
    return options


def _attempt(
    name: str, execute: Callable[[Stage], str], options: argparse.Namespace, *, keep: bool
) -> ErrorDocument | None:
    """Run a stage command with its events and locks; return its error, or None."""
    attempt = options.attempt or (f"{options.run}." if options.run else "") + new_attempt_id()
    events = EventLog(None, stage=name, attempt=attempt)
    stage = copier = None
    try:
        events, copier = open_attempt(name, options, attempt, keep=keep)
        inputs = {name: uri for name in _INPUTS if (uri := getattr(options, name))}
        launched_at = options.launched_at or time.time()
        events.emit("start", launched_at=launched_at, pid=os.getpid(), run=options.run, inputs=inputs)
        if not options.looks and (place := options.root or options.output):
            require_room(storage.normalise(place) if options.root else parent_of(storage.normalise(place)))
        stage = _make_stage(name, options, events, copier)
        if "code" in STAGE_KEYS[name]:
            _install_own_code(stage, looks=options.looks)
        print(execute(stage), flush=True)
    except KeyboardInterrupt as error:
        events.emit("interrupted", signal=signal.SIGINT.name)
        return _report(name, error, events)
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        return _report(name, error, events)
    finally:
        if stage is not None:
            stage.release()
        if copier is not None and copier.close() and not options.events and events.folder is not None:
            shutil.rmtree(events.folder, ignore_errors=True)
    return None


def _make_stage(name: str, options: argparse.Namespace, events: EventLog, copier: Copier | None) -> Stage:
    if (options.root is None) == (options.output is None):
        raise ConfigError("neither or both of --root and --output", allowed="one of them", todo="pass one of them")

    def uri(name: str) -> str | None:
        value: str | None = getattr(options, name)
        return value and storage.normalise(value)

    return Stage(
        name=name,
        config=with_data_date(read_stage_config(options.config_json), options.data_date),
        events=events,
        attempt=events.attempt,
        run=options.run or "",
        fresh=options.fresh,
        locate=options.locate,
        dry_run=options.dry_run,
        list=options.list,
        copier=copier,
        root=uri("root"),
        output=uri("output"),
        shards=uri("shards"),
        profile=uri("profile"),
        checkpoint=uri("checkpoint"),
        listing=uri("listing"),
    )


def _install_own_code(stage: Stage, *, looks: bool) -> None:
    """Pin own code and, unless read-only, publish it and make it importable."""
    pinned = pin_code(stage.config, parent_of(stage.place) if stage.root is not None else stage.place)
    stage.config = pinned.config
    for warning in pinned.warnings:
        stage.log(f"warning: {warning}")
    if not looks:
        publish_code(pinned)
        install_code(stage.config.code)


def _report(name: str, error: BaseException, events: EventLog) -> ErrorDocument:
    document = ErrorDocument.of(error, traceback.format_exc())
    try:
        events.emit("error", exit_code=document.exit_code, message=document.message)
        if events.folder is not None:
            target = storage.normalise(events.folder / ERROR_NAME)
            storage.replace(target, document.model_dump_json(indent=1).encode())
    except (OSError, ShardlineError) as write_error:
        # A full disk must not change how the stage ends.
        print(f"{name}: the error below could not be written: {write_error}", file=sys.stderr)
    print(f"{name}: error: {document.message}", file=sys.stderr, flush=True)
    return document
