"""Deletion of a line's outputs that its newest runs do not name (`shardline clean LINE --keep-last N`).

Only folders LINE/STAGE/FINGERPRINT are deleted, manifests first. Besides the outputs of the newest runs, of as many
that succeeded, and of those that are working, it keeps the newest finished training (`model.weights: previous`), the
export in production (production.json), the shards that a kept output was made from, and what was written since the
oldest kept run began. Other lines, schedules and served models are not known here.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from components.gate import read_production
from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, ShardManifest
from contracts.config import STAGES
from contracts.errors import ConfigError, DataError, TryAgain
from contracts.fingerprint import FINGERPRINT_DIGITS
from contracts.output import Lock, is_locked
from contracts.previous import RUN_NAME, find_previous
from contracts.result import RUN_START_NAME, RUNS_FOLDER, run_uri
from inspection.stages import find_output

# A run in a bucket without a record is dead after this time: Vertex AI ends jobs after 7 days unless told otherwise.
_WORKING_S = 14 * 24 * 3600.0
_FINGERPRINT = re.compile(rf"[0-9a-f]{{{FINGERPRINT_DIGITS}}}")

Output = tuple[str, str]
"""Stage and fingerprint; not the URI, which changes when a line is moved."""


@dataclass(frozen=True)
class Leftover:
    """An output that can be deleted."""

    name: str
    """Path below the line, STAGE/FINGERPRINT."""
    uri: str
    num_bytes: int


@dataclass(frozen=True)
class _Run:
    name: str
    began_s: float
    """Seconds since 1970."""
    is_working: bool
    has_succeeded: bool
    outputs: frozenset[Output]


def find_leftovers(line: str, keep_last: int) -> list[Leftover]:
    """Return the outputs that the newest runs of a line do not need, by stage.

    Args:
        line: URI of the line's folder.
        keep_last: Number of runs to keep, besides those that are working.

    Raises:
        ConfigError: The folder holds no runs.
        DataError: A document that is needed is damaged.
        TryAgain: A run of a line in a bucket has no record.
    """
    runs = [run for name in storage.list_names(storage.join(line, RUNS_FOLDER)) if (run := _read_run(line, name))]
    if not runs:
        raise ConfigError(
            f"{storage.display(line)} contains no runs: the outputs in use cannot be determined",
            allowed="the folder of a line with runs, as `shardline run` prints it",
            todo="pass the line's folder; outputs of single stages can be deleted by hand",
        )
    runs.sort(key=lambda run: (run.began_s, run.name))
    working = [run.name for run in runs if run.is_working]
    if working and not storage.is_local(line):
        # The run may reuse older outputs through KFP's cache. It lists them only when it ends.
        raise TryAgain(
            f"run {working[-1]} of {storage.display(line)} has no record yet, and may use outputs of older "
            "runs from KFP's cache\n  to do: wait for its end, or `shardline cancel` it, which leaves a record; without"
            " one it counts as ended 14 days after its start"
        )
    # The last successful runs keep their export, even if all newer runs failed.
    succeeded = [run for run in runs if run.has_succeeded][-keep_last:]
    kept_runs = [run for run in runs if run in runs[-keep_last:] or run in succeeded or run.is_working]
    needed = _find_needed(line, {output for run in kept_runs for output in run.outputs})
    since_s = min(run.began_s for run in kept_runs)
    leftovers = []
    for stage, fingerprint in _list_outputs(line):
        uri = storage.join(line, stage, fingerprint)
        objects = list(storage.list_objects(uri))
        if (stage, fingerprint) not in needed and objects and max(entry.updated_s for entry in objects) < since_s:
            leftovers.append(Leftover(f"{stage}/{fingerprint}", uri, sum(entry.size for entry in objects)))
    return leftovers


def delete(line: str, leftovers: Sequence[Leftover], keep_last: int) -> list[Leftover]:
    """Delete leftovers; return those that were not deleted because they are in use by now."""
    deletable = find_leftovers(line, keep_last)
    in_use = []
    for leftover in leftovers:
        try:
            lock = Lock(leftover.uri)
        except TryAgain:
            in_use.append(leftover)
            continue
        try:
            if leftover in deletable:
                storage.delete_tree(leftover.uri, manifest_name=MANIFEST_NAME)
            else:
                in_use.append(leftover)
        finally:
            lock.release()
    return in_use


def _list_outputs(line: str) -> Iterator[Output]:
    """Yield the outputs of a line, without symbolic links: the user stores those elsewhere."""
    for stage in STAGES:
        root = storage.join(line, stage)
        for name in filter(_FINGERPRINT.fullmatch, storage.list_names(root)):
            folder = storage.local_path(storage.join(root, name)) if storage.is_local(root) else None
            if folder is None or (folder.is_dir() and not folder.is_symlink()):
                yield stage, name


def _read_run(line: str, name: str) -> _Run | None:
    """Read a run from its start document and its record; None if it has neither."""
    uri = run_uri(line, name)
    start, record = (_read_json(storage.join(uri, document)) for document in (RUN_START_NAME, RUN_NAME))
    began = [datetime.fromisoformat(document["started_at"]).timestamp() for document in (start, record) if document]
    if not began:
        return None
    uris = [start.get("previous_training"), *(find_output(line, name, stage) for stage in STAGES)]
    if storage.is_local(line):
        is_working = bool(is_locked(uri))
    else:
        is_working = not record and time.time() - min(began) < _WORKING_S
    has_succeeded = record.get("state") == "succeeded"
    return _Run(name, min(began), is_working, has_succeeded, frozenset(_output_of(output) for output in uris if output))


def _read_json(uri: str) -> dict[str, Any]:
    """Read a JSON document; {} if it does not exist."""
    try:
        return dict(json.loads(storage.read_bytes(uri)))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError:
        raise DataError(
            f"{storage.display(uri)} cannot be read", allowed="JSON", todo="delete its folder if it is not needed"
        ) from None


def _find_needed(line: str, outputs: set[Output]) -> set[Output]:
    """Return the outputs and their inputs, the newest training, and parents of unfinished increments."""
    waiting = [*outputs, *(("shard", parent) for parent in _parents_of_unfinished(line))]
    if (previous := find_previous(line)) is not None:
        waiting.append(_output_of(previous))
    if (production := read_production(line)) is not None:
        waiting.append(("export", production.fingerprint))
    needed: set[Output] = set()
    while waiting:
        stage, fingerprint = output = waiting.pop()
        if not fingerprint or output in needed:
            continue
        needed.add(output)
        uri = storage.join(line, stage, fingerprint)
        if not storage.exists(storage.join(uri, MANIFEST_NAME)):
            continue  # unfinished, deleted before, or of another line
        if stage == "shard":
            shards = ShardManifest.load(uri)
            waiting += [("shard", name) for name in {shards.parent or "", *(e.folder for e in shards.owned_files())}]
        elif stage == "train":
            trained = CheckpointManifest.load(uri)
            waiting += [("shard", trained.shards_fingerprint), ("profile", trained.profile)]
    return needed


def _parents_of_unfinished(line: str) -> Iterator[str]:
    for stage, name in _list_outputs(line):
        work = storage.join(line, stage, name, ".work")
        for plan in storage.list_names(work) if stage == "shard" else ():
            if plan.startswith("plan-") and (append := _read_json(storage.join(work, plan)).get("append")):
                yield str(append["parent"])


def _output_of(uri: str) -> Output:
    _, stage, fingerprint = uri.rstrip("/").rsplit("/", 2)
    return stage, fingerprint
