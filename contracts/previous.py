"""Finished trainings of a line, and the one that `model.weights: previous` selects.

A run records its choice in run-start.json when it begins, since a compiled or scheduled pipeline cannot contain it, and
all attempts of a run must start from the same weights.
"""

from __future__ import annotations

import json

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, RunRecord
from contracts.config import RunConfig
from contracts.errors import DataError
from contracts.result import RUN_START_NAME, run_uri

PREVIOUS = "previous"
"""Value of `model.weights` for the newest finished training of the line."""
# The record of a run that has ended.
RUN_NAME = "run.json"
# In run-start.json: URI of the training that the run starts from; null: the line has none yet.
_FIELD = "previous_training"


def describe_previous(config: RunConfig, line: str) -> dict[str, str | None]:
    """Return the field of run-start.json for the weights to start from; none unless model.weights is `previous`."""
    return {_FIELD: find_previous(line)} if config.model.weights == PREVIOUS else {}


def read_previous(line: str, *runs: str) -> str | None:
    """Return the URI of the training that the first of these runs has recorded, else of the newest one.

    None: the line has no finished training, or had none when the run began.
    """
    for run in runs:
        start_uri = storage.join(run_uri(line, run), RUN_START_NAME)
        if storage.exists(start_uri) and _FIELD in (start := json.loads(storage.read_bytes(start_uri))):
            return None if start[_FIELD] is None else str(start[_FIELD])
    return find_previous(line)


def find_previous(line: str) -> str | None:
    """Return the URI of the newest finished training of a line, or None."""
    return next((uri for uri, _ in _list_finished(line)), None)


def list_same(line: str, made_from: dict[str, str]) -> list[tuple[str, CheckpointManifest]]:
    """Return the finished trainings with these inputs, apart from the initial weights, newest first."""
    return [
        (uri, manifest)
        for uri, manifest in _list_finished(line)
        if {name: value for name, value in manifest.made_from.items() if name != "weights"} == made_from
    ]


def find_training_of_run(uri: str) -> str | None:
    """Return the URI of the training that a finished run made or reused; None: it finished none.

    Raises:
        DataError: The record of the run in the folder `uri` is damaged.
    """
    record_uri = storage.join(uri, RUN_NAME)
    record = RunRecord.parse(storage.read_bytes(record_uri), where=record_uri)
    return next((stage.uri for stage in record.stages if stage.name == "train" and stage.uri), None)


def _list_finished(line: str) -> list[tuple[str, CheckpointManifest]]:
    """Return the finished trainings with an intact manifest, newest first."""
    trainings = storage.join(line, "train")
    finished = []
    for uri in (storage.join(trainings, name) for name in storage.list_names(trainings)):
        if storage.exists(storage.join(uri, MANIFEST_NAME)):
            try:
                finished.append((uri, CheckpointManifest.load(uri)))
            except DataError:
                continue
    return sorted(finished, key=lambda training: (training[1].finished_at, training[0]), reverse=True)
