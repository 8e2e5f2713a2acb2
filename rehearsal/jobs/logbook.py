"""What containers print, and under which resource Cloud Logging would show it.

The local Vertex keeps a LogBook and answers entries.list from it; here is only what those who write need of it. Labels
are those of https://cloud.google.com/logging/docs/api/v2/resource-list (ml_job, dataflow_step).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

# Containers of custom jobs, and those of a pipeline's tasks, which are custom jobs too.
JOB_RESOURCE = "ml_job"
DATAFLOW_RESOURCE = "dataflow_step"


class LogBook(Protocol):
    """Where lines go."""

    def write(self, resource_type: str, labels: Mapping[str, str], text: str, severity: str, time: float) -> None:
        """Keep one entry; `time` in seconds since the epoch."""


class Clock(Protocol):
    """The time of the rehearsed world."""

    def now(self) -> float:
        """Seconds since the epoch."""


# The last line of a traceback, of an exception that has no Error in its name: google.api_core.exceptions.NotFound: 404
_EXCEPTION = re.compile(r"(\w+\.)+[A-Z]\w*: ")


def severity_of(text: str) -> str:
    """Return the severity of a line, from a level that it names; what was printed is INFO."""
    head = text[:160]
    if any(word in head for word in ("CRITICAL", "ERROR", "Error:", "Traceback", "error:")) or _EXCEPTION.match(head):
        return "ERROR"
    return "WARNING" if any(word in head for word in ("WARNING", "Warning", "warning:")) else "INFO"
