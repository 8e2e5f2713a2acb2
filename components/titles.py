"""What the tasks of the line are called on the pages of Vertex AI and Kubeflow, beside the names that programs use.

A page shows the title; whether the service's messages hold it or the name is not documented, so readers take both.
"""

from __future__ import annotations

from typing import Any

TITLES: dict[str, str] = {
    "begin": "Begin the run",
    "shard": "Shard the data",
    "shard-what-is-new": "Shard what is new",
    "list-source": "List the source",
    "launch-dataflow": "Start Dataflow",
    "wait-gcp-resources": "Wait for Dataflow",
    "profile": "Profile the training",
    "profile-if-missing": "Profile unless known",
    "find-profile": "Look for a profile",
    "train": "Train",
    "export": "Export and prove",
    "custom-training-job": "Run the job",
    "report": "Report on the stage",
    "report-training": "Report on the training",
    "register": "Register the model",
    "gate": "Check the proof",
    "find-model": "Look for the model",
    "model-upload": "Upload a new version",
    "registered": "Note the new version",
    "model-upload-2": "Upload the first version",
    "registered-2": "Note the first version",
    "refused": "Leave it out as unproven",
    "importer": "Triton repository",
    "importer-2": "Model known so far",
    "record": "Record the run",
    "vertex-pipelines-notification-email": "Send mail",
}
"""By the task's name in the compiled pipeline."""

_NAMES = {title: name for name, title in TITLES.items()}


def titled(task: Any, name: str) -> Any:
    """Return a task of the pipeline with the title of the task of this name."""
    return task.set_display_name(TITLES[name])


def name_of(shown: str) -> str:
    """Return a task's name from what a service calls it: that name, or its title."""
    return _NAMES.get(shown, shown)
