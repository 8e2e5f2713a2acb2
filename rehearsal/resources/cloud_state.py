"""What all services share: the resources, what executes them, the clock, the projects, the logs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rehearsal.clock import Clock
from rehearsal.doors.caller import Caller
from rehearsal.doors.errors import ServiceError, invalid, not_found
from rehearsal.resources.buckets import Buckets
from rehearsal.resources.store import Jobs, Runs, Store
from rehearsal.vertex.logs import LogBook

__all__ = ["Caller", "CloudState"]


@dataclass
class CloudState:
    """The local cloud, without its doors."""

    store: Store
    pipelines: Runs
    custom_jobs: Runs
    clock: Clock
    projects: Mapping[str, str]
    """Project id -> project number."""
    buckets: Buckets = field(default_factory=Buckets)
    logs: LogBook = field(default_factory=LogBook)
    hold_s: float = 600.0
    """How long Get of a custom job is held for a launcher's poll."""
    first_hold_s: float = 120.0
    """How long it is held until a launcher hears that the job runs, and looks again 20 s later: a sixth at most."""
    told_running: set[str] = field(default_factory=set)
    """Custom jobs of which a launcher has heard that they run."""
    dataflow: Jobs | None = None
    """What executes Dataflow jobs."""
    preflight_errors: list[str] = field(default_factory=list)
    """What the service's own checks say of each pipeline job that asks for them; empty: they find nothing."""
    stopping: threading.Event = field(default_factory=threading.Event)
    schedules_changed: threading.Event = field(default_factory=threading.Event)

    def now(self) -> Any:
        """Return the rehearsed time as a Timestamp."""
        return self.time(self.clock.now())

    def time(self, seconds: float) -> Any:
        """Return a time, in seconds since 1970, as a Timestamp."""
        from google.protobuf.timestamp_pb2 import Timestamp

        whole, fraction = divmod(seconds, 1)
        return Timestamp(seconds=int(whole), nanos=int(fraction * 1e6) * 1000)

    def resolve_name(self, name: str, permission: str) -> str:
        """Return a resource's name with its project's number, as Vertex shows it whatever was asked for.

        Raises:
            ServiceError: PERMISSION_DENIED for a project that is not there: the real service tells nobody which are.
        """
        parts = name.split("/")
        if len(parts) < 2 or parts[0] != "projects":
            raise invalid("name", f"{name!r} is no resource name: projects/PROJECT/locations/LOCATION/... is one")
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
        """Return a copy of a resource; NOT_FOUND where there is none of this name (see `resolve_name`)."""
        name = self.resolve_name(name, permission)
        found = self.store.find(name)
        if found is None:
            raise not_found(name)
        return found

    def add(self, message: Any) -> None:
        """Store a resource under its own name; ALREADY_EXISTS where there is one."""
        try:
            self.store.add(message.name, message)
        except KeyError:
            raise ServiceError("ALREADY_EXISTS", f"There is {message.name} already") from None

    def project_id(self, number: str) -> str:
        """Return the id of the project with this number."""
        return next(project for project, its in self.projects.items() if its == number)
