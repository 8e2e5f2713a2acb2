"""A local cloud with a project in it, and this process led to it."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httplib2
import pytest

from pipelines.project.client import VERSIONS
from rehearsal.cloud import LocalCloud
from rehearsal.doors.http_door import HttpDoor
from rehearsal.doors.http_messages import FileBody, Request, Response, parse_target
from rehearsal.doors.request_body import RequestBody, Reset
from rehearsal.gcs.write_rate import WriteRate
from rehearsal.projects.apis import ProjectApis
from rehearsal.projects.state import Lag, ProjectState

PROJECT, NUMBER, BUCKET = "acme-vision", "123456789012", "acme-vision-line"


class EmptyCloud:
    """A cloud whose project can be emptied again."""

    def __init__(self, cloud: LocalCloud) -> None:
        self.cloud = cloud
        apis = cloud.vertex._http._first
        assert isinstance(apis, ProjectApis)
        self._apis = apis
        self._direct: dict[str, Any] = {}

    def empty(self, lag: Lag | None = None) -> ProjectState:
        """Take away everything, and return the project."""
        self.cloud.buckets.clear()
        self.cloud.buckets.objects.write_rate = WriteRate(0)
        self._apis.states[PROJECT] = ProjectState(PROJECT, NUMBER, empty=True, lag=lag or Lag())
        return self.state

    @property
    def state(self) -> ProjectState:
        return self._apis.states[PROJECT]

    @property
    def buckets(self) -> list[str]:
        return [bucket.name for bucket in self.cloud.buckets.objects.buckets()]

    def put(self, name: str) -> None:
        """Write an object of somebody else into the bucket."""
        folder = self.cloud.folder / "somebody"
        folder.mkdir(exist_ok=True)
        import requests

        session = requests.Session()
        session.headers["Authorization"] = f"Bearer {self.cloud.vertex.access.token}"
        url = f"https://storage.googleapis.com/upload/storage/v1/b/{BUCKET}/o"
        with session:
            session.post(url, params={"uploadType": "media", "name": name}, data=b"data", timeout=60).raise_for_status()

    @contextmanager
    def ending_connections(self, number: int, *, answered: bool) -> Iterator[list[str]]:
        """End the connection of one write, counted from 1, before it is done or once it is done; yield its path."""
        apis, left = self._apis, number
        ended: list[str] = []

        def serve(request: Request) -> Response | None:
            nonlocal left
            is_read = request.method == "GET" or request.path.endswith(":getIamPolicy")
            left -= not is_read and request.host != "storage.googleapis.com"
            if left or is_read or ended:
                return apis(request)
            ended.append(request.path)
            if answered:
                apis(request)
            raise Reset

        door = self.cloud.vertex._http
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(door, "_first", serve)
            patch.setattr(door, "_endpoints", (serve, *door._endpoints[1:]))
            yield ended

    def direct_services(self) -> dict[str, Any]:
        """Return Google's clients of the APIs, whose requests go to the HTTP door without a socket."""
        from googleapiclient.discovery import build

        if not self._direct:
            for api, version in VERSIONS.items():
                self._direct[api] = build(
                    api, version, http=_Direct(self.cloud.vertex._http), static_discovery=True, cache_discovery=False
                )
        return self._direct


class _Direct:
    """What google-api-python-client sends requests by, in place of httplib2."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door

    def request(
        self, uri: str, method: str = "GET", body: Any = None, headers: Any = None, **_: Any
    ) -> tuple[httplib2.Response, bytes]:
        parts = urlsplit(uri)
        path, query, values = parse_target(uri)
        names = {name.lower(): str(value) for name, value in (headers or {}).items()} | {"host": parts.netloc}
        data = body.encode() if isinstance(body, str) else body or b""
        answers: list[Response] = []
        request = Request(method, path, query, names, RequestBody(io.BytesIO(data), len(data)), values=values)
        self._door.serve(request, lambda response, wire=None: answers.append(response))
        (answer,) = answers
        content = answer.body
        if isinstance(content, FileBody):
            content.file.seek(content.start)
            content = content.file.read(content.length)
            answer.close()
        lowered = {name.lower(): value for name, value in answer.headers.items()}
        return httplib2.Response({"status": str(answer.status), **lowered}), content

    def close(self) -> None:
        pass


@contextmanager
def open_cloud(folder: Path) -> Iterator[EmptyCloud]:
    import google.auth
    import google.oauth2.credentials

    state = ProjectState(PROJECT, NUMBER, empty=True)
    with (
        LocalCloud(folder, projects={PROJECT: NUMBER}, set_up=state, network="loopback") as cloud,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in cloud.environment.items():
            if name != "PYTHONPATH":
                patch.setenv(name, value)
        # With a key file google-auth asks for regions in a thread of its own, whose socket nobody can close.
        token = google.oauth2.credentials.Credentials(cloud.vertex.access.token)
        patch.setattr(google.auth, "default", lambda **_: (token, PROJECT))
        # Read from the environment when the module is imported.
        patch.setattr(httplib2, "CA_CERTS", os.environ["HTTPLIB2_CA_CERTS"])
        yield EmptyCloud(cloud)
