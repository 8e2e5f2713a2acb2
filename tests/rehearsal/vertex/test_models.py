"""What an upload to the registry must have."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as gapic

from contracts.serving import REPOSITORY
from rehearsal.gcs import BucketServer
from rehearsal.vertex import models as service

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


@pytest.mark.parametrize(("image", "uri"), [(IMAGE, FOLDER), ("eu.gcr.io/p/triton", f"{FOLDER}/")])
def test_a_model_with_a_container_and_files(models: gapic.ModelServiceClient, image: str, uri: str) -> None:
    assert models.upload_model(parent=PARENT, model=model(image, uri)).result(30).model_version_id == "1"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"display_name": "digits"}, "model.container_spec.image_uri"),
        (model(image=""), "model.container_spec.image_uri"),
        (model(uri="gs://line-bucket/trit"), "model.artifact_uri"),
        (model(uri="gs://nobodys-bucket/triton"), "model.artifact_uri"),
    ],
)
def test_what_is_missing_or_elsewhere(models: gapic.ModelServiceClient, wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(exceptions.BadRequest, match=field):
        models.upload_model(parent=PARENT, model=wrong)
    assert list(models.list_models(parent=PARENT)) == []


def test_versions_that_are_uploaded_at_once(models: gapic.ModelServiceClient, monkeypatch: pytest.MonkeyPatch) -> None:
    first = models.upload_model(parent=PARENT, model=model()).result(30)
    find = service._versions

    def find_slowly(*arguments: Any) -> list[Any]:
        versions = find(*arguments)
        time.sleep(0.05)
        return versions

    monkeypatch.setattr(service, "_versions", find_slowly)
    request = {"parent": PARENT, "model": model(), "parent_model": first.model}
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(models.upload_model, request) for _ in range(4)]
        numbers = [call.result().result(30).model_version_id for call in calls]
    assert sorted(numbers) == ["2", "3", "4", "5"]
