"""A whole local cloud that ends with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.cloud import LocalCloud
from rehearsal.machines.machine import Scale
from tests.rehearsal.world import NUMBER, PROJECT


@pytest.fixture
def local_cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    """A cloud with an empty bucket `line`."""
    with LocalCloud(
        tmp_path / "cloud", projects={PROJECT: NUMBER}, buckets=["line"], scale=Scale(time_scale=0.1)
    ) as cloud:
        yield cloud
