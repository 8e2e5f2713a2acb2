import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts import storage
from contracts.config.load import load_config
from contracts.errors import ConfigError
from pipelines.local_data import find_local_data, upload
from pipelines.place import make_absolute
from pipelines.submit import (
    Ready,
    describe_job,
    find_job,
    make_job,
    state_of,
    submit,
    to_dict,
)
from rehearsal.errors import ServiceError
from rehearsal.gcs import BucketServer
from rehearsal.vertex import pipeline_jobs
from tests.conftest import write_pictures
from tests.pipelines.vertex.conftest import PROJECT, QUOTA, REGION, Cloud, MakeConfig, make_ready, wait_for

DOCUMENT = "gs://bucket-1/runs/tiny/configs/0123.json"


@pytest.fixture
def ready(make_config: MakeConfig, tiny_spec: dict[str, Any]) -> Ready:
    account = f"runner@{PROJECT}.iam.gserviceaccount.com"
    return make_ready(make_config(cloud={"labels": {"team": "vision"}, "service_account": account}), tiny_spec)


def test_what_is_printed_is_what_the_service_receives(cloud: Cloud, ready: Ready) -> None:
    printed = json.loads(json.dumps(describe_job(make_job(ready, "printed-1", offline=True))))
    made = submit(ready, "printed-1", lambda _: None)
    wait_for(lambda: "succeeded" in (made.state.name.lower(), state_of(made)))
    received = to_dict(made.gca_resource)
    assert made.gca_resource.preflight_validations
    for name, value in printed["pipelineJob"].items():
        if name == "labels":
            assert value.items() <= received["labels"].items()
            assert value == {"team": "vision", "shardline-line": "tiny"}
        else:
            assert received[name] == value, name
    assert received["runtimeConfig"]["failurePolicy"] == "PIPELINE_FAILURE_POLICY_FAIL_SLOW"
    assert received["pipelineSpec"]["root"]["dag"]["tasks"]["begin"]["cachingOptions"] == {}
    cached, not_cached = (
        describe_job(make_job(replace(ready, cache=cache), offline=True))["pipelineJob"]["pipelineSpec"]["root"]["dag"]
        for cache in (True, False)
    )
    assert cached["tasks"]["begin-2"]["cachingOptions"] == {"enableCache": True}
    assert not_cached["tasks"]["begin-2"]["cachingOptions"] in ({}, {"enableCache": False})
    assert storage.read_bytes(DOCUMENT) == b"{}\n"


def test_the_same_run_id_twice_is_the_same_job_and_no_other(cloud: Cloud, ready: Ready) -> None:
    messages: list[str] = []
    submit(ready, "twice-1", messages.append)
    before = len(cloud.pipelines.started)
    wait_for(lambda: submit(ready, "twice-1", messages.append).gca_resource.state.name == "PIPELINE_STATE_SUCCEEDED")
    assert messages[0] == "run twice-1 submitted" and messages[-2] == "run twice-1 exists: succeeded"
    assert "/pipelines/runs/twice-1?project=" in messages[1]
    compiled = ready.compiled
    for changed, expected in (
        ({"parameters": {**compiled.parameters, "strategy": "STANDARD"}}, "strategy is SPOT there, STANDARD here"),
        ({"spec": {**compiled.spec, "defaultPipelineRoot": "gs://bucket-1/other"}}, "the pipeline is"),
    ):
        with pytest.raises(ConfigError, match=expected):
            submit(replace(ready, compiled=replace(compiled, **changed)), "twice-1", messages.append)
    assert len(cloud.pipelines.started) == before


def test_what_the_services_own_checks_refuse_is_a_users_error(
    cloud: Cloud, ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(job: Any) -> None:
        # In the form that the SDK parses.
        detail = f'CreatePipelineJobApiErrorDetail"\n message={QUOTA}, cause=null\n'
        raise ServiceError("FAILED_PRECONDITION", f'Preflight validations failed: "{detail}')

    monkeypatch.setattr(pipeline_jobs, "check_pipeline_job", refuse)
    with pytest.raises(ConfigError, match="custom_model_training_nvidia_l4_gpus") as caught:
        submit(ready, "checked-1", lambda _: None)
    assert "custom_model_training_nvidia_l4_gpus at https://console" in caught.value.todo
    assert find_job("checked-1", PROJECT, REGION) is None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with data and a configuration in it."""
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "raw", per_class=4)
    (tmp_path / "raw" / ".DS_Store").write_text("hidden")
    values = {"run": {"name": "line", "root": "gs://bucket-1/runs"}, "sharding": {"source": "raw"}}
    (tmp_path / "line.yaml").write_text(yaml.safe_dump(values))
    return tmp_path


def find(folder: Path, *overrides: str) -> Any:
    return find_local_data(make_absolute(load_config(folder / "line.yaml", overrides)), lambda _: None)


def test_an_upload_that_was_killed_is_gone_on_with(bucket_server: BucketServer, folder: Path) -> None:
    data, messages = find(folder), list[str]()
    assert len(data.files) == 12
    names = sorted(data.files)
    # Some files are there, one under its name but of other bytes, as a file that was written to meanwhile.
    for name in names[:5]:
        storage.publish(storage.join(data.folder, name), (data.root / name).read_bytes())
    storage.publish(storage.join(data.folder, names[5]), b"other")
    with pytest.raises(ConfigError, match="has other content"):
        upload(data, messages.append)
    storage.delete(storage.join(data.folder, names[5]))
    for _ in range(2):
        upload(data, messages.append)
    assert len(messages) == 2 and messages[-1].endswith(f" of 12 files to {data.folder}")
    there = {one.name: (one.size, one.crc32c) for one in storage.list_objects(data.folder)}
    assert there == data.files
    # Data that changed goes elsewhere.
    (folder / "raw" / "red" / "000.png").write_bytes((folder / "raw" / "blue" / "000.png").read_bytes())
    assert find(folder).folder != data.folder


def test_a_file_that_changes_meanwhile_leaves_nothing_wrong(bucket_server: BucketServer, folder: Path) -> None:
    data = find(folder)
    name = min(data.files)
    content = (data.root / name).read_bytes()
    (data.root / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ConfigError, match=f"{name} was changed while it was uploaded"):
        upload(data, lambda _: None)
    assert not storage.exists(storage.join(data.folder, name))


def test_of_a_table_the_files_that_it_names_are_taken_and_no_others(folder: Path) -> None:
    (folder / "letter.txt").write_text("private")
    (folder / "photos.csv").write_text("uri,label\nraw/red/000.png,red\nraw/blue/001.png,blue\n../elsewhere.png,blue\n")
    found = find(folder, "sharding.source=photos.csv")
    assert sorted(found.files) == ["photos.csv", "raw/blue/001.png", "raw/red/000.png"]
    assert found.source.endswith("/photos.csv")
    (folder / "rows.csv").write_text("review,label\ngood,a\n")
    fields = "sharding.fields={text: {column: review, kind: text}, label: {column: label, kind: class}}"
    assert list(find(folder, "sharding.source=rows.csv", fields).files) == ["rows.csv"]
    for nothing in ("gs://bucket-1/raw", "absent", "line.yaml"):
        assert find(folder, f"sharding.source={nothing}") is None
