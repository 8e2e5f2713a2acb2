"""Shared state of all services: resources, executors of jobs, clock, projects, buckets, logs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rehearsal.clock import Clock
from rehearsal.errors import ServiceError, StorageError, invalid_argument, not_found
from rehearsal.gcs import BucketService
from rehearsal.servers.access import Caller
from rehearsal.vertex.logs import LogBook
from rehearsal.vertex.store import Store

__all__ = ["Caller", "CloudState", "Runs"]


class Runs(Protocol):
    """Executes one kind of job. Both calls return at once."""

    def start(self, name: str) -> None:
        """Execute a stored, pending job."""

    def cancel(self, name: str) -> None:
        """Cancel a job; its state becomes cancelled when it has ended."""


@dataclass
class CloudState:
    """State of the local cloud, without its servers."""

    store: Store
    pipelines: Runs
    custom_jobs: Runs
    clock: Clock
    projects: Mapping[str, str]
    """Project id -> project number."""
    buckets: BucketService
    dataflow: Any = None
    """Executor of Dataflow jobs (rehearsal.jobs.dataflow.DataflowJobs)."""
    logs: LogBook = field(default_factory=LogBook)
    seen_running: set[str] = field(default_factory=set)
    """Custom jobs that a launcher has seen running."""
    stopping: threading.Event = field(default_factory=threading.Event)
    schedules_changed: threading.Event = field(default_factory=threading.Event)

    def now(self) -> Any:
        """Return the time of the local cloud as a Timestamp."""
        return self.time(self.clock.now())

    def time(self, seconds: float) -> Any:
        """Return a time, in seconds since 1970, as a Timestamp."""
        from google.protobuf.timestamp_pb2 import Timestamp

        seconds_part, fraction = divmod(seconds, 1)
        return Timestamp(seconds=int(seconds_part), nanos=int(fraction * 1e6) * 1000)

    def resolve_name(self, name: str, permission: str) -> str:
        """Return a resource's name with its project's number, as Vertex AI shows it.

        Raises:
            ServiceError: PERMISSION_DENIED for an unknown project, as the real service answers.
        """
        parts = name.split("/")
        if len(parts) < 2 or parts[0] != "projects":
            raise invalid_argument("name", f"{name!r} is not a resource name: projects/PROJECT/locations/LOCATION/...")
        number = self.projects.get(parts[1]) or (parts[1] if parts[1] in self.projects.values() else None)
        if number is None:
            place = "/".join(parts[:4])
            raise ServiceError(
                "PERMISSION_DENIED",
                f"Permission '{permission}' denied on resource '//aiplatform.googleapis.com/{place}' "
                "(or it may not exist).",
            )
        return "/".join([parts[0], number, *parts[2:]])

    def find(self, name: str, permission: str) -> Any:
        """Return a copy of a resource; ServiceError NOT_FOUND if it does not exist."""
        name = self.resolve_name(name, permission)
        message = self.store.find(name)
        if message is None:
            raise not_found(name)
        return message

    def add(self, message: Any) -> None:
        """Store a resource under its own name; ServiceError ALREADY_EXISTS if it exists."""
        try:
            self.store.add(message.name, message)
        except KeyError:
            raise ServiceError("ALREADY_EXISTS", f"{message.name} already exists") from None

    def project_id(self, number: str) -> str:
        """Return the id of the project with this number."""
        return next(project for project, project_number in self.projects.items() if project_number == number)

    def has_bucket(self, uri: str) -> bool:
        """Return whether the bucket of a gs:// URI exists."""
        try:
            self.buckets.objects.bucket(uri.removeprefix("gs://").split("/")[0])
        except StorageError:
            return False
        return True

    def has_objects(self, uri: str) -> bool:
        """Return whether a gs:// folder holds an object."""
        if not self.has_bucket(uri):
            return False
        bucket, _, folder = uri.removeprefix("gs://").partition("/")
        prefix = f"{folder.rstrip('/')}/" if folder else ""
        rows = self.buckets.objects.rows(bucket, prefix, "", 1)
        return bool(rows) and rows[0].name.startswith(prefix)
