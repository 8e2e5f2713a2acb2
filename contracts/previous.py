"""The finished trainings of a line, and which of them `model.weights: previous` and `production` stand for.

The first task of a run finds it and records it in run-start.json: what is compiled or scheduled cannot know it, and all
attempts of a run must start from the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, RunRecord
from contracts.config import RunConfig
from contracts.errors import DataError
from contracts.promotions import find_production
from contracts.result import RUN_START_NAME, RUNS_FOLDER, run_uri

PREVIOUS = "previous"
PRODUCTION = "production"
BY_LINE = (PREVIOUS, PRODUCTION)
"""Words of `model.weights` that the line itself gives a meaning."""
# The record of a run that has ended.
RUN_NAME = "run.json"
# In run-start.json: URI of the training that the run starts from, or null; and where it is null, why.
_FIELD, _WHY = "previous_training", "random_weights"


def describe_previous(config: RunConfig, line: str) -> dict[str, str | None]:
    """Return what run-start.json says of the weights to start from; nothing where model.weights does not ask the line.

    Raises:
        DataError: What is in production is not known, or its training is gone.
    """
    wanted = config.model.weights
    if wanted not in BY_LINE:
        return {}
    if why := _from_scratch(line, config.train.scratch_every):
        return {_FIELD: None, _WHY: why}
    if (found := find_start(line, wanted)) is not None:
        return {_FIELD: found}
    lacks = "no finished training yet" if wanted == PREVIOUS else "no model in production yet"
    return {_FIELD: None, _WHY: f"the line has {lacks}"}


def read_previous(config: RunConfig, line: str, *runs: str) -> tuple[str | None, str]:
    """Return the training that the first of these runs has recorded, or where none has, that of now.

    Args:
        config: The configuration.
        line: URI of the line's folder.
        runs: Ids.

    Returns:
        Its URI; and where there is none, why weights are random.

    Raises:
        DataError: What is in production is not known, or its training is gone.
    """
    for run in runs:
        try:
            start = json.loads(storage.read_bytes(storage.join(run_uri(line, run), RUN_START_NAME)))
        except FileNotFoundError:
            continue
        if _FIELD in start:
            found: str | None = start[_FIELD]
            # Release 0.1.0 knew one reason alone.
            return found, "" if found else start.get(_WHY, "the line had no finished training when the run began")
    now = describe_previous(config, line)
    return now.get(_FIELD), now.get(_WHY) or ""


def find_start(line: str, wanted: str) -> str | None:
    """Return the URI of the training that a word of `model.weights` stands for now; None: there is none yet.

    Raises:
        DataError: What is in production is not known, or its training is gone.
    """
    if wanted == PREVIOUS:
        return find_previous(line)
    if (version := find_production(line)) is None:
        return None
    try:
        found = find_training_of_run(run_uri(line, version.run))
    except FileNotFoundError:
        found = None
    if found is None or not storage.exists(storage.join(found, MANIFEST_NAME)):
        raise DataError(
            f"model.weights = {PRODUCTION}: the training of run {version.run}, which is in production, is gone",
            allowed="a model in production whose training is still there",
            todo=f"promote another run, or set model.weights={PREVIOUS}",
        )
    return found


def _from_scratch(line: str, every: int) -> str:
    """Return why the next training of a line starts from random weights; empty: it need not."""
    if not every:
        return ""
    finished = sorted(list_finished(line).values(), key=lambda manifest: manifest.finished_at, reverse=True)
    started = next((place for place, one in enumerate(finished) if "weights" not in one.made_from), len(finished))
    return f"train.scratch_every={every}: {started} went on from others" if started >= every - 1 and finished else ""


def find_previous(line: str) -> str | None:
    """Return the URI of the newest finished training of a line; None: there is none yet."""
    finished = [(manifest.finished_at, uri) for uri, manifest in list_finished(line).items()]
    return max(finished)[1] if finished else None


def find_training_of_run(uri: str) -> str | None:
    """Return the URI of the training that a run made or reused; None where it finished none.

    Args:
        uri: Folder of a run that has ended, or of a line, whose newest run it is then.

    Raises:
        DataError: Its record is damaged.
    """
    where = storage.join(uri, RUN_NAME)
    record = RunRecord.parse(storage.read_bytes(where), where=where)
    return next((stage.uri for stage in record.stages if stage.name == "train" and stage.uri), None)


def find_last_success(line: str) -> RunRecord | None:
    """Return the record of the run of a line that succeeded last; None: none has yet.

    The line's own record is that of the run that ended last: as a rule it is the one, and nothing else is read.
    """
    newest = _read_records([storage.join(line, RUN_NAME)])
    if not newest or newest[0].state != "succeeded":
        runs = storage.join(line, RUNS_FOLDER)
        newest = _read_records([storage.join(runs, name, RUN_NAME) for name in storage.list_names(runs)])
    return max((each for each in newest if each.state == "succeeded"), key=lambda each: each.started_at, default=None)


def _read_records(uris: Sequence[str]) -> list[RunRecord]:
    """Return the records that are there and can be read."""
    found = []
    for uri, content in zip(uris, storage.read_many([storage.Wanted(uri) for uri in uris]), strict=True):
        if isinstance(content, bytes):
            with suppress(DataError):
                found.append(RunRecord.parse(content, where=uri))
    return found


def list_same(line: str, made_from: dict[str, str]) -> list[tuple[str, CheckpointManifest]]:
    """Return the finished trainings that were made from the same, whatever weights they started from, newest first."""
    same = [
        (uri, manifest)
        for uri, manifest in list_finished(line).items()
        if {name: value for name, value in manifest.made_from.items() if name != "weights"} == made_from
    ]
    return sorted(same, key=lambda found: found[1].finished_at, reverse=True)


def list_finished(line: str) -> dict[str, CheckpointManifest]:
    """Return the finished trainings of a line, by URI; one whose manifest is damaged is none."""
    trainings = storage.join(line, "train")
    found = {}
    for name in storage.list_names(trainings):
        uri = storage.join(trainings, name)
        if storage.exists(storage.join(uri, MANIFEST_NAME)):
            try:
                found[uri] = CheckpointManifest.load(uri)
            except DataError:
                continue
    return found
