"""The endpoint before all others: APIs that are not enabled refuse, and those that set a project up are answered.

What is not of a project's set-up is left to whoever is asked next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from rehearsal.doors.errors import ServiceError
from rehearsal.doors.http_messages import Request, Response, json_response
from rehearsal.projects.methods import METHODS, Call
from rehearsal.projects.policies import get_policy, set_policy
from rehearsal.projects.routes import DOCUMENTS, find_method
from rehearsal.projects.state import ProjectState

_REGIONAL = re.compile(r"[a-z0-9-]+-(aiplatform\.googleapis\.com)")
_VERSION = re.compile(r"/(?:compute/)?v[0-9]\w*/(.*?)(?::\w+)?")
_KNOWN = frozenset(METHODS)
_BUCKET_POLICY = re.compile(r"/storage/v1/b/([^/]+)/iam")


class ProjectApis:
    """The set-up of projects, as an endpoint of the HTTP door.

    Args:
        states: What each project has; the first is that of requests that name none.
        has_bucket: Whether a bucket is there.
    """

    def __init__(self, states: Mapping[str, ProjectState], has_bucket: Callable[[str], bool]) -> None:
        self.states, self._has_bucket = dict(states), has_bucket

    def __call__(self, request: Request) -> Response | None:
        """Answer a request of a project's set-up; None for any other.

        Raises:
            ServiceError: The API is not enabled, or what its method refuses.
        """
        match = _REGIONAL.fullmatch(request.host)
        host = match.group(1) if match else request.host
        if not host:
            return None
        state = self._state(request.path)
        with state.lock:
            if not state.answers(host) and host.endswith(".googleapis.com"):
                raise _disabled(state, host)
            if host == "storage.googleapis.com":
                return self._bucket_policy(state, request)
            if host not in DOCUMENTS or (method := find_method(host, request.method, request.path, _KNOWN)) is None:
                return None
            match = _VERSION.fullmatch(unquote(request.path))
            if match is None:
                return None
            name = _plain(state, match.group(1))
            if method.endswith("locations.operations.get") and name not in state.operations:
                return None
            body = request.value() if request.method in ("POST", "PUT", "PATCH") else None
            return json_response(METHODS[method](Call(state, name, request.query, request.values, body or {})))

    def _state(self, path: str) -> ProjectState:
        for state in self.states.values():
            if re.search(rf"/projects/(?:{re.escape(state.project)}|{state.number})(?:[/:]|$)", path):
                return state
        return next(iter(self.states.values()))

    def _bucket_policy(self, state: ProjectState, request: Request) -> Response | None:
        match = _BUCKET_POLICY.fullmatch(request.path)
        if match is None:
            return None
        bucket = match.group(1)
        if not self._has_bucket(bucket):
            raise ServiceError("NOT_FOUND", "The specified bucket does not exist.")
        name = f"buckets/{bucket}"
        if request.method == "PUT":
            return json_response(_of_bucket(set_policy(state, name, request.value() or {})))
        return json_response(_of_bucket(get_policy(state, name)))


def _of_bucket(policy: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "storage#policy", **policy}


def _plain(state: ProjectState, name: str) -> str:
    """Return a name with the project's id."""
    return re.sub(rf"^projects/(?:{state.number}|-)(?=/|$)", f"projects/{state.project}", name)


def _disabled(state: ProjectState, api: str) -> ServiceError:
    text = (
        f"{api} has not been used in project {state.number} before or it is disabled. Enable it, then retry. If you "
        "enabled this API recently, wait a few minutes for the action to propagate to our systems and retry."
    )
    metadata = {"service": api, "consumer": f"projects/{state.number}"}
    return ServiceError("PERMISSION_DENIED", text, info=("SERVICE_DISABLED", metadata))
