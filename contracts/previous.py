"""The finished trainings of a line, and which of them `model.weights: previous` stands for.

The first task of a run finds it and records it in run-start.json: what is compiled or scheduled cannot know it, and all
attempts of a run must start from the same.
"""

from __future__ import annotations

import json

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, RunRecord
from contracts.config import RunConfig
from contracts.errors import DataError
from contracts.result import RUN_START_NAME, run_uri

PREVIOUS = "previous"
"""The word of `model.weights` that the line itself gives a meaning."""
# The record of a run that has ended.
RUN_NAME = "run.json"
# In run-start.json: URI of the training that the run starts from; null: the line has none yet.
_FIELD = "previous_training"


def describe_previous(config: RunConfig, line: str) -> dict[str, str | None]:
    """Return what run-start.json says of the weights to start from; nothing where model.weights is another."""
    if config.model.weights != PREVIOUS:
        return {}
    return {_FIELD: find_previous(line)}


def read_previous(line: str, *runs: str) -> str | None:
    """Return the training that the first of these runs has recorded, or where none has, that of now.

    Args:
        line: URI of the line's folder.
        runs: Ids.

    Returns:
        Its URI; None: the line has no finished training.
    """
    for run in runs:
        try:
            start = json.loads(storage.read_bytes(storage.join(run_uri(line, run), RUN_START_NAME)))
        except FileNotFoundError:
            continue
        if _FIELD in start:
            found: str | None = start[_FIELD]
            return found
    return find_previous(line)


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
