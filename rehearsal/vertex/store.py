"""Resources of the local cloud by full name, as messages of the client libraries (google.cloud.aiplatform_v1.types).

Stored messages are immutable: changes replace them by a modified copy. So readers copy them without the lock.
"""

from __future__ import annotations

import copy
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/JobState, .../PipelineState, and
# https://cloud.google.com/dataflow/docs/reference/rest/v1b3/projects.jobs#Job.JobState
_FINAL_STATES = ("_SUCCEEDED", "_FAILED", "_CANCELLED", "_EXPIRED", "_DONE", "_DRAINED", "_UPDATED", "_STOPPED")


def has_ended(job: Any) -> bool:
    """Return whether the state of a custom, pipeline or Dataflow job is final."""
    state = job.current_state if hasattr(job, "current_state") else job.state
    return bool(state.name.endswith(_FINAL_STATES))


class Store:
    """All resources, by full name, in the order of their creation."""

    def __init__(self) -> None:
        self._messages: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._ids = itertools.count(1)
        self.scheduled_s: dict[str, float] = {}
        """Scheduled time of pipeline jobs that a schedule created, seconds since 1970; not a field of PipelineJob."""

    def new_id(self) -> str:
        """Return a new resource number: only digits, as on Vertex AI."""
        with self._changed:
            return str(10**15 + next(self._ids))

    def add(self, name: str, message: Any) -> None:
        """Add a resource; KeyError if it exists."""
        with self._changed:
            if name in self._messages:
                raise KeyError(name)
            self._messages[name] = copy.deepcopy(message)
            self._changed.notify_all()

    def get(self, name: str) -> Any:
        """Return a copy of a resource; KeyError if it does not exist."""
        with self._changed:
            message = self._messages[name]
        return copy.deepcopy(message)

    def find(self, name: str) -> Any | None:
        """Return a copy of a resource, or None."""
        with self._changed:
            message = self._messages.get(name)
        return copy.deepcopy(message)

    def list(self, prefix: str, kind: type = object) -> Iterator[Any]:
        """Yield copies of the resources of a type whose names start with `prefix`, the newest first."""
        with self._changed:
            messages = [message for name, message in self._messages.items() if name.startswith(prefix)]
        for message in reversed(messages):
            if isinstance(message, kind):
                yield copy.deepcopy(message)

    def update(self, name: str, change: Callable[[Any], None]) -> Any:
        """Replace a message by a copy modified by `change`; return a copy; KeyError if it does not exist."""
        with self._changed:
            changed = copy.deepcopy(self._messages[name])
            change(changed)
            self._messages[name] = changed
            self._changed.notify_all()
        return copy.deepcopy(changed)

    def remove(self, name: str) -> None:
        """Remove a resource; KeyError if it does not exist."""
        with self._changed:
            del self._messages[name]
            self._changed.notify_all()

    def wait(self, name: str, predicate: Callable[[Any], bool], timeout_s: float) -> Any:
        """Wait until `predicate` is true, up to `timeout_s`; return a copy; KeyError if there is no such resource."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not predicate(self._messages[name]):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            message = self._messages[name]
        return copy.deepcopy(message)
