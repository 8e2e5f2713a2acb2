"""Dispatch of method calls, shared by the gRPC and the REST server: check of the host, access log."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rehearsal.errors import ServiceError, invalid_argument
from rehearsal.servers.access import Access, Caller, find_host
from rehearsal.servers.access_log import AccessLog, Call
from rehearsal.vertex.state import CloudState

Handler = Callable[[CloudState, Any, Caller], Any]
_VERTEX = re.compile(r"(?:([a-z0-9-]+)-)?aiplatform\.googleapis\.com")
_LOCATION = re.compile(r"projects/[^/]+/locations/([^/]+)")
# Prefix of a service's full name -> host. Only Vertex AI has operations here.
_HOSTS = {
    "google.cloud.aiplatform.": "REGION-aiplatform.googleapis.com",
    "google.longrunning.": "REGION-aiplatform.googleapis.com",
    "google.logging.": "logging.googleapis.com",
    "google.dataflow.": "dataflow.googleapis.com",
    "google.cloud.resourcemanager.": "cloudresourcemanager.googleapis.com",
}


@dataclass(frozen=True)
class Method:
    """One method of a service."""

    service: str
    """Full name, as in gRPC paths."""
    name: str
    request_type: Any
    handler: Handler

    @property
    def path(self) -> str:
        """Path of the method in gRPC."""
        return f"/{self.service}/{self.name}"

    @property
    def short_name(self) -> str:
        """Name in the access log, e.g. JobService.CreateCustomJob."""
        return f"{self.service.rsplit('.', 1)[1]}.{self.name}"


@dataclass
class Dispatcher:
    """Calls methods for both servers."""

    state: CloudState
    access: Access
    log: AccessLog[Call] = field(default_factory=AccessLog)
    failures: list[str] = field(default_factory=list)
    """Faults of the local cloud itself, as tracebacks."""

    def call(self, method: Method, request: Any, caller: Caller) -> Any:
        """Call a method and log it; raises its ServiceError."""
        resource, status = _resource(request), "OK"
        try:
            _check_host(caller, method.service, resource)
            return method.handler(self.state, request, caller)
        except ServiceError as error:
            status = error.code
            raise
        except Exception as error:  # an entry point: a fault of ours is answered with INTERNAL, and kept
            status = "INTERNAL"
            self.failures.append(traceback.format_exc())
            raise ServiceError("INTERNAL", f"the rehearsal's own fault in {method.short_name}: {error!r}") from error
        finally:
            self.record(caller.transport, method.short_name, resource, status, caller.user_agent)

    def record(self, transport: str, method: str, resource: str, status: str, user_agent: str = "") -> None:
        """Write an entry of the access log."""
        self.log.add(Call(time.time(), transport, method, resource, status, user_agent))


def _check_host(caller: Caller, service: str, resource: str) -> None:
    """Check that the requested host serves this service and the resource's region.

    Status codes and messages are undocumented, our choice.

    Raises:
        ServiceError: NOT_FOUND or INVALID_ARGUMENT.
    """
    host = find_host(caller.host)
    if not host:
        return  # this machine's own address
    expected = next(name for start, name in _HOSTS.items() if service.startswith(start))
    vertex = _VERTEX.fullmatch(host)
    if expected != host and not (vertex and expected.startswith("REGION-")):
        raise ServiceError("NOT_FOUND", f"{service} is not at {host}: it is at {expected}")
    location = _LOCATION.match(resource)
    if vertex and location and (vertex.group(1) or "global") != location.group(1):
        text = f"{resource!r} is of {location.group(1)}, and {host} is not: the host must be of the resource's region"
        raise invalid_argument("name", text)


def _resource(request: Any) -> str:
    for field_name in ("name", "parent"):
        if value := getattr(request, field_name, ""):
            return str(value)
    for field_name in ("schedule", "model"):
        if (inner := getattr(request, field_name, None)) is not None:
            return str(getattr(inner, "name", inner))
    return ""
