"""One call of one method, logged: what both doors do once they have a request message."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import Any

from rehearsal.doors.access import Access
from rehearsal.doors.access_log import AccessLog
from rehearsal.doors.errors import ServiceError
from rehearsal.doors.hosts import check_host
from rehearsal.doors.services import Method
from rehearsal.resources.cloud_state import Caller, CloudState


@dataclass
class Dispatcher:
    """Where both doors bring what they are asked."""

    state: CloudState
    access: Access
    log: AccessLog = field(default_factory=AccessLog)
    failures: list[str] = field(default_factory=list)
    """Faults of the local cloud itself, as tracebacks."""

    def call(self, method: Method, request: Any, caller: Caller) -> Any:
        """Call a method and log it; ServiceError is its no."""
        name = f"{method.service.rsplit('.', 1)[1]}.{method.name}"
        status = "OK"
        try:
            check_host(caller, method.service, _resource(request))
            with self.log.running(name):
                return method.handler(self.state, request, caller)
        except ServiceError as error:
            status = error.code
            raise
        except Exception as error:  # an entry point: a fault of ours is told as INTERNAL, and kept
            status = "INTERNAL"
            self.failures.append(traceback.format_exc())
            raise ServiceError("INTERNAL", f"the rehearsal's own fault in {name}: {error!r}") from error
        finally:
            self.log.add(caller.door, name, _resource(request), status, caller.user_agent)


def _resource(request: Any) -> str:
    for field_name in ("name", "parent"):
        if value := getattr(request, field_name, ""):
            return str(value)
    for field_name in ("schedule", "model"):
        if (inner := getattr(request, field_name, None)) is not None:
            return str(getattr(inner, "name", inner))
    return ""
