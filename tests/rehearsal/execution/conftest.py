"""Pipelines compiled by kfp, executed on a bucket server of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.process import refuse_import
from rehearsal.gcs import BucketServer
from tests.rehearsal.execution.world import Pipelines

# For test_patches, which imports kfp.local; this repository has a folder docker.
refuse_import("docker")


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    with BucketServer(tmp_path_factory.mktemp("buckets"), buckets=["line"]) as server:
        yield server


@pytest.fixture
def bucket_environment(bucket: BucketServer, monkeypatch: pytest.MonkeyPatch) -> BucketServer:
    """This process's storage is the bucket server too."""
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    return bucket


@pytest.fixture
def pipelines(tmp_path: Path, bucket: BucketServer) -> Iterator[Pipelines]:
    made = Pipelines(tmp_path, bucket)
    yield made
    made.runs.close()
