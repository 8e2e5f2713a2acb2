"""The resources of the local Vertex: what every door shows and what executes them changes.

A resource is the client library's own message (google.cloud.aiplatform_v1.types), under its full name
(projects/P/locations/R/customJobs/1). Whoever changes one says so here, and whoever waits for a change is woken: Get of
a custom job is held until its state changes, so that a client which polls every 20 s hears of it at once.
"""

from __future__ import annotations

import copy
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


@dataclass
class Resource:
    """One resource and how often it was changed."""

    name: str
    message: Any
    version: int = 0


class Store:
    """All resources, by full name, in the order of their creation."""

    def __init__(self) -> None:
        self._resources: dict[str, Resource] = {}
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
            if name in self._resources:
                raise KeyError(name)
            self._resources[name] = Resource(name, message)
            self._changed.notify_all()

    def get(self, name: str) -> Any:
        """Return a copy of a resource's message.

        Raises:
            KeyError: There is none.
        """
        with self._changed:
            return copy.deepcopy(self._resources[name].message)

    def find(self, name: str) -> Any | None:
        """Return a copy of a resource's message, if there is one."""
        with self._changed:
            found = self._resources.get(name)
            return None if found is None else copy.deepcopy(found.message)

    def list(self, prefix: str, kind: type = object) -> Iterator[Any]:
        """Yield copies of the messages of a type whose names start with `prefix`, the newest first."""
        with self._changed:
            found = [
                copy.deepcopy(r.message)
                for name, r in self._resources.items()
                if name.startswith(prefix) and isinstance(r.message, kind)
            ]
        yield from reversed(found)

    def update(self, name: str, change: Callable[[Any], None]) -> Any:
        """Let `change` alter the message in place; wake whoever waits; return a copy.

        Raises:
            KeyError: There is no such resource.
        """
        with self._changed:
            resource = self._resources[name]
            change(resource.message)
            resource.version += 1
            self._changed.notify_all()
            return copy.deepcopy(resource.message)

    def remove(self, name: str) -> None:
        """Remove a resource; KeyError where there is none."""
        with self._changed:
            del self._resources[name]
            self._changed.notify_all()

    def wait(self, name: str, until: Callable[[Any], bool], timeout_s: float) -> Any:
        """Return a copy of the message as soon as `until` holds for it, or when the time is over.

        Raises:
            KeyError: There is no such resource, or it was removed meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not until(self._resources[name].message):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return copy.deepcopy(self._resources[name].message)
