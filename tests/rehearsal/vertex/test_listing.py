"""Lists: filters of resources and of logs, order, pages; nothing that is not understood is ignored."""

from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as gapic
from google.cloud.logging_v2 import types as logging_types

from rehearsal.errors import ServiceError
from rehearsal.vertex.listing import page, parse_filter, select

ENTRY = {
    "insertId": "1",
    "timestamp": "2026-11-22T01:00:00.500000Z",
    "severity": "ERROR",
    "resource": {"type": "ml_job", "labels": {"job_id": "7"}},
    "jsonPayload": {"message": "CUDA out of memory"},
}
FIELDS = [field.json_name for field in logging_types.LogEntry.pb(logging_types.LogEntry()).DESCRIPTOR.fields]


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("", True),
        ('resource.type="ml_job"', True),
        ('resource.labels.job_id=("7" OR "8") AND severity>=ERROR', True),
        ('resource.labels.job_id=("8" OR "9")', False),
        ('resource.labels.job_id!="8"', True),
        ("severity>=CRITICAL", False),
        ("NOT severity=ERROR", False),
        ('(resource.type="dataflow_step" OR resource.type="ml_job") AND severity=ERROR', True),
        # OR binds more tightly than AND.
        ('resource.type="ml_job" OR resource.type="x" AND severity=INFO', False),
        ('timestamp>="2026-11-22T01:00:00Z" AND timestamp<"2026-11-22T02:00:00+00:00"', True),
        ('timestamp>="2026-11-22T02:00:00Z"', False),
        ('json_payload.message:"out of"', True),
        ("textPayload:*", False),
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
        ('display_name="job 2"', [2]),
        ('displayName="job 2"', [2]),
        ("labels.run=a", [3]),
        ("labels.run:*", [3, 2]),
        ("labels:kind", [3]),
        ("state!=PIPELINE_STATE_RUNNING AND labels.run=a", [3]),
        ('display_name:"job"', [3, 2, 1]),
        ('create_time>"1970-01-01T00:20:00Z"', [3, 2]),
        ('create_time<="1970-01-01T00:16:40Z"', [1]),
        ('display_name="job 2" OR state="PIPELINE_STATE_FAILED"', [3, 2]),
        ("end_time:* OR (labels.run=b AND NOT labels.kind:*)", [2]),
    ],
)
def test_lists(text: str, expected: list[int]) -> None:
    assert [item.display_name for item in select(JOBS, gapic.PipelineJob, text)] == [f"job {n}" for n in expected]


@pytest.mark.parametrize(
    "text",
    [
        'display_name="a" OR',
        "display_name",
        'create_time>"soon"',
        "state=a labels.k=d",
        "state=~a",
        "NOT",
        "(state=a",
        "state=a)",
        'state="a',
        "colour=red",
        'in_context("a")',
    ],
)
def test_filters_that_are_none(text: str) -> None:
    with pytest.raises(ServiceError) as caught:
        select(JOBS, gapic.PipelineJob, text)
    assert caught.value.code == "INVALID_ARGUMENT" and caught.value.violations[0].field == "filter"


def test_what_is_compared_or_sorted_by_is_a_field() -> None:
    with pytest.raises(ServiceError, match="displayName"):
        select(JOBS, gapic.PipelineJob, "colour=red")
    with pytest.raises(ServiceError, match="create_time desc"):
        select(JOBS, gapic.PipelineJob, "", "display_name")
    with pytest.raises(ServiceError, match="'LOUD' is no severity"):
        parse_filter("severity>=LOUD", FIELDS)


def test_order() -> None:
    names = [item.display_name for item in select(JOBS, gapic.PipelineJob, "", "create_time")]
    assert names == ["job 1", "job 2", "job 3"]
    assert [item.display_name for item in select(JOBS, gapic.PipelineJob, "", "create_time desc")] == names[::-1]


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
