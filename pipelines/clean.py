"""`shardline clean LINE --keep-last N`: the outputs of a line that its newest N runs do not need, and their deletion.

A run needs what its stages made or reused, and what these documents name in their turn: shards of an earlier increment,
the shards and the profile of a training, the training of an export. The newest finished training stays besides
(`model.weights: previous`), and so does what was written to since the oldest kept run began: unfinished work that a run
may go on with. Runs of another line, schedules, models and endpoints are not known here.

Only folders LINE/STAGE/FINGERPRINT are ever deleted, manifests first.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, ExportManifest, ProfileReport, ShardManifest
from contracts.config import STAGES
from contracts.errors import ConfigError, DataError, TryAgain
from contracts.fingerprint import FINGERPRINT_DIGITS
from contracts.output import Lock, is_locked
from contracts.previous import RUN_NAME, find_previous, list_finished
from contracts.result import RUN_START_NAME, RUNS_FOLDER, find_result, run_uri

# A run in a bucket that left no record: after this long it is dead. Jobs end after 7 days if nothing else is set.
_GOES_ON_S = 14 * 24 * 3600.0
_FINGERPRINT = re.compile(rf"[0-9a-f]{{{FINGERPRINT_DIGITS}}}")

Output = tuple[str, str]
"""Stage and fingerprint: a line that was moved still knows its outputs by them."""


@dataclass(frozen=True)
class Leftover:
    """A folder that can be deleted."""

    stage: str
    fingerprint: str
    uri: str
    num_bytes: int

    @property
    def name(self) -> str:
        """Path below the line."""
        return f"{self.stage}/{self.fingerprint}"


def find_leftovers(line: str, keep_last: int) -> list[Leftover]:
    """Return what the newest runs of a line do not need, by stage.

    Args:
        line: URI of the line's folder.
        keep_last: Number of runs to keep; one that may be going on is kept besides.

    Raises:
        ConfigError: It is no line with runs.
        DataError: A document that is needed is damaged, so that nobody knows what it needs.
    """
    needed, since_s = _find_needed(line, keep_last)
    found = []
    for stage in STAGES:
        root = storage.join(line, stage)
        for name in storage.list_names(root):
            uri = storage.join(root, name)
            if _FINGERPRINT.fullmatch(name) is None or (stage, name) in needed or not _is_folder(uri):
                continue
            objects = list(storage.list_objects(uri))
            if objects and max(one.updated_s for one in objects) < since_s:
                found.append(Leftover(stage, name, uri, sum(one.size for one in objects)))
    return found


def delete(line: str, leftovers: Sequence[Leftover], keep_last: int) -> list[Leftover]:
    """Delete what was found; return what was left alone, since a run needs it or a process has it by now."""
    # While a question was open, a run may have come to need it.
    still = set(find_leftovers(line, keep_last))
    left = []
    for leftover in leftovers:
        try:
            lock = Lock(leftover.uri)
        except TryAgain:
            left.append(leftover)
            continue
        try:
            if leftover not in still:
                left.append(leftover)
                continue
            storage.delete_tree(leftover.uri, manifest_name=MANIFEST_NAME)
        finally:
            lock.release()
    return left


def _find_needed(line: str, keep_last: int) -> tuple[set[Output], float]:
    """Return the outputs that the kept runs need, and when the oldest of them began, in seconds since 1970."""
    runs = {name: documents for name in _list(line, RUNS_FOLDER) if (documents := _read_documents(line, name))}
    if not runs:
        raise ConfigError(
            f"{storage.display(line)} holds no run: which outputs are needed is not known",
            allowed="the folder of a line with runs, as `shardline run` prints it",
            todo="name the line's folder; outputs of stages that were run by themselves can be deleted by hand",
        )
    began = {name: _seconds(documents) for name, documents in runs.items()}
    newest = sorted(runs, key=lambda name: (began[name], name), reverse=True)[:keep_last]
    kept = [name for name in runs if name in newest or _goes_on(line, name, runs[name], began[name])]
    named = {output for name in kept for output in _named_by(line, name, runs[name])}
    if (previous := find_previous(line)) is not None:
        named.add(_output_of(previous))
    return _follow(line, named | set(_parents_of_unfinished(line))), min(began[name] for name in kept)


def _list(*parts: str) -> list[str]:
    return storage.list_names(storage.join(*parts))


def _read_documents(line: str, run: str) -> dict[str, dict[str, Any]]:
    """Return run-start.json and run.json of a run, those that are there."""
    found = {}
    for name in (RUN_START_NAME, RUN_NAME):
        if document := _read_json(storage.join(run_uri(line, run), name)):
            found[name] = document
    return found


def _read_json(uri: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(storage.read_bytes(uri))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError:
        raise DataError(
            f"{storage.display(uri)} cannot be read", allowed="JSON", todo="delete its folder if it is not needed"
        ) from None
    return values


def _seconds(documents: dict[str, dict[str, Any]]) -> float:
    """Return when a run began."""
    return min(datetime.fromisoformat(str(each["started_at"])).timestamp() for each in documents.values())


def _goes_on(line: str, run: str, documents: dict[str, dict[str, Any]], began_s: float) -> bool:
    """Whether a run may be going on: by its lock here, by its age in a bucket."""
    if storage.is_local(line):
        return bool(is_locked(run_uri(line, run)))
    return RUN_NAME not in documents and time.time() - began_s < _GOES_ON_S


def _named_by(line: str, run: str, documents: dict[str, dict[str, Any]]) -> Iterator[Output]:
    """Yield the outputs that a run's own documents name."""
    for stage in STAGES:
        if (result := find_result(line, run, stage)) is not None:
            yield _output_of(result.uri)
    for document in documents.values():
        uris = [stage.get("uri") for stage in document.get("stages", ())]
        yield from (_output_of(uri) for uri in (*uris, document.get("previous_training")) if uri)


def _parents_of_unfinished(line: str) -> Iterator[Output]:
    """Yield the shards that increments which are being written are built on."""
    for name in _list(line, "shard"):
        work = storage.join(line, "shard", name, ".work")
        for plan in _list(work) if _FINGERPRINT.fullmatch(name) else ():
            if plan.startswith("plan-") and (append := _read_json(storage.join(work, plan)).get("append")):
                yield "shard", str(append["parent"])


def _output_of(uri: str) -> Output:
    _, stage, fingerprint = uri.rstrip("/").rsplit("/", 2)
    return stage, fingerprint


def _follow(line: str, named: set[Output]) -> set[Output]:
    """Return these outputs, and all that their documents name."""
    trainings: dict[str, Output] | None = None
    needed: set[Output] = set()
    waiting = list(named)
    while waiting:
        output = waiting.pop()
        stage, fingerprint = output
        uri = storage.join(line, stage, fingerprint)
        if not fingerprint or output in needed:
            continue
        needed.add(output)
        # What was deleted before, or lies in another line, names nothing here.
        if not storage.exists(storage.join(uri, MANIFEST_NAME)):
            continue
        if stage == "shard":
            shards = ShardManifest.load(uri)
            waiting += [("shard", name) for name in {shards.parent or "", *(e.folder for e in shards.owned_files())}]
        elif stage == "profile":
            report = ProfileReport.load(uri)
            waiting.append(("shard", report.shards_fingerprint))
        elif stage == "train":
            trained = CheckpointManifest.load(uri)
            waiting += [("shard", trained.shards_fingerprint), ("profile", trained.profile)]
        elif stage == "export":
            exported = ExportManifest.load(uri)
            if trainings is None:
                finished = list_finished(line).items()
                trainings = {document.parameters_sha256: _output_of(found) for found, document in finished}
            waiting.append(("shard", exported.shards_fingerprint))
            if (checkpoint := trainings.get(exported.checkpoint_sha256)) is not None:
                waiting.append(checkpoint)
    return needed


def _is_folder(uri: str) -> bool:
    """Whether it is a folder of its own: a link is somebody's choice of another place."""
    if not storage.is_local(uri):
        return True
    path = storage.local_path(uri)
    return path.is_dir() and not path.is_symlink()
