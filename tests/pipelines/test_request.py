from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipelines.submission.request import find_differences, make_run_id

JOB: dict[str, Any] = {
    "pipelineSpec": {"root": {"dag": {"tasks": {"a": {"cachingOptions": {}}}}}, "n": 1},
    "runtimeConfig": {"gcsOutputDirectory": "gs://b/r", "parameterValues": {"region": "us-east4", "sizes": [1, 2]}},
    "labels": {"team": "vision"},
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**JOB, **changes}


def test_a_double_is_the_whole_number_that_it_was() -> None:
    spec = {**JOB["pipelineSpec"], "n": 1.0}
    values = {"region": "us-east4", "sizes": [1.0, 2.0]}
    found = changed(pipelineSpec=spec, runtimeConfig={**JOB["runtimeConfig"], "parameterValues": values})
    assert find_differences(JOB, found) == []


def test_labels_of_the_service_are_its_own() -> None:
    assert find_differences(JOB, changed(labels={"team": "vision", "vertex-ai-billing": "1"})) == []
    assert [d.what for d in find_differences(JOB, changed(labels={"team": "other"}))] == ["label team"]
    assert [d.what for d in find_differences(JOB, changed(labels={}))] == ["label team"]


def test_an_account_that_the_service_filled_in_counts_as_unset() -> None:
    filled_in = changed(serviceAccount="123456789012-compute@developer.gserviceaccount.com")
    assert find_differences(JOB, filled_in) == [] == find_differences(filled_in, JOB)
    other = changed(serviceAccount="runner@p.iam.gserviceaccount.com")
    assert [d.what for d in find_differences(JOB, other)] == ["service account"]
    assert [d.what for d in find_differences(other, filled_in)] == ["service account"]


def test_each_thing_that_decides_what_runs_is_compared() -> None:
    runtime = JOB["runtimeConfig"]
    found = changed(
        pipelineSpec={},
        serviceAccount="a@b",
        encryptionSpec={"kmsKeyName": "k"},
        runtimeConfig={"gcsOutputDirectory": "gs://b/s", "failurePolicy": "X", "parameterValues": {"region": "here"}},
    )
    assert {difference.what for difference in find_differences(JOB, found)} == {
        "pipeline spec (sha256)",
        "pipeline root",
        "failure policy",
        "service account",
        "key",
        "parameter region",
        "parameter sizes",
    }
    assert str(find_differences(JOB, changed(runtimeConfig={**runtime, "failurePolicy": "X"}))[0]) == (
        "failure policy: X there, nothing here"
    )


@given(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True))
def test_a_made_run_id_is_taken_for_every_line(name: str) -> None:
    import re

    assert re.fullmatch(r"[a-z][-a-z0-9]{0,127}", make_run_id(name))
