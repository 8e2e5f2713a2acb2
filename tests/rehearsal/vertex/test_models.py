"""What an upload to the registry must have; versions and aliases: tests/pipelines/vertex/test_register.py."""

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as gapic

from .conftest import IMAGE, PARENT, Cloud, rest


@pytest.fixture
def models(cloud: Cloud) -> gapic.ModelServiceClient:
    cloud.server.state.buckets.objects.write("bucket", "triton/config.pbtxt", [b""])
    client: gapic.ModelServiceClient = rest(cloud, gapic.ModelServiceClient)
    return client


def model(image: str = IMAGE, uri: str = "gs://bucket/triton") -> dict[str, Any]:
    return {"display_name": "digits", "container_spec": {"image_uri": image}, "artifact_uri": uri}


def test_what_is_missing_or_elsewhere(models: gapic.ModelServiceClient) -> None:
    for wrong, field in (
        (model(image=""), "model.container_spec.image_uri"),
        (model(uri="gs://bucket/trit"), "model.artifact_uri"),
        (model(uri="gs://nobodys-bucket/triton"), "model.artifact_uri"),
    ):
        with pytest.raises(exceptions.BadRequest, match=field):
            models.upload_model(parent=PARENT, model=wrong)
    assert list(models.list_models(parent=PARENT)) == []
