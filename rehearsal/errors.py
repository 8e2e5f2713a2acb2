"""Errors of the services: status code, message, and invalid fields.

A ServiceError is sent as gRPC status with google.rpc.BadRequest among its details, or as the JSON of
https://cloud.google.com/apis/design/errors; a StorageError in the form of Cloud Storage. Codes and field paths follow
the documentation and clients of the real service; the messages are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto, with the HTTP status it names for each.
CODES = {
    "OK": (0, 200),
    "CANCELLED": (1, 499),
    "INVALID_ARGUMENT": (3, 400),
    "NOT_FOUND": (5, 404),
    "ALREADY_EXISTS": (6, 409),
    "PERMISSION_DENIED": (7, 403),
    "RESOURCE_EXHAUSTED": (8, 429),
    "FAILED_PRECONDITION": (9, 400),
    "UNIMPLEMENTED": (12, 501),
    "INTERNAL": (13, 500),
    "UNAUTHENTICATED": (16, 401),
}
# What Cloud Storage calls an HTTP status: https://cloud.google.com/storage/docs/json_api/v1/status-codes
STORAGE_REASONS = {
    400: "invalid",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "conflict",
    410: "gone",
    412: "conditionNotMet",
    416: "requestedRangeNotSatisfiable",
    429: "rateLimitExceeded",
    500: "internalError",
    501: "notImplemented",
    503: "backendError",
}


@dataclass(frozen=True)
class Violation:
    """An invalid field."""

    field: str
    """Its path from the request's resource, as `job_spec.worker_pool_specs[0].replica_count`."""
    description: str


class ServiceError(Exception):
    """A request that a service refuses.

    `code` is the name of a status code, as INVALID_ARGUMENT.
    """

    def __init__(
        self,
        code: str,
        message: str,
        violations: tuple[Violation, ...] = (),
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.violations = code, message, violations

    @property
    def http_status(self) -> int:
        """The HTTP status of the code."""
        return CODES[self.code][1]

    def details(self) -> list[dict[str, Any]]:
        """Return the details as their JSON form: each a google.protobuf.Any."""
        if not self.violations:
            return []
        fields = [{"field": v.field, "description": v.description} for v in self.violations]
        return [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": fields}]

    def to_json(self) -> dict[str, Any]:
        """Return the body of the HTTP answer."""
        error: dict[str, Any] = {"code": self.http_status, "message": self.message, "status": self.code}
        if details := self.details():
            error["details"] = details
        return {"error": error}

    def to_status(self) -> bytes:
        """Return google.rpc.Status, serialised, for the trailer grpc-status-details-bin."""
        from google.protobuf import json_format
        from google.rpc import error_details_pb2, status_pb2  # noqa: F401  # the details' types must be known

        status = status_pb2.Status(code=CODES[self.code][0], message=self.message)
        for detail in self.details():
            json_format.ParseDict(detail, status.details.add())
        return bytes(status.SerializeToString())


class StorageError(Exception):
    """A request that Cloud Storage refuses, in its own form.

    Args:
        status: HTTP status.
        message: One sentence or more.
        reason: Google's short name of the error, as in
            https://cloud.google.com/storage/docs/json_api/v1/status-codes
    """

    def __init__(self, status: int, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason or STORAGE_REASONS.get(status, STORAGE_REASONS[400])

    def to_json(self) -> dict[str, Any]:
        """Return the body of the HTTP answer."""
        entry = {"message": str(self), "domain": "global", "reason": self.reason}
        if self.status == 412:
            entry |= {"locationType": "header", "location": "If-Match"}
        return {"error": {"code": self.status, "message": str(self), "errors": [entry]}}


def invalid_argument(field: str, description: str) -> ServiceError:
    """Return INVALID_ARGUMENT for one field."""
    return invalid_arguments([Violation(field, description)])


def invalid_arguments(violations: list[Violation]) -> ServiceError:
    """Return INVALID_ARGUMENT for one or more fields, with Vertex AI's message format."""
    text = "".join(f"{n}.Field: {v.field}; Message: {v.description}\t" for n, v in enumerate(violations, 1))
    return ServiceError("INVALID_ARGUMENT", f"List of found errors:\t{text}", tuple(violations))


def not_found(name: str) -> ServiceError:
    """Return NOT_FOUND for a resource."""
    return ServiceError("NOT_FOUND", f"There is no resource {name}")
