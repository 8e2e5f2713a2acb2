"""Names of a run: its folder LINE/runs/RUN, and the labels of the jobs that work for it."""

from __future__ import annotations

import hashlib
import re

from contracts import storage

RUNS_FOLDER = "runs"
RUN_START_NAME = "run-start.json"
PIPELINE_FOLDER = "pipeline"
"""Of a line: root of its PipelineJobs."""

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


def run_uri(line: str, run_id: str) -> str:
    """Return the folder of a run's own documents."""
    return storage.join(line, RUNS_FOLDER, run_id)
