"""`shardline clean LINE`: the outputs of a line that no run needs any more, and their deletion.

A run needs what its stages made or reused, and what these documents name in their turn: shards of an earlier increment,
the shards and the profile of a training, the training of an export. The newest finished training of a line is always
needed (`model.weights: previous`), and so is the export of a run that was uploaded to the model registry. Runs of
another line, and endpoints, are not known here.

The copies of own code, LINE/code/HASH, are outputs as well: those that a kept run's configuration or a needed output
names are kept.

What `shardline submit` has uploaded, LINE/source/HASH with HASH.json, is kept where the configuration of a kept run
names it; LINE/images, the sources of image builds, is needed by no run. Both are left alone for a day after they were
written: a submission or a build may be at work. Schedules are not known here: keep a run of each.

Only folders LINE/STAGE/FINGERPRINT, LINE/code/HASH, LINE/source/HASH and LINE/images are ever deleted, manifests
first; what is held by a running process is left alone.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    CheckpointManifest,
    ExportManifest,
    ProfileReport,
    RunRecord,
    ShardManifest,
)
from contracts.config import STAGES
from contracts.errors import ConfigError, TryAgain
from contracts.fingerprint import FINGERPRINT_DIGITS
from contracts.output import Lock, is_locked
from contracts.own_code import CODE_FOLDER
from contracts.previous import RUN_NAME, find_previous, list_finished
from contracts.registration import find_registration
from contracts.result import RUN_START_NAME, RUNS_FOLDER, find_result, run_uri
from pipelines.images.cloud_build import IMAGES_FOLDER
from pipelines.submission.local_data import SOURCE_FOLDER

# In an output: what its job needed until the manifest was there.
WORK_NAME = ".work"
# A bucket has no locks: what was written to within a day may belong to a job that runs.
_IN_USE_S = 24 * 3600.0
# A copy of own code is named by a whole sha256.
_FINGERPRINT = re.compile(rf"[0-9a-f]{{{FINGERPRINT_DIGITS}}}|[0-9a-f]{{64}}")
# Shards and parts of the index: their key says which versions made them.
_KEYED = re.compile(r"[a-z]+-[0-9a-f]{8}-\d{5,}\.(tar|tfrecord|bin)")

# Of a source: the folder that `shardline submit` has uploaded to.
_UPLOADED = re.compile(rf"/{SOURCE_FOLDER}/([0-9a-f]{{64}})(?:/|$)")

Output = tuple[str, str]
"""Stage and fingerprint: a line that was moved still knows its outputs by them. Of own code: `code` and its hash; of
uploaded data: `source` and its hash."""


@dataclass(frozen=True)
class Leftover:
    """A folder that can be deleted."""

    stage: str
    fingerprint: str
    uri: str
    num_bytes: int
    finished: bool
    """A finished output; otherwise unfinished work, or what its job left beside the output."""
    files: tuple[str, ...] = ()
    """What is deleted in the folder: shards that its manifest does not list; empty: the folder."""

    @property
    def name(self) -> str:
        """Path below the line, and what of it."""
        below = f"/{WORK_NAME}" if self.uri.endswith(f"/{WORK_NAME}") else ""
        only = f" ({len(self.files)} files that its manifest does not list)" if self.files else ""
        if not self.fingerprint:
            return f"{self.stage} (sources of image builds)"
        return f"{self.stage}/{self.fingerprint}{below}{only}"


def find_leftovers(
    line: str, *, keep: Sequence[str] = (), keep_last: int | None = None, unfinished: bool = False
) -> list[Leftover]:
    """Return what no kept run of a line needs, by stage.

    Args:
        line: URI of the line's folder.
        keep: Ids of runs to keep.
        keep_last: Number of newest runs to keep besides. Without either, all runs are kept. A run without a record
            may be going on, and is always kept.
        unfinished: Also work that was begun and not finished, by the stages, unless a process has it now; and shards of
            other versions beside a manifest. In a bucket none while a run has no record: its training may wait for
            machines for days.

    Raises:
        ConfigError: It is no line with runs, or a run of `keep` is not one of them.
        DataError: A document that is needed is damaged, so that nobody knows what it needs.
    """
    needed = find_needed(line, keep=keep, keep_last=keep_last)
    elsewhere = _may_go_on_elsewhere(line)
    unfinished = unfinished and not elsewhere
    found = []
    # A stage that runs by itself may have begun with a copy that no document names yet.
    kinds = (*STAGES, SOURCE_FOLDER) if _is_at_work(line) else (*STAGES, CODE_FOLDER, SOURCE_FOLDER)
    for stage in kinds:
        root = storage.join(line, stage)
        for name in storage.list_names(root):
            uri = storage.join(root, name)
            if _FINGERPRINT.fullmatch(name) is None or not _is_folder(uri):
                continue
            finished = storage.exists(_manifest_of(stage, uri))
            if finished and (stage, name) in needed:
                strays = _find_strays(uri) if stage == "shard" and unfinished else []
                if strays and not _is_in_use(line, uri, strays):
                    num_bytes, files = sum(one.size for one in strays), tuple(one.name for one in strays)
                    found.append(Leftover(stage, name, uri, num_bytes, finished=False, files=files))
                uri, finished = storage.join(uri, WORK_NAME), False
            objects = [] if not finished and not unfinished else list(storage.list_objects(uri))
            # What a job has just finished, the task that waits for it may not have written down yet.
            asks = not finished or elsewhere or stage == SOURCE_FOLDER
            if not objects or (asks and _is_in_use(line, storage.join(root, name), objects)):
                continue
            found.append(Leftover(stage, name, uri, sum(one.size for one in objects), finished))
    builds = storage.join(line, IMAGES_FOLDER)
    if (objects := list(storage.list_objects(builds))) and not _is_in_use(line, builds, objects):
        found.append(Leftover(IMAGES_FOLDER, "", builds, sum(one.size for one in objects), finished=True))
    return found


def delete(line: str, leftovers: Sequence[Leftover], *, keep: Sequence[str], keep_last: int | None) -> list[Leftover]:
    """Delete what was found; return what was left alone, since a run needs it or a process has it by now."""
    # While a question was open, a run may have come to need it.
    needed = find_needed(line, keep=keep, keep_last=keep_last)
    left = []
    for leftover in leftovers:
        if leftover.stage == IMAGES_FOLDER:
            storage.delete_tree(leftover.uri, manifest_name=MANIFEST_NAME)
            continue
        folder = storage.join(line, leftover.stage, leftover.fingerprint)
        has_manifest = storage.exists(_manifest_of(leftover.stage, folder))
        try:
            lock = Lock(folder)
        except TryAgain:
            left.append(leftover)
            continue
        try:
            if leftover.files:
                # A manifest that was made meanwhile may list them.
                strays = {one.name for one in _find_strays(folder)} if has_manifest else set()
                for file in strays.intersection(leftover.files):
                    storage.delete(storage.join(folder, file))
                continue
            is_whole = leftover.uri == folder
            if is_whole and (has_manifest != leftover.finished or (leftover.stage, leftover.fingerprint) in needed):
                left.append(leftover)
            elif not is_whole and not has_manifest:
                # What was left of a finished output is somebody's work again.
                left.append(leftover)
            else:
                if leftover.stage == SOURCE_FOLDER:
                    storage.delete(_manifest_of(SOURCE_FOLDER, folder))
                storage.delete_tree(leftover.uri, manifest_name=MANIFEST_NAME)
        finally:
            lock.release()
    return left


def find_needed(line: str, *, keep: Sequence[str], keep_last: int | None) -> set[Output]:
    """Return the outputs that the kept runs of a line need; arguments and errors as in `find_leftovers`."""
    started = _list_runs(line)
    if not started:
        raise ConfigError(
            f"{storage.display(line)} holds no run: which outputs are needed is not known",
            allowed="the folder of a line with runs, as `shardline run` prints it",
            todo="name the line's folder; outputs of stages that were run by themselves can be deleted by hand",
        )
    if unknown := sorted(set(keep) - started.keys()):
        raise ConfigError(
            f"--keep {unknown[0]}: {storage.display(line)} holds no such run",
            allowed=", ".join(sorted(started)),
            todo="name a run of this line",
        )
    newest = sorted(started, key=lambda run: (started[run], run), reverse=True)
    if keep_last:
        newest = newest[:keep_last]
    kept = set(started) if keep_last is None and not keep else {*keep, *(newest if keep_last else ())}
    named: set[Output] = set()
    for run in started:
        named |= _named_by(line, run, is_kept=run in kept)
    if (previous := find_previous(line)) is not None:
        named.add(_output_of(previous))
    uploads = {output for output in named if output[0] == SOURCE_FOLDER}
    return uploads | _follow(line, named | _parents_of_unfinished(line))


def _manifest_of(stage: str, folder: str) -> str:
    """Return the URI of what says that an output is whole."""
    return f"{folder}.json" if stage == SOURCE_FOLDER else storage.join(folder, MANIFEST_NAME)


def _is_at_work(line: str) -> bool:
    """Whether a process of this machine has an output of the line."""
    if not storage.is_local(line):
        return False
    roots = [storage.join(line, stage) for stage in STAGES]
    return any(is_locked(storage.join(root, name)) for root in roots for name in storage.list_names(root))


def _find_strays(uri: str) -> list[storage.ObjectInfo]:
    """Return shards and parts of an index beside a manifest that does not list them: work of other versions."""
    listed = {entry.name for entry in ShardManifest.load(uri).owned_files()}
    objects = storage.list_objects(uri, recursive=False)
    return [one for one in objects if _KEYED.fullmatch(one.name) and one.name not in listed]


def _parents_of_unfinished(line: str) -> set[Output]:
    """Return the shards that increments which are being written are built on."""
    root = storage.join(line, "shard")
    parents: set[Output] = set()
    for name in storage.list_names(root):
        work = storage.join(root, name, WORK_NAME)
        if _FINGERPRINT.fullmatch(name) is None:
            continue
        for plan in storage.list_names(work):
            if plan.startswith("plan-") and (append := _read_json(storage.join(work, plan)).get("append")):
                parents.add(("shard", str(append["parent"])))
    return parents


def _read_json(uri: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(storage.read_bytes(uri))
    except (FileNotFoundError, NotADirectoryError):
        return {}  # finished in between
    return values


def _list_runs(line: str) -> dict[str, str]:
    """Return the runs of a line, and when each began."""
    runs = {}
    for name in storage.list_names(storage.join(line, RUNS_FOLDER)):
        for document in (RUN_START_NAME, RUN_NAME):
            uri = storage.join(run_uri(line, name), document)
            if storage.exists(uri):
                runs[name] = str(json.loads(storage.read_bytes(uri)).get("started_at", ""))
                break
    return runs


def _named_by(line: str, run: str, *, is_kept: bool) -> set[Output]:
    """Return the outputs that a run's own documents name; of one that is not kept, only what outlives it."""
    results = {stage: result.uri for stage in STAGES if (result := find_result(line, run, stage)) is not None}
    where = storage.join(run_uri(line, run), RUN_NAME)
    if not storage.exists(where):
        start = storage.join(run_uri(line, run), RUN_START_NAME)
        document = json.loads(storage.read_bytes(start))
        previous = document.get("previous_training")
        return {_output_of(uri) for uri in (*results.values(), previous) if uri} | _given_in(document.get("config"))
    registration = find_registration(line, run)
    if not is_kept:
        uploaded = registration is not None and registration.verdict == "upload"
        return {_output_of(results["export"])} if uploaded and "export" in results else set()
    record = RunRecord.parse(storage.read_bytes(where), where=storage.display(where))
    outputs = {_output_of(uri) for uri in (*results.values(), *(stage.uri for stage in record.stages)) if uri}
    return outputs | _given_in(record.config)


def _given_in(config: Mapping[str, Any] | None) -> set[Output]:
    """Return the copy of own code and the uploaded data that a configuration names."""
    values = config or {}
    sha256 = (values.get(CODE_FOLDER) or {}).get("sha256")
    uploaded = _UPLOADED.search(str((values.get("sharding") or {}).get("source", "")))
    code = {(CODE_FOLDER, str(sha256))} if sha256 else set()
    return code | ({(SOURCE_FOLDER, uploaded[1])} if uploaded else set())


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
        # What was deleted before, or lies in another line, names nothing here.
        if not fingerprint or output in needed or not storage.exists(storage.join(uri, MANIFEST_NAME)):
            continue
        needed.add(output)
        if stage == "shard":
            shards = ShardManifest.load(uri)
            siblings = {entry.folder for entry in shards.owned_files()} | {shards.parent or ""}
            waiting += [("shard", name) for name in siblings if name]
        elif stage == "profile":
            report = ProfileReport.load(uri)
            waiting += [("shard", report.shards_fingerprint), (CODE_FOLDER, report.made_from.get("code", ""))]
        elif stage == "train":
            trained = CheckpointManifest.load(uri)
            waiting += [("shard", trained.shards_fingerprint), ("profile", trained.profile)]
            waiting.append((CODE_FOLDER, trained.made_from.get("code", "")))
        elif stage == "export":
            exported = ExportManifest.load(uri)
            if trainings is None:
                finished = list_finished(line).items()
                trainings = {document.parameters_sha256: _output_of(found) for found, document in finished}
            waiting += [("shard", exported.shards_fingerprint), (CODE_FOLDER, exported.made_from.get("code", ""))]
            if (checkpoint := trainings.get(exported.checkpoint_sha256)) is not None:
                waiting.append(checkpoint)
    return needed


def _is_folder(uri: str) -> bool:
    """Whether it is a folder of its own: a link is somebody's choice of another place."""
    if not storage.is_local(uri):
        return True
    path = storage.local_path(uri)
    return path.is_dir() and not path.is_symlink()


def _may_go_on_elsewhere(line: str) -> bool:
    """Whether a run of a line in a bucket may be going on, on machines that nobody here sees."""
    return not storage.is_local(line) and any(
        not storage.exists(storage.join(run_uri(line, run), RUN_NAME)) for run in _list_runs(line)
    )


def _is_in_use(line: str, folder: str, objects: Sequence[storage.ObjectInfo]) -> bool:
    """Whether a process may be working on an output: by its lock here, by the age of what is there in a bucket."""
    if storage.is_local(line):
        return bool(is_locked(folder))
    # A generation is the time of its writing in microseconds.
    newest_s = max((one.generation or 0) for one in objects) / 1e6
    return time.time() - newest_s < _IN_USE_S
