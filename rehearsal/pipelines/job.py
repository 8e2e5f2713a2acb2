"""A submitted PipelineJob: fields for its tasks and placeholders."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

TaskPath = tuple[str, ...]
"""Names of the DAGs that a task is in, then its own; empty: the pipeline itself."""


@dataclass(frozen=True)
class Job:
    """A PipelineJob."""

    name: str
    """projects/NUMBER/locations/REGION/pipelineJobs/ID."""
    project: str
    """Its id, not its number."""
    pipeline_root: str
    """gs:// URI."""
    spec: dict[str, Any]
    """PipelineSpec as JSON values, in the form of spec.normalise."""
    parameters: dict[str, Any]
    create_time: str
    """RFC 3339, UTC."""
    schedule_time: str
    """RFC 3339, UTC; equal to create_time where no schedule started it."""
    service_account: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    """Launchers copy them to the jobs that they start."""

    @property
    def id(self) -> str:
        """The pipeline job id."""
        return self.name.rpartition("/")[2]

    @property
    def project_number(self) -> str:
        """Number of the project."""
        return self.name.split("/")[1]

    @property
    def location(self) -> str:
        """Region."""
        return self.name.split("/")[3]

    @property
    def constants(self) -> dict[str, str]:
        """Values of the run's placeholders, by name."""
        return {
            "pipeline_job_name": self.id,
            "pipeline_job_resource_name": self.name,
            "pipeline_job_create_time_utc": self.create_time,
            "pipeline_job_schedule_time_utc": self.schedule_time,
            "pipeline_google_cloud_project_id": self.project,
            "pipeline_google_cloud_location": self.location,
            # Launchers require it; always empty.
            "pipeline_persistent_resource_id": "",
        }

    def task_id(self, path: TaskPath) -> int:
        """Return a task's numeric id, which is also the id of its container's custom job.

        https://docs.cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.pipelineJobs#ContainerDetail
        """
        digest = hashlib.sha256("/".join((self.name, *path)).encode()).digest()
        return int.from_bytes(digest[:8]) >> 1

    def task_root(self, path: TaskPath) -> str:
        """Return the gs:// folder of a task's outputs, as Vertex AI lays them out."""
        root = self.pipeline_root.rstrip("/")
        return f"{root}/{self.project_number}/{self.id}/{path[-1]}_{self.task_id(path)}"
