"""What the process that executes a pipeline is given: job.json in its folder, made from the submitted PipelineJob."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

JOB_NAME = "job.json"


@dataclass(frozen=True)
class Job:
    """A submitted PipelineJob, with what its placeholders stand for."""

    name: str
    """projects/NUMBER OR ID/locations/REGION/pipelineJobs/ID."""
    uuid: str
    """A number."""
    project: str
    """Its id, not its number."""
    project_number: str
    location: str
    pipeline_root: str
    """gs:// URI."""
    spec: dict[str, Any]
    """PipelineSpec as JSON values."""
    parameters: dict[str, Any]
    create_time: str
    """RFC 3339, UTC."""
    schedule_time: str
    """RFC 3339, UTC; equal to create_time where no schedule started it."""
    service_account: str = ""
    cache_folder: str = ""
    """Of the location's execution cache; empty: none."""
    labels: dict[str, str] = field(default_factory=dict)
    """Of the run; launchers put them on what they start."""

    @property
    def id(self) -> str:
        """The pipeline job id, by which a user knows it."""
        return self.name.rpartition("/")[2]

    def constants(self) -> dict[str, str]:
        """Return what the placeholders of the run stand for, by name."""
        return {
            "pipeline_job_name": self.id,
            "pipeline_job_resource_name": self.name,
            "pipeline_job_create_time_utc": self.create_time,
            "pipeline_job_schedule_time_utc": self.schedule_time,
            "pipeline_google_cloud_project_id": self.project,
            "pipeline_google_cloud_location": self.location,
            # No run has one; launchers ask for it.
            "pipeline_persistent_resource_id": "",
        }

    def write(self, folder: Path) -> None:
        """Write it for the child."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / JOB_NAME).write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, folder: Path) -> Job:
        """Read it; FileNotFoundError or TypeError where it is not what `write` writes."""
        return cls(**json.loads((folder / JOB_NAME).read_text()))
