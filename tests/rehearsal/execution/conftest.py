"""Pipelines compiled by kfp, executed on a bucket server of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.gcs import BucketServer
from tests.rehearsal.execution.world import Pipelines


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    with BucketServer(tmp_path_factory.mktemp("buckets"), buckets=["line"], is_open=True) as server:
        yield server


@pytest.fixture
def bucket_environment(bucket: BucketServer, monkeypatch: pytest.MonkeyPatch) -> BucketServer:
    """This process's storage is the bucket server too."""
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    return bucket


@pytest.fixture
def make_pipelines(tmp_path: Path, bucket: BucketServer) -> Iterator[Callable[..., Pipelines]]:
    """Make executors of pipelines; they end with the test."""
    made: list[Pipelines] = []

    def make(**options: Any) -> Pipelines:
        made.append(Pipelines(tmp_path, bucket, **options))
        return made[-1]

    yield make
    for one in made:
        one.runs.close()


@pytest.fixture
def pipelines(make_pipelines: Callable[..., Pipelines]) -> Pipelines:
    return make_pipelines()
