"""The frame of every stage command: arguments, reuse, events, errors and exit codes.

A stage is `python -m sharding.task`, `trainer.profiling.task`, `trainer.task` or `trainer.export.task`. All take

    --config URI --config-sha256 HEX    its sections of the configuration as JSON (or --config-json TEXT, by hand)
    --root URI | --output URI           the folder of this stage's outputs (the fingerprint is appended), or one folder
    --shards, --profile, --checkpoint   URIs of inputs
    --fresh                             delete this configuration's own output first
    --locate                            print the URI of a finished output and do no work
    --dry-run, --prices FILE            print what would be done and do no work (stage shard)

print the URI of the finished folder as the last line on stdout, and leave events.jsonl, and error.json when they fail,
in `attempts/ATTEMPT/` beside the output.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, Contract, NewerVersion, find_damage
from contracts.config import RunConfig
from contracts.errors import EXIT_OK, ConfigError, DataError, ErrorDocument, StorageError, TryAgain
from contracts.events import ATTEMPTS_FOLDER, ERROR_NAME, EventLog
from contracts.fingerprint import combine
from contracts.process import end_with_parent, imports_done
from contracts.resolve import parse_config

# Outputs up to this size are read whole before they are reused. Above it only sizes are compared: reading would take
# longer than a reuse may, and every sample is checked again when it is read.
REUSE_CHECKSUM_BYTES = 1 << 30

# Says whose folder a given --output is.
MARK_NAME = ".stage"


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
    root: str | None = None
    output: str | None = None
    shards: str | None = None
    profile: str | None = None
    checkpoint: str | None = None
    fresh: bool = False
    locate: bool = False
    dry_run: bool = False
    prices: str | None = None
    """Path of a price file, for a dry run."""
    _lock: TextIO | None = field(default=None, repr=False)

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
    ) -> Output:
        """Take the folder of this work: finished and sound means reuse, else it is this process's until it ends.

        Args:
            contract: Type of the document that ends the work.
            made_from: Hashes that decide the result.

        Raises:
            ConfigError: `--output` holds a finished document of other inputs.
            DataError: `--locate`, and nothing finished is there.
            TryAgain: Another process works on this folder.
        """
        key = combine(made_from)
        uri = self.output or storage.join(self.root or "", key)
        if not self.locate:
            self._take_lock(uri)
            if self.output is not None:
                self._take_output(uri)
            if self.fresh:
                self._discard(uri)
        self.events.emit("folder", uri=uri, fingerprint=key)
        if storage.exists(storage.join(uri, MANIFEST_NAME)):
            document = self._load(contract, uri)
            if document is not None and document.fingerprint != key:
                changed = sorted(name for name in made_from if document.made_from.get(name) != made_from[name])
                raise ConfigError(
                    f"{storage.display(uri)} holds a result of other inputs ({', '.join(changed) or 'unknown'})",
                    allowed="an empty folder, or one of the same configuration",
                    todo="choose another --output, or delete that folder yourself",
                )
            damage = _find_damage(uri, document)
            if damage is None:
                self.events.emit("reused", uri=uri)
                return Output(uri, key, made_from, reused=True)
            if not self.locate:
                self.log(f"{storage.display(uri)} is damaged ({damage}): it is made again")
                self._discard(uri)
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
        except NewerVersion:
            raise
        except DataError:
            if self.output is not None:
                raise
            return None

    def _take_output(self, uri: str) -> None:
        """See to it that a folder given by --output is this stage's own: new, empty, or marked by an attempt of it.

        Raises:
            ConfigError: It holds files that no attempt of this stage has written.
        """
        mark = storage.join(uri, MARK_NAME)
        names = storage.list_names(uri)
        if names and MARK_NAME not in names:
            raise ConfigError(
                f"--output {storage.display(uri)} holds files that stage {self.name} did not write "
                f"({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})",
                allowed="a new or an empty folder, or one that this stage has written",
                todo="choose another --output",
            )
        if names and storage.read_bytes(mark).decode(errors="replace").strip() != self.name:
            raise ConfigError(
                f"--output {storage.display(uri)} belongs to another stage",
                allowed=f"a new or an empty folder, or one that stage {self.name} has written",
                todo="choose another --output",
            )
        storage.replace(mark, f"{self.name}\n".encode())

    def _discard(self, uri: str) -> None:
        """Delete what is in this stage's folder, manifests first; the mark of --output stays."""
        if self.output is None:
            storage.delete_tree(uri, manifest_name=MANIFEST_NAME)
            return
        storage.delete(storage.join(uri, MANIFEST_NAME))
        for name in storage.list_names(uri):
            if name != MARK_NAME:
                entry = storage.join(uri, name)
                if not storage.is_local(entry) or storage.local_path(entry).is_dir():
                    storage.delete_tree(entry, manifest_name=MANIFEST_NAME)
                if storage.exists(entry):
                    storage.delete(entry)

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
            self._lock.close()
            self._lock = None

    def _take_lock(self, uri: str) -> None:
        """Hold a lock on a local folder for the life of this process; the kernel drops it when the process dies."""
        if not storage.is_local(uri):
            return
        path = storage.local_path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.with_name(f".{path.name}.lock").open("a+")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            stream.close()
            raise TryAgain(
                f"another process (pid {holder}) is working on {storage.display(uri)}; wait for it to end, or end it"
            ) from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        self._lock = stream


def run_stage(name: str, execute: Callable[[Stage], str], arguments: Sequence[str] | None = None) -> int:
    """Run a stage command and return its exit code.

    Args:
        name: Name of the stage.
        execute: Does the work and returns the URI of the finished folder.
        arguments: Command line, default that of the process.
    """
    options = _parse(name, arguments)
    if options.end_with_parent:
        end_with_parent()
    events = EventLog(None, stage=name, attempt=options.attempt or new_attempt_id())
    stage = None
    try:
        events = _open_events(name, options, events.attempt)
        events.emit("start", launched_at=options.launched_at or time.time(), pid=os.getpid())
        stage = _make_stage(name, options, events)
        print(execute(stage), flush=True)
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        return _report(name, error, events, debug=options.debug)
    finally:
        if stage is not None:
            stage.release()
    return EXIT_OK


def _find_damage(uri: str, document: Contract | None) -> str | None:
    if document is None:
        return f"{MANIFEST_NAME} cannot be read"
    files = document.owned_files()
    checksums = sum(entry.bytes for entry in files) <= REUSE_CHECKSUM_BYTES
    return find_damage(uri, files, checksums=checksums)


def _report(name: str, error: Exception, events: EventLog, *, debug: bool) -> int:
    document = ErrorDocument.of(error, traceback.format_exc())
    try:
        events.emit("error", exit_code=document.exit_code, message=document.message)
        if events.folder is not None:
            target = storage.normalise(events.folder / ERROR_NAME)
            storage.replace(target, document.model_dump_json(indent=1).encode())
    except OSError as unsaid:
        # A full disk must not change how the stage ends.
        print(f"{name}: the error below could not be written down: {unsaid}", file=sys.stderr)
    if debug:
        print(document.traceback, file=sys.stderr)
    print(f"{name}: error: {document.message}", file=sys.stderr, flush=True)
    return document.exit_code


def _parse(name: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"stage {name}", allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("--config-sha256")
    parser.add_argument("--config-json")
    parser.add_argument("--root")
    parser.add_argument("--output")
    parser.add_argument("--shards")
    parser.add_argument("--profile")
    parser.add_argument("--checkpoint")
    parser.add_argument("--attempt", default=None)
    parser.add_argument("--launched-at", type=float, default=None)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--locate", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--prices", default=None)
    parser.add_argument("--end-with-parent", action="store_true")
    parser.add_argument("--debug", action="store_true")
    return parser.parse_args(arguments)


def _open_events(name: str, options: argparse.Namespace, attempt: str) -> EventLog:
    folder = None
    if not (options.locate or options.dry_run):
        # The parent of one output folder is what --root is for many: attempts lie beside the outputs in both.
        place = options.root or (options.output or "").rstrip("/").rpartition("/")[0]
        if place and storage.is_local(storage.normalise(place)):
            folder = storage.local_path(storage.normalise(place)) / ATTEMPTS_FOLDER / attempt
    try:
        return EventLog(folder, stage=name, attempt=attempt)
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be made ({error.strerror})",
            allowed="a folder that you may write, or one that can be made",
            todo="choose another folder, or correct its permissions",
        ) from None


def _make_stage(name: str, options: argparse.Namespace, events: EventLog) -> Stage:
    if (options.root is None) == (options.output is None):
        raise ConfigError("neither or both of --root and --output", allowed="one of them", todo="pass one of them")

    def uri(value: str | None) -> str | None:
        return None if value is None else storage.normalise(value)

    return Stage(
        name=name,
        config=read_stage_config(options.config, options.config_sha256, options.config_json),
        events=events,
        attempt=events.attempt,
        root=uri(options.root),
        output=uri(options.output),
        shards=uri(options.shards),
        profile=uri(options.profile),
        checkpoint=uri(options.checkpoint),
        fresh=options.fresh,
        locate=options.locate,
        dry_run=options.dry_run,
        prices=options.prices,
    )


def read_stage_config(config_uri: str | None, sha256: str | None, text: str | None) -> RunConfig:
    """Read a stage's sections, from a URI whose content must have the hash `sha256`, or from JSON text.

    Raises:
        ConfigError: None or both are given, the content changed, or it is no valid configuration.
    """
    if (config_uri is None) == (text is None):
        raise ConfigError(
            "neither or both of --config and --config-json",
            allowed="one of them",
            todo="pass a URI with --config-sha256, or JSON text by hand",
        )
    if config_uri is not None:
        try:
            content = storage.read_bytes(storage.normalise(config_uri))
        except (FileNotFoundError, IsADirectoryError):
            raise ConfigError(
                f"configuration {config_uri} is not there", allowed="the URI of a JSON file", todo="check the URI"
            ) from None
        found = hashlib.sha256(content).hexdigest()
        if sha256 != found:
            raise ConfigError(
                f"{config_uri} has sha256 {found}, --config-sha256 says {sha256}",
                allowed="the content that was submitted",
                todo="submit again; a stage's configuration must not change under a run",
            )
        text = content.decode()
    assert text is not None
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the configuration is not JSON: {error}", allowed="JSON", todo="correct it") from None
    return parse_config(values, where=config_uri or "--config-json")
