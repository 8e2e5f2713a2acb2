"""A local cloud with a project in it, and this process led to it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rehearsal.cloud import LocalCloud
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
def open_cloud(folder: Path) -> Iterator[EmptyCloud]:
    import google.auth
    import google.oauth2.credentials
    import httplib2

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
