"""Where a run finds what a stage made: LINE/runs/RUN/results/STAGE.json.

A stage's output is named by what it was made from, which nobody knows before it has looked. A stage that works for a
run (`--line`, `--run`) leaves here where its output is; the tasks of the pipeline read it.
"""

from __future__ import annotations

import hashlib
import re

from pydantic import ValidationError

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, Document
from contracts.errors import DataError

RUNS_FOLDER = "runs"
RESULTS_FOLDER = "results"
RUN_START_NAME = "run-start.json"


# Of a PipelineJob and a Dataflow job: the line, and of the latter the run that submitted it. What a task started before
# it died is found by both.
LINE_LABEL, RUN_LABEL = "shardline-line", "shardline-run"
_LABEL_LENGTH = 63


def run_label(run_id: str) -> str:
    """Return a run's id as the value of a label: lower-case letters, digits, '-' and '_', 63 characters at most."""
    text = re.sub(r"[^a-z0-9_-]", "-", run_id.lower())
    if len(text) <= _LABEL_LENGTH:
        return text
    # The ends of ids differ (RUN, RUN-r2): the hash keeps them apart.
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:12]
    return f"{text[: _LABEL_LENGTH - len(digest) - 1]}-{digest}"


class StageResult(Document):
    """What a stage made for a run."""

    stage: str
    uri: str
    """Folder of its document."""
    manifest_sha256: str
    reused: bool
    """It was finished before."""


def run_uri(line: str, run_id: str) -> str:
    """Return the folder of a run's own documents."""
    return storage.join(line, RUNS_FOLDER, run_id)


def leave_result(line: str, run_id: str, stage: str, uri: str, *, reused: bool) -> StageResult:
    """Write down what a stage made; a later attempt, and each machine of a training, writes the same again.

    Create-only at first: Cloud Storage takes one write per second to an object, and machines finish together.
    """
    sha256 = hashlib.sha256(storage.read_bytes(storage.join(uri, MANIFEST_NAME))).hexdigest()
    result = StageResult(stage=stage, uri=uri, manifest_sha256=sha256, reused=reused)
    where, content = _uri(line, run_id, stage), (result.model_dump_json(indent=1) + "\n").encode()
    try:
        storage.publish(where, content)
    except storage.AlreadyPublished:
        storage.replace(where, content)
    return result


def find_result(line: str, run_id: str, stage: str) -> StageResult | None:
    """Return what a stage made for a run, if it has said so.

    Raises:
        DataError: It is damaged.
    """
    where = _uri(line, run_id, stage)
    try:
        return StageResult.model_validate_json(storage.read_bytes(where))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise DataError(
            f"{where} cannot be read: {str(error).splitlines()[0]}",
            allowed="what a stage has left",
            todo="delete it and run again",
        ) from None


def _uri(line: str, run_id: str, stage: str) -> str:
    return storage.join(run_uri(line, run_id), RESULTS_FOLDER, f"{stage}.json")
