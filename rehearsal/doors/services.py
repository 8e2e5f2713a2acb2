"""Which services there are: one table, read by both doors.

A service is a table METHODS (name -> function of the state, the request and the caller). Its request types and its
REST routes are taken from the client library itself, so that neither can differ from what clients send.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rehearsal.resources import operations, projects
from rehearsal.resources.cloud_state import Caller, CloudState
from rehearsal.vertex import custom_jobs, dataflow_jobs, logs, metadata, models, pipeline_jobs, schedules

Handler = Callable[[CloudState, Any, Caller], Any]


@dataclass(frozen=True)
class Service:
    """One service of Google's."""

    name: str
    """Full name, as gRPC's paths begin."""
    types: str
    """Module of its request types."""
    transports: str
    """Module of the client library's rest_base, whose URI templates are our routes; "" where it has none."""
    methods: Mapping[str, Handler]
    routes: Mapping[str, list[dict[str, str]]] = field(default_factory=dict)
    """Method -> routes, where the client library has no REST transport: {"method", "uri", "body"}."""


@dataclass(frozen=True)
class Method:
    """One method of a service, ready to be called."""

    service: str
    name: str
    request_type: Any
    handler: Handler

    @property
    def path(self) -> str:
        """The path by which gRPC calls it."""
        return f"/{self.service}/{self.name}"


def _vertex(name: str, module: str, methods: Mapping[str, Handler]) -> Service:
    transports = f"google.cloud.aiplatform_v1.services.{module}.transports.rest_base"
    return Service(f"google.cloud.aiplatform.v1.{name}", "google.cloud.aiplatform_v1.types", transports, methods)


def _dataflow(name: str, module: str, methods: Mapping[str, Handler]) -> Service:
    transports = f"google.cloud.dataflow_v1beta3.services.{module}.transports.rest_base"
    return Service(f"google.dataflow.v1beta3.{name}", "google.cloud.dataflow_v1beta3.types", transports, methods)


SERVICES = (
    _vertex("PipelineService", "pipeline_service", pipeline_jobs.METHODS),
    _vertex("JobService", "job_service", custom_jobs.METHODS),
    _vertex("ScheduleService", "schedule_service", schedules.METHODS),
    _vertex("ModelService", "model_service", models.METHODS),
    _vertex("MetadataService", "metadata_service", metadata.METHODS),
    Service("google.logging.v2.LoggingServiceV2", "google.cloud.logging_v2.types", "", logs.METHODS, logs.ROUTES),
    _dataflow("JobsV1Beta3", "jobs_v1_beta3", dataflow_jobs.JOBS),
    _dataflow("MessagesV1Beta3", "messages_v1_beta3", dataflow_jobs.MESSAGES),
    _dataflow("MetricsV1Beta3", "metrics_v1_beta3", dataflow_jobs.METRICS),
    Service(
        "google.cloud.resourcemanager.v3.Projects",
        "google.cloud.resourcemanager_v3.types",
        "google.cloud.resourcemanager_v3.services.projects.transports.rest_base",
        projects.METHODS,
    ),
    Service(
        "google.longrunning.Operations",
        "google.longrunning.operations_pb2",
        "google.cloud.aiplatform_v1.services.job_service.transports.rest_base",
        operations.METHODS,
    ),
)


def methods() -> list[tuple[Service, Method]]:
    """Return every method of every service."""
    found = []
    for service in SERVICES:
        types = importlib.import_module(service.types)
        for name, handler in service.methods.items():
            found.append((service, Method(service.name, name, getattr(types, f"{name}Request"), handler)))
    return found
