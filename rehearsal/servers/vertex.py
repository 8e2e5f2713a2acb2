"""The servers of the local cloud over one state, and the variables that make unmodified clients use them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from rehearsal.guard import PYTHON_GUARD, REFUSED_VARIABLE
from rehearsal.servers.access import Access
from rehearsal.servers.calls import Dispatcher, Handler, Method
from rehearsal.servers.grpc import GrpcServer
from rehearsal.servers.http import Serve
from rehearsal.servers.rest import RestServer
from rehearsal.servers.tls import HOST, TlsProxy, write_certificate
from rehearsal.vertex import custom_jobs, dataflow_jobs, logs, models, pipeline_jobs, schedules, small_services
from rehearsal.vertex.schedules import ScheduleRunner
from rehearsal.vertex.state import CloudState

_VERTEX, _DATAFLOW = "google.cloud.aiplatform_v1.types", "google.cloud.dataflow_v1beta3.types"
# Full name of a service, module of its request types, and its methods: name -> function of state, request and caller.
_SERVICES: tuple[tuple[str, str, Mapping[str, Handler]], ...] = (
    ("google.cloud.aiplatform.v1.PipelineService", _VERTEX, pipeline_jobs.METHODS),
    ("google.cloud.aiplatform.v1.JobService", _VERTEX, custom_jobs.METHODS),
    ("google.cloud.aiplatform.v1.ScheduleService", _VERTEX, schedules.METHODS),
    ("google.cloud.aiplatform.v1.ModelService", _VERTEX, models.METHODS),
    ("google.cloud.aiplatform.v1.MetadataService", _VERTEX, small_services.METADATA),
    ("google.longrunning.Operations", "google.longrunning.operations_pb2", small_services.OPERATIONS),
    ("google.logging.v2.LoggingServiceV2", "google.cloud.logging_v2.types", logs.METHODS),
    ("google.dataflow.v1beta3.JobsV1Beta3", _DATAFLOW, dataflow_jobs.JOBS),
    ("google.dataflow.v1beta3.MessagesV1Beta3", _DATAFLOW, dataflow_jobs.MESSAGES),
    ("google.dataflow.v1beta3.MetricsV1Beta3", _DATAFLOW, dataflow_jobs.METRICS),
    ("google.cloud.resourcemanager.v3.Projects", "google.cloud.resourcemanager_v3.types", small_services.PROJECTS),
)
# Read by gRPC, requests, curl, Python's ssl and httplib2.
_TRUST_VARIABLES = (
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "SSL_CERT_FILE",
    "HTTPLIB2_CA_CERTS",
)
_MAX_REFUSED_CHARACTERS = 200
_NO_BUCKET_KINDS = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"
_PROXY_VARIABLES = tuple(
    form for name in ("https_proxy", "http_proxy", "all_proxy", "no_proxy") for form in (name, name.upper())
)


class VertexServer:
    """The running servers of a local cloud: a context manager, or `start` and `stop`.

    `folder` gets certificate and keys, for this user alone.

    Attributes:
        endpoint: The REST server's address, for api_endpoint with api_transport="rest".
        grpc_port: Port on loopback where gRPC is spoken without TLS.
        access_log: The calls of both servers and the requests to the proxy.
    """

    def __init__(self, state: CloudState, folder: Path, access: Access) -> None:
        self.state, self.access = state, access
        self._dispatcher = Dispatcher(state, access)
        self._schedule_runner = ScheduleRunner(state, self._dispatcher.failures)
        self.access_log = self._dispatcher.log
        methods = _methods()
        self.sites: dict[str, Serve] = {"storage.googleapis.com": state.buckets.serve}
        """Services that are no table of methods, by host; a test may add one."""
        self._http = RestServer(self._dispatcher, methods, self.sites)
        self._grpc = GrpcServer(self._dispatcher, methods)
        self.endpoint, self.grpc_port = self._http.endpoint, self._grpc.port
        self._certificate = write_certificate(folder)
        self._refused_file = folder / "refused-hosts.txt"
        self._refused_hosts: dict[str, None] = {}
        self._tls = TlsProxy(
            self._certificate, grpc_port=self._grpc.port, http_port=self._http.port, on_request=self._log_proxied
        )

    def note_refused(self, host: str) -> None:
        """Add a host outside, in printable ASCII, to `refused`: the text comes from whoever sent the request."""
        self._refused_hosts.setdefault(host.encode("unicode_escape").decode()[:_MAX_REFUSED_CHARACTERS])

    @property
    def machine_environment(self) -> dict[str, str]:
        """Variables of machines' containers: proxy, trust, and the guard of Python processes.

        What is left to clients on Google's machines, the account and the project, is the metadata server's to say.
        """
        names = (*_TRUST_VARIABLES, *_PROXY_VARIABLES, "FSSPEC_GCS", _NO_BUCKET_KINDS, REFUSED_VARIABLE, "PYTHONPATH")
        return {name: self.environment[name] for name in names}

    @property
    def proxy(self) -> str:
        """The proxy's address, for https_proxy."""
        return self._tls.url

    @property
    def tls_port(self) -> int:
        """Port on loopback where gRPC and HTTP/1.1 are spoken with the certificate of Google's names."""
        return self._tls.tls_port

    @property
    def refused(self) -> list[str]:
        """Hosts outside that a client asked for, each once: refused by the proxy or in a guarded process."""
        hosts = list(self._refused_hosts)
        if self._refused_file.exists():
            hosts += self._refused_file.read_text().splitlines()
        return list(dict.fromkeys(hosts))

    def _log_proxied(self, method: str, target: str, allowed: bool) -> None:
        if not allowed:
            try:
                host = urlsplit(target if "://" in target else f"//{target}").hostname or target
            except ValueError:
                host = target
            self.note_refused(host)
        self._dispatcher.record("proxy", method, target, "OK" if allowed else "403")

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which unmodified clients in child processes use this cloud, and nothing else."""
        variables = {
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.access.key_file.absolute()),
            "GOOGLE_CLOUD_PROJECT": next(iter(self.state.projects)),
            **dict.fromkeys(_TRUST_VARIABLES, str(self._certificate.path.absolute())),
            # gcsfs ignores the proxy variables otherwise.
            "FSSPEC_GCS": '{"session_kwargs": {"trust_env": true}}',
            # Nor does it ask a gRPC service for the kind of every bucket then.
            _NO_BUCKET_KINDS: "false",
            # A machine that is not Google's has no metadata server; the library asks for seconds otherwise.
            "NO_GCE_CHECK": "true",
            # Where the guard writes the hosts that it refuses, also where a client swallows the error.
            REFUSED_VARIABLE: str(self._refused_file.absolute()),
            # Python's own sockets do not pass the proxy by. What was on the path stays on it.
            "PYTHONPATH": os.pathsep.join(filter(None, (str(PYTHON_GUARD), os.environ.get("PYTHONPATH")))),
        }
        for name in _PROXY_VARIABLES:
            variables[name] = f"{HOST},localhost" if name.lower() == "no_proxy" else self.proxy
        return variables

    def start(self) -> Self:
        """Begin to serve."""
        self._http.start()
        self._grpc.start()
        self._tls.start()
        self._schedule_runner.start()
        return self

    def stop_schedules(self) -> None:
        """Fire no schedule any more; everything else goes on."""
        self._schedule_runner.stop()

    def stop(self) -> None:
        """Stop serving and end all connections; RuntimeError when the local cloud itself had faults."""
        self.state.stopping.set()
        self._schedule_runner.stop()
        self._tls.stop()
        self._grpc.stop()
        self._http.stop()
        if failures := self._dispatcher.failures:
            raise RuntimeError(f"the local cloud had {len(failures)} faults, the first:\n{failures[0]}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _methods() -> list[Method]:
    """Return every method of every service; its request type is the client library's own."""
    methods = []
    for service, module, handlers in _SERVICES:
        types = importlib.import_module(module)
        methods += [Method(service, name, getattr(types, f"{name}Request"), run) for name, run in handlers.items()]
    return methods
