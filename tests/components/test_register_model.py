"""Which exports are uploaded; the upload and the alias are in tests/pipelines/vertex/test_register.py."""

import json
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from tests.components.tasks import LINE, make_config, perform, publish, read_artifacts, read_output, root_of
from tests.export_fields import L4, publish_export

URI = f"{LINE}/export/0123456789abcdef"
ALLOWING = make_config(export={"allow_unproven": True})
pytestmark = pytest.mark.usefixtures("bucket_server")


def publish_inputs(device: str = "", **changes: Any) -> dict[str, str]:
    """Publish an export of a TensorRT of which no Triton is known, which an upload needs first of all."""
    document = publish_export(URI, device=device)
    assert document.engine is not None
    engine = document.engine.model_copy(update={"builder": "tensorrt 11.9.0.1"})
    changed = document.model_copy(update={"engine": engine, **changes}).sealed()
    storage.replace(storage.join(URI, MANIFEST_NAME), changed.to_json())
    return {"served": URI, "shards": publish("shard")}


def test_an_unproven_export_is_not_uploaded() -> None:
    assert perform("register", make_config(), publish_inputs()) == 0
    registered = read_artifacts("register")["registered"]
    decision = registered["metadata"]
    assert (registered["uri"], decision["verdict"], decision["proof"]) == (URI, "refused", "unproven: not run on a GPU")
    assert "resourceName" not in decision and "to do: export with" in decision["reason"]
    assert read_output("register", "summary").startswith("Not uploaded.\n\n**refused**: unproven: not run on a GPU")


@pytest.mark.parametrize("is_proven", [False, True])
def test_a_proven_or_allowed_export_needs_an_image_that_loads_it(
    is_proven: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    export = publish_inputs(L4 if is_proven else "")
    assert perform("register", make_config() if is_proven else ALLOWING, export) == 2
    message = capfd.readouterr().err
    assert "no known Triton loads this" in message and "set cloud.images.serving" in message
    assert not storage.exists(f"{root_of('register')}/executor_output.json")


def test_an_export_without_a_triton_repository_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert perform("register", ALLOWING, publish_inputs(runtime="tensorrt_rtx")) == 2
    assert "has no Triton repository (export.runtime: tensorrt_rtx)" in capfd.readouterr().err


def test_a_changed_export_is_an_error_whatever_is_allowed(capfd: pytest.CaptureFixture[str]) -> None:
    export = publish_inputs()
    uri = storage.join(URI, MANIFEST_NAME)
    storage.replace(uri, json.dumps(json.loads(storage.read_bytes(uri)) | {"opset": 21}).encode())
    assert perform("register", ALLOWING, export) == 2
    assert "the manifest was changed after it was written" in capfd.readouterr().err
    assert not storage.exists(f"{root_of('register')}/executor_output.json")
