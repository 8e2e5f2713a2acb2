"""Lists: filters of resources and of logs, order, pages; nothing that is not understood is ignored."""

from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as gapic
from google.cloud.logging_v2 import types as logging_types

from rehearsal.errors import ServiceError
from rehearsal.vertex.listing import page, parse_filter, select

ENTRY = {
    "timestamp": "2026-11-22T01:00:00.500000Z",
    "resource": {"type": "ml_job", "labels": {"job_id": "7"}},
    "jsonPayload": {"message": "CUDA out of memory"},
}
FIELDS = [field.json_name for field in logging_types.LogEntry.pb(logging_types.LogEntry()).DESCRIPTOR.fields]


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("", True),
        ('resource.labels.job_id=("7" OR "8") AND timestamp>="2026-11-22T01:00:00Z"', True),
        ('resource.labels.job_id=("8" OR "9")', False),
        ('(resource.type="dataflow_step" OR resource.type="ml_job") AND resource.labels.job_id="7"', True),
        # OR binds more tightly than AND.
        ('resource.type="ml_job" OR resource.type="x" AND resource.type="y"', False),
        ('json_payload.message:"out of"', True),
    ],
)
def test_logs(text: str, taken: bool) -> None:
    assert parse_filter(text, FIELDS)(ENTRY) is taken


def job(number: int, **values: Any) -> gapic.PipelineJob:
    return gapic.PipelineJob(display_name=f"job {number}", create_time={"seconds": 1000 * number}, **values)


JOBS = [
    job(3, labels={"run": "a", "kind": "x"}, state="PIPELINE_STATE_FAILED"),
    job(2, labels={"run": "b"}, state="PIPELINE_STATE_RUNNING"),
    job(1, state="PIPELINE_STATE_SUCCEEDED"),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('displayName="job 2"', [2]),
        ("labels.run=a", [3]),
        ("labels:kind", [3]),
        ('create_time>="1970-01-01T00:33:20Z"', [3, 2]),
        ('end_time>="1970-01-01T00:33:20Z" OR (labels.run=b AND state=PIPELINE_STATE_RUNNING)', [2]),
    ],
)
def test_lists(text: str, expected: list[int]) -> None:
    assert [item.display_name for item in select(JOBS, gapic.PipelineJob, text)] == [f"job {n}" for n in expected]
    in_order = select(JOBS, gapic.PipelineJob, text, "create_time")
    assert [item.display_name for item in in_order] == [f"job {n}" for n in reversed(expected)]


def test_an_item_that_is_created_between_pages_moves_none() -> None:
    """Broken, tokens are offsets: item 2 is listed twice, since the newest comes first."""
    items = [SimpleNamespace(name=str(number)) for number in (4, 3, 2, 1, 0)]

    def list_page(token: str) -> tuple[list[str], str]:
        chosen, token = page(items, 2, token, lambda item: str(item.name))
        return [item.name for item in chosen], token

    first, token = list_page("")
    items.insert(0, SimpleNamespace(name="5"))
    second, token = list_page(token)
    last, end = list_page(token)
    assert (first, second, last, end) == (["4", "3"], ["2", "1"], ["0"], "")
    with pytest.raises(ServiceError, match="names no item"):
        page(items, 2, "not a token", str)
