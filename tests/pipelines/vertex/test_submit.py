import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.canonical import canonical_hash
from contracts.errors import ConfigError, ShardlineError, StorageError
from pipelines.google import pipeline_client
from pipelines.submission.submit import Prepared, find_job, prepare, publish, submit, to_dict
from tests.pipelines.vertex.conftest import PROJECT, REGION, Cloud, MakeConfig, compiled_line

DOCUMENT = "gs://bucket-1/runs/tiny/configs/0123.json"


@pytest.fixture
def prepared(make_config: MakeConfig, tiny_spec: dict[str, Any]) -> Prepared:
    config = make_config(cloud={"labels": {"team": "vision"}, "service_account": "runner@example.com"})
    return prepare(config, compiled_line(config, tiny_spec))


def received(cloud: Cloud, prepared: Prepared) -> Any:
    found = find_job(pipeline_client(REGION), prepared_name(prepared))
    assert found is not None
    return found


def prepared_name(prepared: Prepared) -> Any:
    from pipelines.runs.name import RunName

    return RunName(PROJECT, REGION, prepared.run_id)


def test_what_is_printed_is_what_the_service_receives(cloud: Cloud, prepared: Prepared) -> None:
    submission = prepared.submission()
    printed = json.loads(json.dumps(submission.to_json()))
    made = submit(prepared, submission)
    assert not made.existed and made.warning == ""
    job = to_dict(received(cloud, prepared))
    assert canonical_hash(job["pipelineSpec"]) == printed["pipelineSpecSha256"]
    for name, value in printed["pipelineJob"].items():
        if name == "labels":
            assert value.items() <= job["labels"].items()
        else:
            assert canonical_hash(job[name]) == canonical_hash(value), name
    assert job["runtimeConfig"]["failurePolicy"] == "PIPELINE_FAILURE_POLICY_FAIL_SLOW"
    assert storage.read_bytes(DOCUMENT) == b"{}\n"


def test_the_caching_of_each_task_is_kept(cloud: Cloud, prepared: Prepared) -> None:
    submit(prepared, prepared.submission())
    task = to_dict(received(cloud, prepared))["pipelineSpec"]["root"]["dag"]["tasks"]["begin"]
    assert task["cachingOptions"] == {}


def test_the_same_run_id_twice_is_the_same_job(cloud: Cloud, prepared: Prepared) -> None:
    submission = prepared.submission()
    submit(prepared, submission)
    before = len(cloud.pipelines.started)
    again = submit(prepared, submission)
    assert again.existed
    assert len(cloud.pipelines.started) == before


def test_the_same_run_id_for_another_job_is_refused(cloud: Cloud, prepared: Prepared) -> None:
    submit(prepared, prepared.submission())
    compiled = prepared.compiled
    for changed, said in (
        ({"parameters": {**compiled.parameters, "strategy": "STANDARD"}}, "parameter strategy: SPOT there, STANDARD"),
        ({"spec": {**compiled.spec, "defaultPipelineRoot": "gs://bucket-1/other"}}, "pipeline spec"),
    ):
        other = replace(prepared, compiled=replace(compiled, **changed))
        with pytest.raises(ConfigError, match=said):
            submit(other, other.submission())


def test_a_submission_that_ended_before_its_job_leaves_nothing_half_committed(cloud: Cloud, prepared: Prepared) -> None:
    publish(prepared.compiled.documents)
    assert find_job(pipeline_client(REGION), prepared_name(prepared)) is None
    assert not submit(prepared, prepared.submission()).existed


def test_another_content_under_a_documents_name_is_a_fault(cloud: Cloud, prepared: Prepared) -> None:
    storage.publish(DOCUMENT, b"other")
    with pytest.raises(ShardlineError, match="something else"):
        submit(prepared, prepared.submission())
    assert find_job(pipeline_client(REGION), prepared_name(prepared)) is None


def test_a_missing_bucket_is_found_before_the_job(
    cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]
) -> None:
    config = make_config(run={"root": "gs://bucket-gone/runs"})
    prepared = prepare(config, compiled_line(config, tiny_spec))
    with pytest.raises(StorageError, match="no such bucket"):
        submit(prepared, prepared.submission())
    assert find_job(pipeline_client(REGION), prepared_name(prepared)) is None


def test_an_unknown_project_is_named(cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]) -> None:
    config = make_config(cloud={"project": "nobody"})
    prepared = prepare(config, compiled_line(config, tiny_spec))
    with pytest.raises(ConfigError, match=r"projects/nobody/"):
        submit(prepared, prepared.submission())


def test_without_credentials_it_says_how_to_get_them(
    cloud: Cloud, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="no credentials"):
        submit(prepared, prepared.submission())


@pytest.mark.parametrize("run_id", ["Tiny", "1st", "a_b", "a" * 129])
def test_a_run_id_that_vertex_does_not_take(make_config: MakeConfig, tiny_spec: dict[str, Any], run_id: str) -> None:
    config = make_config()
    with pytest.raises(ConfigError, match="--run-id"):
        prepare(config, compiled_line(config, tiny_spec), run_id=run_id)


def test_made_run_ids_are_taken_and_differ(make_config: MakeConfig, tiny_spec: dict[str, Any]) -> None:
    config = make_config(run={"name": "1st_line"})
    made = {prepare(config, compiled_line(config, tiny_spec)).run_id for _ in range(3)}
    assert len(made) > 1 and all(run_id.startswith("line-1st-line-") for run_id in made)
