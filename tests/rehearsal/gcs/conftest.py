"""Conformance tests of the bucket server by Google's client."""

import itertools
from collections.abc import Iterator

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from rehearsal.gcs import BucketServer

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def no_hidden_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's client asks for each bucket's metadata in a thread of its own, whenever it likes: not here."""
    monkeypatch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")


@pytest.fixture
def client(bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[storage.Client]:
    """Google's client of the server."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket_server.endpoint)
    made = storage.Client(project="p", credentials=AnonymousCredentials())
    yield made
    made.close()


@pytest.fixture
def bucket(client: storage.Client) -> storage.Bucket:
    """An empty bucket."""
    return client.create_bucket(f"conformance-{next(_numbers)}")
