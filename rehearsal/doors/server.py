"""The server: all doors over one store, and the variables that lead unmodified clients to them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from rehearsal.clock import Clock
from rehearsal.doors.access import Access
from rehearsal.doors.access_log import AccessLog
from rehearsal.doors.calls import Dispatcher
from rehearsal.doors.grpc_door import GrpcDoor
from rehearsal.doors.http_door import HttpDoor, answer_allowed_locations
from rehearsal.gcs.service import BucketService
from rehearsal.guard import PYTHON_GUARD, REFUSED_VARIABLE, Guard, ProxyRequest, write_certificate
from rehearsal.resources.buckets import Buckets
from rehearsal.resources.cloud_state import CloudState
from rehearsal.resources.store import Jobs, Runs, Store
from rehearsal.vertex.logs import LogBook
from rehearsal.vertex.schedule_runner import ScheduleRunner

_HOST = "127.0.0.1"
# Read by gRPC, requests, curl, Python's ssl and httplib2.
_TRUST_VARIABLES = (
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "SSL_CERT_FILE",
    "HTTPLIB2_CA_CERTS",
)
_NO_BUCKET_KINDS = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"
_PROXY_VARIABLES = tuple(
    form for name in ("https_proxy", "http_proxy", "all_proxy", "no_proxy") for form in (name, name.upper())
)


class VertexServer:
    """A running local cloud: a context manager, or `start` and `stop`.

    Args:
        store: The resources.
        pipelines: What executes pipeline jobs.
        custom_jobs: What executes custom jobs.
        clock: The rehearsed time.
        projects: Project id -> number, at least one; the first is clients' default.
        folder: Where certificate and keys are written, for this user alone.
        access: Who may call; new credentials in the folder where none are given.
        logs: What Cloud Logging shows; a new, empty book where none is given.
        buckets: Cloud Storage; None: there is none.
        dataflow: What executes Dataflow jobs; None: there are none.
        hold_s: How long Get of a custom job is held for a launcher's poll.
    """

    def __init__(
        self,
        store: Store,
        *,
        pipelines: Runs,
        custom_jobs: Runs,
        clock: Clock,
        projects: Mapping[str, str],
        folder: Path,
        access: Access | None = None,
        logs: LogBook | None = None,
        buckets: BucketService | None = None,
        dataflow: Jobs | None = None,
        hold_s: float = 600.0,
    ) -> None:
        self.access = access or Access(folder, project=next(iter(projects)))
        self.state = CloudState(
            store,
            pipelines=pipelines,
            custom_jobs=custom_jobs,
            clock=clock,
            projects=dict(projects),
            buckets=Buckets(buckets),
            logs=logs or LogBook(),
            hold_s=hold_s,
            dataflow=dataflow,
        )
        self._dispatcher = Dispatcher(self.state, self.access)
        self._schedule_runner = ScheduleRunner(self.state, self._dispatcher.failures)
        self._folder = folder
        self._http = HttpDoor(self._dispatcher, (answer_allowed_locations,), buckets)
        self._grpc = GrpcDoor(self._dispatcher)
        self._certificate = write_certificate(folder)
        self._refused = folder / "refused-hosts.txt"
        self._asked_for: dict[str, None] = {}
        self._guard = Guard(
            self._certificate, grpc_port=self._grpc.port, http_port=self._http.port, on_request=self._log_proxied
        )

    def note_refused(self, host: str) -> None:
        """Take down that somebody wanted a host outside."""
        self._asked_for.setdefault(host)

    @property
    def trust(self) -> dict[str, str]:
        """Variables by which clients trust this server's certificate, and no other."""
        return dict.fromkeys(_TRUST_VARIABLES, str(self._certificate.authority.absolute()))

    @property
    def machine_environment(self) -> dict[str, str]:
        """Variables of machines' containers: proxy, trust, and the guard of Python processes.

        What is left to clients on Google's machines, the account and the project, is the metadata server's to say.
        """
        kept = (*_TRUST_VARIABLES, *_PROXY_VARIABLES, "FSSPEC_GCS", _NO_BUCKET_KINDS, REFUSED_VARIABLE, "PYTHONPATH")
        return {name: self.environment[name] for name in kept}

    @property
    def endpoint(self) -> str:
        """The HTTP door's address, for api_endpoint with api_transport="rest"."""
        return self._http.endpoint

    @property
    def proxy(self) -> str:
        """The guard's address, for https_proxy."""
        return self._guard.proxy

    @property
    def grpc_port(self) -> int:
        """Port on loopback where gRPC is spoken without TLS."""
        return int(self._grpc.port)

    @property
    def tls_port(self) -> int:
        """Port on loopback where gRPC and HTTP/1.1 are spoken with the certificate of Google's names."""
        return self._guard.tls_port

    @property
    def logs(self) -> LogBook:
        """What containers print; whoever executes them writes it."""
        return self.state.logs

    @property
    def access_log(self) -> AccessLog:
        """Who asked for what."""
        return self._dispatcher.log

    @property
    def proxied(self) -> list[ProxyRequest]:
        """What the proxy was asked for, refused ones too."""
        return list(self._guard.proxied)

    @property
    def refused(self) -> list[str]:
        """Hosts outside that somebody wanted, each once: what the proxy refused, and the guard in Python processes.

        Whoever took the refusal for an error of the network is in it too.
        """
        hosts = list(self._asked_for)
        if self._refused.exists():
            hosts += self._refused.read_text().splitlines()
        return list(dict.fromkeys(hosts))

    def _log_proxied(self, request: ProxyRequest) -> None:
        if not request.allowed:
            parts = urlsplit(request.target if "://" in request.target else f"//{request.target}")
            self.note_refused(parts.hostname or parts.netloc)
            self.access_log.add("proxy", request.method, request.target, "403", "")

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead unmodified clients in child processes here, and nowhere else."""
        authority, proxy_port = str(self._certificate.authority.absolute()), self.proxy.rsplit(":", 1)[1]
        project = next(iter(self.state.projects))
        found = {
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.access.key_file.absolute()),
            "GOOGLE_CLOUD_PROJECT": project,
            **self.trust,
            # gcsfs ignores the proxy variables otherwise.
            "FSSPEC_GCS": '{"session_kwargs": {"trust_env": true}}',
            # Nor does it ask a gRPC service for the kind of every bucket then.
            _NO_BUCKET_KINDS: "false",
            # A machine that is not Google's has no metadata server; the library asks for seconds otherwise.
            "NO_GCE_CHECK": "true",
            # What the guard below refuses is told here, also when its error is swallowed.
            REFUSED_VARIABLE: str(self._refused.absolute()),
            # Python's own sockets do not pass the proxy by. What was on the path stays on it.
            "PYTHONPATH": os.pathsep.join(filter(None, (str(PYTHON_GUARD), os.environ.get("PYTHONPATH")))),
            "CLOUDSDK_PROXY_TYPE": "http",
            "CLOUDSDK_PROXY_ADDRESS": _HOST,
            "CLOUDSDK_PROXY_PORT": proxy_port,
            "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": authority,
            "CLOUDSDK_CORE_PROJECT": project,
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_AUTH_ACCESS_TOKEN": self.access.token,
            "CLOUDSDK_CONFIG": str((self._folder / "gcloud").absolute()),
        }
        for name in _PROXY_VARIABLES:
            found[name] = f"{_HOST},localhost" if name.lower() == "no_proxy" else self.proxy
        return found

    def start(self) -> Self:
        """Begin to serve."""
        self._http.start()
        self._grpc.start()
        self._guard.start()
        self._schedule_runner.start()
        return self

    def stop_schedules(self) -> None:
        """Fire no schedule any more; everything else goes on."""
        self._schedule_runner.stop()

    def stop(self) -> None:
        """Stop serving and end all connections; RuntimeError when the local cloud itself had faults."""
        self.state.stopping.set()
        self._schedule_runner.stop()
        self._guard.stop()
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
