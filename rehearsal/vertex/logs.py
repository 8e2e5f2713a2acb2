"""Cloud Logging: output of containers, by entries.list.

Entries have the form of Vertex AI's for custom jobs (resource type ml_job) and Dataflow's for steps (dataflow_step),
with the line in jsonPayload.message. They are visible immediately.

https://cloud.google.com/logging/docs/reference/v2/rest/v2/entries/list,
https://cloud.google.com/logging/docs/api/v2/resource-list
"""

from __future__ import annotations

import itertools
import re
import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from google.cloud.logging_v2 import types

from rehearsal.errors import ServiceError, invalid_argument
from rehearsal.servers.messages import from_dict
from rehearsal.vertex.listing import page, parse_filter

if TYPE_CHECKING:
    from rehearsal.vertex.state import Caller, CloudState

# ml_job: containers of custom jobs and of pipeline tasks, which are custom jobs too.
JOB_RESOURCE, DATAFLOW_RESOURCE = "ml_job", "dataflow_step"
# Limits memory to 200 MB; the real service keeps entries for 30 days.
_MAX_ENTRIES = 100_000
_FIELDS = [field.json_name for field in types.LogEntry.pb(types.LogEntry()).DESCRIPTOR.fields]
# Last line of a traceback, also without Error in the name: google.api_core.exceptions.NotFound: 404
_EXCEPTION = re.compile(r"(\w+\.)+[A-Z]\w*: ")


def severity_of(text: str) -> str:
    """Return the severity of a line from the level named in it; INFO by default."""
    head = text[:160]
    if any(word in head for word in ("CRITICAL", "ERROR", "Error:", "Traceback", "error:")) or _EXCEPTION.match(head):
        return "ERROR"
    return "WARNING" if any(word in head for word in ("WARNING", "Warning", "warning:")) else "INFO"


class LogBook:
    """The newest entries, in the order of writing."""

    def __init__(self) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=_MAX_ENTRIES)
        self._lock = threading.Lock()
        self._ids = itertools.count(1)

    def write(self, resource_type: str, labels: Mapping[str, str], text: str, severity: str, time: float) -> None:
        """Write one entry of a monitored resource (type and labels), at a time in seconds since 1970."""
        moment = datetime.fromtimestamp(time, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        with self._lock:
            entry = {
                "insertId": f"r{next(self._ids):012d}",
                "timestamp": moment,
                "receiveTimestamp": moment,
                "severity": severity,
                "resource": {"type": resource_type, "labels": dict(labels)},
                "jsonPayload": {"message": text},
            }
            self._entries.append(entry)

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries in JSON form."""
        with self._lock:
            return list(self._entries)


def list_(cloud: CloudState, request: types.ListLogEntriesRequest, caller: Caller) -> types.ListLogEntriesResponse:
    """List the entries that a filter selects, by time."""
    if not request.resource_names:
        raise ServiceError("INVALID_ARGUMENT", "resource_names names at least one project")
    numbers = [cloud.resolve_name(name, "logging.logEntries.list").split("/")[1] for name in request.resource_names]
    if request.order_by not in ("", "timestamp asc", "timestamp desc"):
        raise invalid_argument("order_by", f"{request.order_by!r} is neither 'timestamp asc' nor 'timestamp desc'")
    test = parse_filter(request.filter, _FIELDS)
    entries = [entry for entry in cloud.logs.entries() if test(entry)]
    entries.sort(key=lambda entry: str(entry["timestamp"]), reverse=request.order_by.endswith("desc"))
    entries, token = page(entries, request.page_size, request.page_token, lambda entry: str(entry["insertId"]))
    # The log of a custom job is named by its replica, e.g. workerpool0-0.
    prefix = f"projects/{cloud.project_id(numbers[0])}/logs/"
    logs = [entry["resource"]["labels"].get("task_name") or "stdout" for entry in entries]
    messages = [
        from_dict(types.LogEntry, {"logName": prefix + log, **entry}) for log, entry in zip(logs, entries, strict=True)
    ]
    return types.ListLogEntriesResponse(entries=messages, next_page_token=token)


METHODS: dict[str, Any] = {"ListLogEntries": list_}
