"""REST server: methods that Google's clients call by REST, Cloud Storage, token endpoint, allowedLocations.

Clients use its address (api_endpoint=http://127.0.0.1:PORT) or, through the TLS port, any of Google's hosts. Methods
that are not in the table are answered with 404 and their name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from rehearsal.errors import ServiceError
from rehearsal.servers.calls import Dispatcher, Method
from rehearsal.servers.http import Request, Response, Send, Serve, json_response, locked
from rehearsal.servers.http_server import HttpServer
from rehearsal.servers.messages import from_dict, to_dict

# Verb and path below projects/*/locations/* -> method, and the field that the body holds ("*": the whole request).
_METHODS = {
    ("POST", "customJobs"): ("JobService.CreateCustomJob", "customJob"),
    ("GET", "customJobs"): ("JobService.ListCustomJobs", ""),
    ("GET", "customJobs/*"): ("JobService.GetCustomJob", ""),
    ("POST", "customJobs/*:cancel"): ("JobService.CancelCustomJob", "*"),
    ("POST", "pipelineJobs"): ("PipelineService.CreatePipelineJob", "pipelineJob"),
    ("GET", "pipelineJobs"): ("PipelineService.ListPipelineJobs", ""),
    ("GET", "pipelineJobs/*"): ("PipelineService.GetPipelineJob", ""),
    ("POST", "pipelineJobs/*:cancel"): ("PipelineService.CancelPipelineJob", "*"),
    ("POST", "schedules"): ("ScheduleService.CreateSchedule", "schedule"),
    ("GET", "schedules"): ("ScheduleService.ListSchedules", ""),
    ("GET", "schedules/*"): ("ScheduleService.GetSchedule", ""),
    ("DELETE", "schedules/*"): ("ScheduleService.DeleteSchedule", ""),
    ("POST", "schedules/*:pause"): ("ScheduleService.PauseSchedule", "*"),
    ("POST", "schedules/*:resume"): ("ScheduleService.ResumeSchedule", "*"),
    ("POST", "models:upload"): ("ModelService.UploadModel", "*"),
    ("GET", "models"): ("ModelService.ListModels", ""),
    ("GET", "models/*"): ("ModelService.GetModel", ""),
    ("GET", "models/*:listVersions"): ("ModelService.ListModelVersions", ""),
    ("POST", "models/*:mergeVersionAliases"): ("ModelService.MergeVersionAliases", "*"),
    ("GET", "operations/*"): ("Operations.GetOperation", ""),
}
_PATH = re.compile(r"/v1/(projects/[^/]+/locations/[^/]+)/([^:]+)(:[a-zA-Z]+)?")
# What Google's front ends read from a query themselves: https://cloud.google.com/apis/docs/system-parameters
_SYSTEM_PARAMETERS = {"alt", "key", "fields", "prettyPrint", "quotaUser", "userProject", "access_token", "callback"}


class RestServer:
    """An HTTP server on a free port of 127.0.0.1.

    `sites` maps hosts to other handlers.
    """

    def __init__(self, dispatcher: Dispatcher, methods: Iterable[Method], sites: Mapping[str, Serve]) -> None:
        self._dispatcher, self._sites = dispatcher, sites
        self._methods = {method.short_name: method for method in methods}
        self._server = HttpServer(locked(self._serve, dispatcher.access, self._log), dispatcher.failures)
        self.port, self.endpoint = self._server.port, self._server.endpoint

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()

    def stop(self) -> None:
        """Stop serving and end all connections."""
        self._server.stop()

    def _serve(self, request: Request, send: Send) -> None:
        if (serve := self._sites.get(request.host)) is not None:
            serve(request, send)
        else:
            send(self._answer(request))

    def _answer(self, request: Request) -> Response:
        if request.path.endswith("/allowedLocations") and request.host in ("", "iamcredentials.googleapis.com"):
            # google-auth reads the allowed regions of the service account: all.
            self._log(request, "200")
            return json_response({"locations": [], "encodedLocations": "0x0"})
        if match := _PATH.fullmatch(unquote(request.path)):
            place, resource, verb = match.groups("")
            segments = resource.split("/")
            form = "/".join("*" if number % 2 else segment for number, segment in enumerate(segments)) + verb
            if (request.method, form) in _METHODS:
                name, body = _METHODS[request.method, form]
                path_values = {"parent": place} if len(segments) % 2 else {"name": f"{place}/{resource}"}
                message = _make_request(self._methods[name], path_values, request, body)
                return json_response(to_dict(self._dispatcher.call(self._methods[name], message, request.caller)))
        self._log(request, "404")
        target = f"{request.method} {request.headers.get('host')}{request.path}"
        raise ServiceError("NOT_FOUND", f"the rehearsal's cloud has no {target}")

    def _log(self, request: Request, status: str) -> None:
        caller = request.caller
        self._dispatcher.record("rest", request.method, caller.host + request.path, status, caller.user_agent)


def _make_request(method: Method, path_values: dict[str, str], request: Request, body: str) -> Any:
    """Build the request message from path, query and body; ServiceError INVALID_ARGUMENT if they are invalid."""
    content = request.json()
    if not isinstance(content, dict | None):
        raise ServiceError("INVALID_ARGUMENT", "Invalid JSON payload received. A request's body is a JSON object.")
    values: dict[str, Any] = content or {} if body == "*" else {body: content or {}} if body else {}
    for name, text in request.query.items():
        if not name.startswith("$") and name not in _SYSTEM_PARAMETERS:
            values[name] = {"true": True, "false": False}.get(text, text)
    return from_dict(method.request_type, values | path_values)
