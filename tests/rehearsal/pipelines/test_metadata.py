"""Metadata of artifacts that Vertex AI does not take, and a name that it has given."""

from __future__ import annotations

import pytest

from rehearsal.cloud import LocalCloud
from rehearsal.pipelines import tasks
from tests.rehearsal import graphs
from tests.rehearsal.world import detail, run


@pytest.mark.parametrize(
    ("metadata", "name", "expected"),
    [
        ('{"accuracy": NaN}', "", "NaN is no JSON number"),
        ('{"text": "more than the limit"}', "", "the metadata of artifact metrics has more than 20 characters"),
        ("{}", "mine", "artifact metrics was given the name 'mine' by its task"),
    ],
)
def test_a_task_whose_output_cannot_be_kept_fails(
    local_cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch, metadata: str, name: str, expected: str
) -> None:
    monkeypatch.setattr(tasks, "METADATA_LIMIT", 20)
    job = run(local_cloud, graphs.told, metadata=metadata, name=name)
    assert expected in detail(job, "tell").error.message
