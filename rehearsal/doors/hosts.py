"""Calls by a name of Google's: the service must be at that host, the resource in that host's region.

Calls by the HTTP door's own address name no host of Google's and are not checked. How the real service words these
refusals is not known: the codes and the text are ours.
"""

from __future__ import annotations

import re

from rehearsal.doors.access import find_host
from rehearsal.doors.caller import Caller
from rehearsal.doors.errors import ServiceError, invalid

_VERTEX = re.compile(r"(?:([a-z0-9-]+)-)?aiplatform\.googleapis\.com")
_PLACE = re.compile(r"projects/[^/]+/locations/([^/]+)")
# By how a service's full name begins. Operations are Vertex's: no other service has any here.
_HOSTS = {
    "google.cloud.aiplatform.": "REGION-aiplatform.googleapis.com",
    "google.longrunning.": "REGION-aiplatform.googleapis.com",
    "google.logging.": "logging.googleapis.com",
    "google.dataflow.": "dataflow.googleapis.com",
    "google.cloud.resourcemanager.": "cloudresourcemanager.googleapis.com",
}


def check_host(caller: Caller, service: str, resource: str) -> None:
    """Refuse a service that is not at the host that was asked, and a resource of another region than the host's.

    Args:
        caller: Who asks, by which host.
        service: Full name of the service.
        resource: Name of the resource or of its parent; "" where the request has none.

    Raises:
        ServiceError: NOT_FOUND or INVALID_ARGUMENT.
    """
    host = find_host(caller.host)
    if not host:
        return
    wanted = next(name for start, name in _HOSTS.items() if service.startswith(start))
    vertex = _VERTEX.fullmatch(host)
    if wanted != host and not (vertex and wanted.startswith("REGION-")):
        raise ServiceError("NOT_FOUND", f"{service} is not at {host}: it is at {wanted}")
    place = _PLACE.match(resource)
    if vertex and place and (vertex.group(1) or "global") != place.group(1):
        text = f"{resource!r} is of {place.group(1)}, and {host} is not: the host must be of the resource's region"
        raise invalid("name", text)
