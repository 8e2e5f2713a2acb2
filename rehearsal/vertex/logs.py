"""What containers printed, and Cloud Logging's entries.list over it.

The entries have the form of those that Vertex writes for custom jobs (resource type ml_job) and Dataflow for its steps
(dataflow_step): the line in jsonPayload.message. Entries are there as soon as they are written; the real service's come
seconds later.

https://cloud.google.com/logging/docs/reference/v2/rest/v2/entries/list
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from google.cloud.logging_v2 import types

from rehearsal.doors.errors import ServiceError, invalid
from rehearsal.doors.messages import from_dict
from rehearsal.resources.listing import page
from rehearsal.resources.log_filter import SEVERITIES, make_test

if TYPE_CHECKING:
    from rehearsal.resources.cloud_state import Caller, CloudState


# The real service keeps 30 days; here the oldest entries go, so that a cloud that serves for days stays below 200 MB.
_MAX_ENTRIES = 100_000


class LogBook:
    """The newest entries, in the order of writing.

    Args:
        max_entries: How many are kept.
    """

    def __init__(self, max_entries: int = _MAX_ENTRIES) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=max_entries)
        self._lock = threading.Lock()
        self._ids = itertools.count(1)

    def write(
        self, resource_type: str, labels: Mapping[str, str], text: str, severity: str = "INFO", time: float = 0.0
    ) -> None:
        """Write one entry.

        Args:
            resource_type: Of the monitored resource: ml_job, dataflow_step, aiplatform.googleapis.com/PipelineJob.
            labels: Of the monitored resource: job_id, task_name, project_id, ... An entry is seen by readers of the
                project in `project_id`; by all where there is none.
            text: What was printed, one line or more.
            severity: DEFAULT, DEBUG, INFO, NOTICE, WARNING, ERROR, CRITICAL, ALERT or EMERGENCY.
            time: By the rehearsed clock, seconds since 1970.

        Raises:
            ValueError: There is no such severity.
        """
        if severity not in SEVERITIES:
            raise ValueError(f"{severity!r} is no severity: {', '.join(SEVERITIES)}")
        moment = datetime.fromtimestamp(time, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        with self._lock:
            self._entries.append(
                {
                    "insertId": f"r{next(self._ids):012d}",
                    "timestamp": moment,
                    "receiveTimestamp": moment,
                    "severity": severity,
                    "resource": {"type": resource_type, "labels": dict(labels)},
                    "jsonPayload": {"message": text},
                }
            )

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries that are kept, in JSON form, as they were written."""
        with self._lock:
            return list(self._entries)


def list_(cloud: CloudState, request: types.ListLogEntriesRequest, caller: Caller) -> types.ListLogEntriesResponse:
    """List the entries that a filter takes, by time."""
    projects: set[str] = set()
    for name in request.resource_names:
        number = cloud.resolve_name(name, "logging.logEntries.list").split("/")[1]
        projects |= {number, cloud.project_id(number)}
    if not projects:
        raise ServiceError("INVALID_ARGUMENT", "resource_names names a project at least")
    if request.order_by not in ("", "timestamp asc", "timestamp desc"):
        raise invalid("order_by", f"{request.order_by!r} is none of 'timestamp asc', 'timestamp desc'")
    test = make_test(request.filter)
    found = [entry for entry in cloud.logs.entries() if test(entry) and _project(entry) in ("", *projects)]
    found.sort(key=lambda entry: str(entry["timestamp"]), reverse=request.order_by.endswith("desc"))
    chosen, token = page(found, request.page_size, request.page_token)
    name = f"projects/{min(projects, key=str.isdigit)}/logs/"
    entries = [from_dict(types.LogEntry, {"logName": name + _log(entry), **entry}) for entry in chosen]
    return types.ListLogEntriesResponse(entries=entries, next_page_token=token)


def _project(entry: Mapping[str, Any]) -> str:
    return str(entry["resource"]["labels"].get("project_id", ""))


def _log(entry: Mapping[str, Any]) -> str:
    """Vertex names the log of a custom job by the replica, workerpool0-0."""
    return str(entry["resource"]["labels"].get("task_name") or "stdout")


METHODS: dict[str, Any] = {"ListLogEntries": list_}
ROUTES = {"ListLogEntries": [{"method": "post", "uri": "/v2/entries:list", "body": "*"}]}
