"""What an upload to the registry must have."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as gapic

from contracts import storage
from contracts.promotions import decide, register_model
from contracts.registration import Registration, leave_registration
from contracts.serving import REPOSITORY
from pipeline_tasks.registry import ALIAS, LABEL, follow_production
from rehearsal.gcs import BucketServer

from .conftest import IMAGE, PARENT, Cloud, rest

FOLDER = "gs://line-bucket/triton"


@pytest.fixture
def models(tmp_path: Path, make_cloud: Callable[..., Cloud]) -> Iterator[gapic.ModelServiceClient]:
    for name in ("triton", f"a/{REPOSITORY}", f"b/{REPOSITORY}"):
        folder = tmp_path / "buckets" / "line-bucket" / name
        folder.mkdir(parents=True)
        (folder / "config.pbtxt").touch()
    with BucketServer(tmp_path / "buckets", buckets=["line-bucket"], is_open=True) as bucket:
        yield rest(make_cloud(buckets=bucket), gapic.ModelServiceClient)


def model(image: str = IMAGE, uri: str = FOLDER) -> dict[str, Any]:
    return {"display_name": "digits", "container_spec": {"image_uri": image}, "artifact_uri": uri}


@pytest.mark.parametrize("image", [IMAGE, "gcr.io/p/triton:1", "eu.gcr.io/p/triton"])
@pytest.mark.parametrize("uri", [FOLDER, f"{FOLDER}/"])
def test_a_model_with_a_container_and_files(models: gapic.ModelServiceClient, image: str, uri: str) -> None:
    assert models.upload_model(parent=PARENT, model=model(image, uri)).result(30).model_version_id == "1"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"display_name": "digits"}, "model.container_spec.image_uri"),
        (model(image=""), "model.container_spec.image_uri"),
        (model(image="nvcr.io/nvidia/tritonserver:26.08-py3"), "model.container_spec.image_uri"),
        (model(image="evil-docker.pkg.dev.example.com/p/r/i"), "model.container_spec.image_uri"),
        (model(uri="gs://line-bucket/trit"), "model.artifact_uri"),
        (model(uri="gs://nobodys-bucket/triton"), "model.artifact_uri"),
    ],
)
def test_what_is_missing_or_elsewhere(models: gapic.ModelServiceClient, wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(exceptions.BadRequest, match=field):
        models.upload_model(parent=PARENT, model=wrong)
    assert list(models.list_models(parent=PARENT)) == []


def test_the_alias_follows_the_decisions_of_a_line(
    models: gapic.ModelServiceClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, name = storage.normalise(tmp_path / "digits"), ""

    def upload(run: str) -> str:
        nonlocal name
        sent = models.upload_model(
            request={
                "parent": PARENT,
                "parent_model": name,
                "model": {**model(uri=f"gs://line-bucket/{run}/{REPOSITORY}"), "labels": {"team": "vision"}},
            }
        )
        name = sent.result(30).model
        resources = f'{{"resources": [{{"resourceUri": "https://x/v1/{sent.operation.name}"}}]}}'
        leave_registration(line, run, Registration(verdict="upload", unproven=[], upload=resources))
        return name

    def promote(run: str) -> None:
        register_model(line, run=run, export=f"gs://line-bucket/{run}", proven=True)
        decide(line, by="me", action="promoted", run=run, reasons=["by hand"])

    def holders() -> list[str]:
        return [each.version_id for each in models.list_model_versions(name=name) if ALIAS in each.version_aliases]

    def follow() -> str:
        return follow_production(line, lambda region: {"us-central1": models}[region])

    upload("a"), upload("b")
    assert follow() == "" and holders() == []
    promote("a")
    assert follow().endswith(f"@1 has the alias {ALIAS}") and holders() == ["1"]
    # Killed before the alias moved: the next command does it, and another changes nothing.
    told = models.get_model(name=f"{name}@1")
    assert dict(told.labels) == {"team": "vision", LABEL: "promoted"}
    assert told.version_description == "decision 1: promoted: by hand"
    promote("b")
    assert holders() == ["1"] and follow() == follow() and holders() == ["2"]
    # Another command decides and moves the alias just before this one's request arrives.
    merge = models.merge_version_aliases

    def late(**request: Any) -> Any:
        monkeypatch.setattr(models, "merge_version_aliases", merge)
        promote("b")
        follow()
        return merge(**request)

    promote("a")
    monkeypatch.setattr(models, "merge_version_aliases", late)
    assert follow().endswith(f"@2 has the alias {ALIAS}") and holders() == ["2"]
    # What was never uploaded is in production: no version claims to be.
    promote("c")
    assert "run c was not uploaded" in follow() and holders() == []
