"""REST routes: from an HTTP method and a path to a method of a service and its request message.

The routes are the URI templates of the client libraries' own REST transports (google.api.http,
https://google.aip.dev/127), turned into regular expressions.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from rehearsal.doors.errors import ServiceError
from rehearsal.doors.messages import from_dict, nest
from rehearsal.doors.services import Method, Service

# What Google's front ends read from a query themselves: https://cloud.google.com/apis/docs/system-parameters
_SYSTEM = {"alt", "key", "fields", "prettyPrint", "quotaUser", "userProject", "uploadType", "access_token", "callback"}
_VARIABLE = re.compile(r"\{([a-z_.]+)(?:=([^}]+))?\}")


@dataclass(frozen=True)
class Route:
    """One way to reach a method."""

    verb: str
    pattern: re.Pattern[str]
    fields: tuple[str, ...]
    """The request's fields that the path's groups hold, in order."""
    body: str
    """The field that the body holds; "*" for the whole request, "" for none."""
    method: Method


class Routes:
    """All routes; the first that matches is taken."""

    def __init__(self, methods: Iterable[tuple[Service, Method]]) -> None:
        self._routes = [route for service, method in methods for route in _routes_of(service, method)]

    def find(self, verb: str, path: str) -> tuple[Route, dict[str, str]] | None:
        """Return the route of a request and the fields in its path; None where there is none."""
        for route in self._routes:
            if route.verb == verb and (match := route.pattern.fullmatch(path)) is not None:
                return route, dict(zip(route.fields, (unquote(group) for group in match.groups()), strict=True))
        return None


def make_request(route: Route, fields: dict[str, str], query: dict[str, list[str]], body: Any) -> Any:
    """Return the request message that path, query and body make.

    Raises:
        ServiceError: INVALID_ARGUMENT: a name that the message does not have, or a value that it cannot hold.
    """
    kind = route.method.request_type
    if body is not None and not isinstance(body, dict):
        raise ServiceError("INVALID_ARGUMENT", "Invalid JSON payload received. A request's body is a JSON object.")
    values: dict[str, Any] = {}
    if route.body == "*":
        values = dict(body or {})
    elif route.body:
        nest(kind, route.body, dict(body or {}), values)
    for name, texts in query.items():
        if not name.startswith("$") and name not in _SYSTEM:
            nest(kind, name, texts, values)
    for name, text in fields.items():
        nest(kind, name, text, values)
    return from_dict(kind, values)


def _routes_of(service: Service, method: Method) -> list[Route]:
    if not service.transports:
        return [_route(option, method) for option in service.routes.get(method.name, [])]
    module = importlib.import_module(service.transports)
    transport = next(kind for name, kind in vars(module).items() if re.fullmatch(r"_Base\w+RestTransport", name))
    options = getattr(transport, f"_Base{method.name}")._get_http_options()
    return [_route(option, method) for option in options]


def _route(option: dict[str, str], method: Method) -> Route:
    pattern, fields, end = "", [], 0
    template = option["uri"]
    for match in _VARIABLE.finditer(template):
        pattern += re.escape(template[end : match.start()]) + f"({_segments(match.group(2) or '*')})"
        fields.append(match.group(1))
        end = match.end()
    pattern += re.escape(template[end:])
    return Route(option["method"].upper(), re.compile(pattern), tuple(fields), option.get("body", ""), method)


def _segments(template: str) -> str:
    """Return the pattern of "projects/*/x/**"; a segment holds no colon, which begins a verb."""
    parts = re.split(r"(\*\*|\*)", template)
    return "".join({"*": "[^/:]+", "**": ".+"}.get(part, re.escape(part)) for part in parts)
