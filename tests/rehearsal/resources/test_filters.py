"""Filters of lists and of logs: what they take, and that nothing they do not understand is ignored."""

from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as gapic

from rehearsal.doors.errors import ServiceError
from rehearsal.resources.listing import page, select
from rehearsal.resources.log_filter import make_test

ENTRY = {
    "insertId": "1",
    "timestamp": "2026-11-22T01:00:00.500000Z",
    "severity": "ERROR",
    "resource": {"type": "ml_job", "labels": {"job_id": "7", "project_id": "p"}},
    "labels": {"ml.googleapis.com/tpu": "no"},
    "jsonPayload": {"message": "CUDA out of memory"},
}


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("", True),
        ('resource.type="ml_job"', True),
        ('resource.type="ml_job" resource.labels.job_id="8"', False),
        ('resource.labels.job_id=("7" OR "8") AND severity>=ERROR', True),
        ('resource.labels.job_id=("8" OR "9")', False),
        ('resource.labels.job_id!="8"', True),
        ("severity>=CRITICAL", False),
        ("severity<CRITICAL", True),
        ("NOT severity=ERROR", False),
        ('-resource.type="ml_job"', False),
        ('(resource.type="dataflow_step" OR resource.type="ml_job") AND severity=ERROR', True),
        ('resource.type="dataflow_step" OR resource.type="ml_job" AND severity=INFO', False),
        # OR binds more tightly than AND.
        ('resource.type="ml_job" OR resource.type="x" AND severity=INFO', False),
        ('timestamp>="2026-11-22T01:00:00Z" timestamp<"2026-11-22T02:00:00+00:00"', True),
        ('timestamp>="2026-11-22T02:00:00Z"', False),
        ('jsonPayload.message:"out of"', True),
        ('json_payload.message=~"^CUDA.*memory$"', True),
        ('json_payload.message!~"^CUDA"', False),
        ('labels."ml.googleapis.com/tpu"="no"', True),
        ("memory", True),
        ('"nothing like it"', False),
        ("textPayload:*", False),
        ("-- a remark\nseverity=ERROR", True),
    ],
)
def test_logs(text: str, taken: bool) -> None:
    assert make_test(text)(ENTRY) is taken


@pytest.mark.parametrize(
    "text", ["(severity=ERROR", "severity=", "severity>=LOUD", 'timestamp>"soon"', "a=(b OR", "AND", "a=b)", 'a="b']
)
def test_log_filters_that_are_none(text: str) -> None:
    with pytest.raises(ServiceError) as caught:
        make_test(text)(ENTRY)
    assert caught.value.code == "INVALID_ARGUMENT" and caught.value.violations[0].field == "filter"


def job(number: int, **values: Any) -> gapic.PipelineJob:
    return gapic.PipelineJob(display_name=f"job {number}", create_time={"seconds": 1000 * number}, **values)


JOBS = [
    job(3, labels={"run": "a", "kind": "x"}, state="PIPELINE_STATE_FAILED"),
    job(2, labels={"run": "b"}, state="PIPELINE_STATE_RUNNING"),
    job(1, state="PIPELINE_STATE_SUCCEEDED"),
]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('display_name="job 2"', [2]),
        ('displayName="job 2"', [2]),
        ("labels.run=a", [3]),
        ("labels.run:*", [3, 2]),
        ("labels:kind", [3]),
        ('state="PIPELINE_STATE_RUNNING"', [2]),
        ("state!=PIPELINE_STATE_RUNNING AND labels.run=a", [3]),
        ('display_name:"job"', [3, 2, 1]),
        ('display_name="*3"', [3]),
        ('create_time>"1970-01-01T00:20:00Z"', [3, 2]),
        ('create_time<="1970-01-01T00:16:40Z"', [1]),
        ('create_time="1970-01-01T00:16:40Z"', [1]),
        # As the client library documents them.
        ('display_name="job 2" OR state="PIPELINE_STATE_FAILED"', [3, 2]),
        ('NOT display_name="job 2"', [3, 1]),
        ("NOT end_time:*", [3, 2, 1]),
        ("end_time:* OR (labels.run=b AND NOT labels.kind:*)", [2]),
    ],
)
def test_lists(text: str, found: list[int]) -> None:
    assert [item.display_name for item in select(JOBS, gapic.PipelineJob, filter=text)] == [f"job {n}" for n in found]


@pytest.mark.parametrize(
    "text",
    ['display_name="a" OR', "display_name", 'create_time>"soon"', "state=a labels.k=d", "state=~a", "NOT", "(state=a"],
)
def test_list_filters_that_are_none(text: str) -> None:
    with pytest.raises(ServiceError) as caught:
        select([], gapic.PipelineJob, filter=text)
    assert caught.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("path", ["colour", "display_name.part", "runtime_config.colour", "displayname"])
def test_a_field_that_the_messages_do_not_have_is_refused_by_name(path: str) -> None:
    for arguments in ({"filter": f'{path}="x"'}, {"order_by": f"{path} desc"}):
        with pytest.raises(ServiceError, match=f"'{path}' is no field of PipelineJob: name, display_name"):
            select([], gapic.PipelineJob, **arguments)
    with pytest.raises(ServiceError, match="'colour' is no field of a log entry: logName"):
        make_test("colour=red")


def test_values_of_metadata_are_compared_as_numbers() -> None:
    runs = [gapic.Execution(display_name=str(n), metadata={"loss": n, "kind:1": "x"}) for n in (9.0, 10.0)]

    def names(text: str) -> list[str]:
        return [run.display_name for run in select(runs, gapic.Execution, filter=text)]

    assert names("metadata.loss.number_value > 9.5") == ["10.0"] == names("metadata.loss=10")
    assert names('metadata."kind:1".string_value = "x" AND metadata.loss<10') == ["9.0"]


def test_order_and_pages() -> None:
    names = [item.display_name for item in select(JOBS, gapic.PipelineJob, order_by="create_time")]
    assert names == ["job 1", "job 2", "job 3"]
    assert [item.display_name for item in select(JOBS, gapic.PipelineJob, order_by="create_time desc")] == names[::-1]
    items = [SimpleNamespace(n=n) for n in range(5)]
    first, token = page(items, 2, "")
    second, token = page(items, 2, token)
    last, end = page(items, 2, token)
    assert [item.n for item in (*first, *second, *last)] == list(range(5)) and end == ""
    with pytest.raises(ServiceError):
        page(items, 2, "not a token")
