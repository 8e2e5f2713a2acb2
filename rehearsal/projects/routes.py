"""Methods of Google's APIs from the discovery documents that google-api-python-client brings.

https://developers.google.com/discovery/v1/reference/apis: a method has an id, a verb and a path.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache

# Host -> documents. A region before aiplatform is cut off.
DOCUMENTS = {
    "serviceusage.googleapis.com": ("serviceusage", "v1"),
    "cloudresourcemanager.googleapis.com": ("cloudresourcemanager", "v3"),
    "iam.googleapis.com": ("iam", "v1"),
    "artifactregistry.googleapis.com": ("artifactregistry", "v1"),
    "cloudbuild.googleapis.com": ("cloudbuild", "v1"),
    "compute.googleapis.com": ("compute", "v1"),
    "cloudbilling.googleapis.com": ("cloudbilling", "v1"),
    "billingbudgets.googleapis.com": ("billingbudgets", "v1"),
    "aiplatform.googleapis.com": ("aiplatform", "v1"),
    "storage.googleapis.com": ("storage", "v1"),
}
_VARIABLE = re.compile(r"\\\{\\?\+?(\w+)\\\}")


@dataclass(frozen=True)
class Route:
    """One method."""

    id: str
    """As in compute.networks.insert."""
    method: str
    pattern: re.Pattern[str]


@cache
def routes_of(host: str, known: frozenset[str]) -> tuple[Route, ...]:
    """Return those methods of a host's API that are known here."""
    from googleapiclient.discovery_cache import get_static_doc

    document = json.loads(get_static_doc(*DOCUMENTS[host]))
    found: list[Route] = []
    stack = [document]
    while stack:
        resource = stack.pop()
        stack += resource.get("resources", {}).values()
        for method in resource.get("methods", {}).values():
            path = "/" + document["servicePath"] + method.get("flatPath", method["path"])
            pattern = _VARIABLE.sub("[^/:]+", re.escape(path))
            if method["id"] in known:
                found.append(Route(method["id"], method["httpMethod"], re.compile(pattern)))
    return tuple(found)


def find_method(host: str, method: str, path: str, known: frozenset[str]) -> str | None:
    """Return the id of the known method that a request names, or None."""
    for route in routes_of(host, known):
        if route.method == method and route.pattern.fullmatch(path):
            return route.id
    return None
