"""The resources of the local Vertex: what every door shows and what executes them changes.

A resource is the client library's own message (google.cloud.aiplatform_v1.types), under its full name
(projects/P/locations/R/customJobs/1). Whoever changes one says so here, and whoever waits for a change is woken: Get of
a custom job is held until its state changes, so that a client which polls every 20 s hears of it at once.

A message that is stored is never altered: a change is made to a copy that takes its place. So readers copy without
holding the lock.
"""

from __future__ import annotations

import copy
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Runs(Protocol):
    """What executes a kind of resource: pipelines, or custom jobs. Both calls return at once."""

    def start(self, name: str) -> None:
        """Begin to execute the resource of this name, which is in the store and pending."""

    def cancel(self, name: str) -> None:
        """End it; its state becomes cancelled once nothing of it runs any more."""


class Jobs(Runs, Protocol):
    """What executes Dataflow jobs, and knows what they have said."""

    def messages(self, name: str) -> list[Any]:
        """Return google.cloud.dataflow_v1beta3.JobMessage, the oldest first."""


class Store:
    """All resources, by full name, in the order of their creation."""

    def __init__(self) -> None:
        self._messages: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._ids = itertools.count(1)
        self.scheduled_s: dict[str, float] = {}
        """Pipeline jobs that a schedule created, by full name: the time they were scheduled for, seconds since 1970.

        The value of dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER, which no field of a PipelineJob holds. It is there
        before Runs.start is called. A job that is not in it was submitted: Vertex then takes its creation time.
        """

    def new_id(self) -> str:
        """Return a number that no other resource has, as Vertex gives them: digits only."""
        with self._changed:
            return str(10**15 + next(self._ids))

    def add(self, name: str, message: Any) -> None:
        """Add a resource.

        Raises:
            KeyError: There is one of this name.
        """
        with self._changed:
            if name in self._messages:
                raise KeyError(name)
            self._messages[name] = copy.deepcopy(message)
            self._changed.notify_all()

    def get(self, name: str) -> Any:
        """Return a copy of a resource's message.

        Raises:
            KeyError: There is none.
        """
        with self._changed:
            found = self._messages[name]
        return copy.deepcopy(found)

    def find(self, name: str) -> Any | None:
        """Return a copy of a resource's message, if there is one."""
        with self._changed:
            found = self._messages.get(name)
        return copy.deepcopy(found)

    def list(self, prefix: str, kind: type = object) -> Iterator[Any]:
        """Yield copies of the messages of a type whose names start with `prefix`, the newest first."""
        with self._changed:
            found = [message for name, message in self._messages.items() if name.startswith(prefix)]
        for message in reversed(found):
            if isinstance(message, kind):
                yield copy.deepcopy(message)

    def update(self, name: str, change: Callable[[Any], None]) -> Any:
        """Let `change` alter a copy of the message, which takes its place; wake whoever waits; return a copy.

        Raises:
            KeyError: There is no such resource.
        """
        with self._changed:
            changed = copy.deepcopy(self._messages[name])
            change(changed)
            self._messages[name] = changed
            self._changed.notify_all()
        return copy.deepcopy(changed)

    def remove(self, name: str) -> None:
        """Remove a resource; KeyError where there is none."""
        with self._changed:
            del self._messages[name]
            self._changed.notify_all()

    def wait(self, name: str, until: Callable[[Any], bool], timeout_s: float) -> Any:
        """Return a copy of the message as soon as `until` holds for it, or when the time is over.

        Raises:
            KeyError: There is no such resource, or it was removed meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not until(self._messages[name]):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            found = self._messages[name]
        return copy.deepcopy(found)
