"""What a call by a name of Google's must have: the service's own host, of the resource's region, and a token.

Calls by the HTTP door's own address name no host of Google's: they are not looked at. How the real service words these
refusals is not known: the codes and the text are ours.
"""

from __future__ import annotations

import re

from rehearsal.doors.caller import Caller
from rehearsal.doors.errors import ServiceError, invalid

_GOOGLES = re.compile(r"([a-z0-9.-]+\.(?:googleapis\.com|pkg\.dev))(?::443)?", re.IGNORECASE)
_VERTEX = re.compile(r"(?:([a-z0-9-]+)-)?aiplatform\.googleapis\.com")
_PLACE = re.compile(r"projects/[^/]+/locations/([^/]+)")
# By how a service's full name begins. Operations are Vertex's: no other service has any here.
_HOSTS = {
    "google.cloud.aiplatform.": "REGION-aiplatform.googleapis.com",
    "google.longrunning.": "REGION-aiplatform.googleapis.com",
    "google.logging.": "logging.googleapis.com",
    "google.dataflow.": "dataflow.googleapis.com",
    "google.cloud.resourcemanager.": "cloudresourcemanager.googleapis.com",
    "google.api.cloudquotas.": "cloudquotas.googleapis.com",
}


def find_host(host: str) -> str:
    """Return the name of Google's by which something was asked, in small letters; "" where it was none."""
    match = _GOOGLES.fullmatch(host)
    return match.group(1).lower() if match else ""


def check_token(caller: Caller) -> None:
    """Refuse who came by a name of Google's and brought no token: UNAUTHENTICATED."""
    if find_host(caller.host) and not caller.has_token:
        text = "Request is missing required authentication credential: an Authorization header with a token."
        raise ServiceError("UNAUTHENTICATED", text)


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
