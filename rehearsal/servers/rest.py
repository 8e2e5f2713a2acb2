"""REST server: the methods that Google's clients call by REST, Cloud Storage, the token endpoint and allowedLocations.

Reached by its address (api_endpoint=http://127.0.0.1:PORT) and, through the TLS port, as any of Google's hosts. A
method that is not in the table is answered with 404 and its name.
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

_LOCATION = "projects/*/locations/*"
# Verb, URI template (https://google.aip.dev/127), method, and the field that the body holds ("*": the whole request).
_METHODS = (
    ("POST", f"/v1/{{parent={_LOCATION}}}/customJobs", "JobService.CreateCustomJob", "customJob"),
    ("GET", f"/v1/{{parent={_LOCATION}}}/customJobs", "JobService.ListCustomJobs", ""),
    ("GET", f"/v1/{{name={_LOCATION}/customJobs/*}}", "JobService.GetCustomJob", ""),
    ("POST", f"/v1/{{name={_LOCATION}/customJobs/*}}:cancel", "JobService.CancelCustomJob", "*"),
    ("POST", f"/v1/{{parent={_LOCATION}}}/pipelineJobs", "PipelineService.CreatePipelineJob", "pipelineJob"),
    ("GET", f"/v1/{{parent={_LOCATION}}}/pipelineJobs", "PipelineService.ListPipelineJobs", ""),
    ("GET", f"/v1/{{name={_LOCATION}/pipelineJobs/*}}", "PipelineService.GetPipelineJob", ""),
    ("POST", f"/v1/{{name={_LOCATION}/pipelineJobs/*}}:cancel", "PipelineService.CancelPipelineJob", "*"),
    ("POST", f"/v1/{{parent={_LOCATION}}}/schedules", "ScheduleService.CreateSchedule", "schedule"),
    ("GET", f"/v1/{{parent={_LOCATION}}}/schedules", "ScheduleService.ListSchedules", ""),
    ("GET", f"/v1/{{name={_LOCATION}/schedules/*}}", "ScheduleService.GetSchedule", ""),
    ("DELETE", f"/v1/{{name={_LOCATION}/schedules/*}}", "ScheduleService.DeleteSchedule", ""),
    ("POST", f"/v1/{{name={_LOCATION}/schedules/*}}:pause", "ScheduleService.PauseSchedule", "*"),
    ("POST", f"/v1/{{name={_LOCATION}/schedules/*}}:resume", "ScheduleService.ResumeSchedule", "*"),
    ("POST", f"/v1/{{parent={_LOCATION}}}/models:upload", "ModelService.UploadModel", "*"),
    ("GET", f"/v1/{{parent={_LOCATION}}}/models", "ModelService.ListModels", ""),
    ("GET", f"/v1/{{name={_LOCATION}/models/*}}:listVersions", "ModelService.ListModelVersions", ""),
    ("GET", f"/v1/{{name={_LOCATION}/models/*}}", "ModelService.GetModel", ""),
    ("POST", f"/v1/{{name={_LOCATION}/models/*}}:mergeVersionAliases", "ModelService.MergeVersionAliases", "*"),
    ("GET", f"/v1/{{name={_LOCATION}/**/operations/*}}", "Operations.GetOperation", ""),
    ("GET", f"/v1/{{name={_LOCATION}/operations/*}}", "Operations.GetOperation", ""),
    ("GET", "/v1b3/projects/{projectId}/locations/{location}/jobs/{jobId}", "JobsV1Beta3.GetJob", ""),
    ("POST", "/v2/entries:list", "LoggingServiceV2.ListLogEntries", "*"),
    ("GET", "/v3/{name=projects/*}", "Projects.GetProject", ""),
)
_VARIABLE = re.compile(r"\{([a-zA-Z]+)(?:=([^}]+))?\}")
# What Google's front ends read from a query themselves: https://cloud.google.com/apis/docs/system-parameters
_SYSTEM_PARAMETERS = {"alt", "key", "fields", "prettyPrint", "quotaUser", "userProject", "access_token", "callback"}


class RestServer:
    """An HTTP server on a free port of 127.0.0.1.

    `sites` answer instead of the methods, by host.
    """

    def __init__(self, dispatcher: Dispatcher, methods: Iterable[Method], sites: Mapping[str, Serve]) -> None:
        self._dispatcher, self._sites = dispatcher, sites
        by_name = {method.short_name: method for method in methods}
        self._routes = [
            (verb, *_parse_template(template), by_name[name], body) for verb, template, name, body in _METHODS
        ]
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
            # google-auth asks in which regions a service account may be used: everywhere.
            self._log(request, "200")
            return json_response({"locations": [], "encodedLocations": "0x0"})
        for verb, pattern, fields, method, body in self._routes:
            if verb == request.method and (match := pattern.fullmatch(request.path)):
                path_values = dict(zip(fields, map(unquote, match.groups()), strict=True))
                message = _make_request(method, path_values, request, body)
                return json_response(to_dict(self._dispatcher.call(method, message, request.caller)))
        self._log(request, "404")
        target = f"{request.method} {request.headers.get('host')}{request.path}"
        raise ServiceError("NOT_FOUND", f"the rehearsal's cloud has no {target}")

    def _log(self, request: Request, status: str) -> None:
        caller = request.caller
        self._dispatcher.record("rest", request.method, caller.host + request.path, status, caller.user_agent)


def _make_request(method: Method, path_values: dict[str, str], request: Request, body: str) -> Any:
    """Return the request message that path, query and body make; ServiceError INVALID_ARGUMENT where they make none."""
    content = request.json()
    if not isinstance(content, dict | None):
        raise ServiceError("INVALID_ARGUMENT", "Invalid JSON payload received. A request's body is a JSON object.")
    values: dict[str, Any] = content or {} if body == "*" else {body: content or {}} if body else {}
    for name, text in request.query.items():
        if not name.startswith("$") and name not in _SYSTEM_PARAMETERS:
            values[name] = {"true": True, "false": False}.get(text, text)
    return from_dict(method.request_type, values | path_values)


def _parse_template(template: str) -> tuple[re.Pattern[str], list[str]]:
    """Return a URI template as a pattern, and the fields that its groups hold."""
    pattern, end = "", 0
    for match in _VARIABLE.finditer(template):
        # A segment holds no colon, which begins a verb.
        parts = re.split(r"(\*\*|\*)", match.group(2) or "*")
        group = "".join({"*": "[^/:]+", "**": ".+"}.get(part, re.escape(part)) for part in parts)
        pattern += re.escape(template[end : match.start()]) + f"({group})"
        end = match.end()
    return re.compile(pattern + re.escape(template[end:])), [match[1] for match in _VARIABLE.finditer(template)]
