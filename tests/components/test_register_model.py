"""Which exports can be served; upload, decision and alias are in tests/pipelines/vertex/test_register.py."""

import json
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from tests.components.tasks import LINE, make_config, perform, publish, read_artifacts, root_of
from tests.export_fields import L4, publish_export

URI = f"{LINE}/export/0123456789abcdef"


@pytest.mark.usefixtures("bucket_server")
def test_an_export_needs_an_image_that_loads_it(capfd: pytest.CaptureFixture[str]) -> None:
    document = publish_export(URI)
    assert document.engine is not None
    engine = document.engine.model_copy(update={"builder": "tensorrt 11.9.0.1"})
    storage.replace(storage.join(URI, MANIFEST_NAME), document.model_copy(update={"engine": engine}).sealed().to_json())
    assert perform("register", make_config(), {"served": URI, "shards": publish("shard")}) == 2
    message = capfd.readouterr().err
    assert "no known Triton loads this" in message and "set cloud.images.serving" in message
    assert not storage.exists(f"{root_of('register')}/executor_output.json")


@pytest.mark.parametrize(
    ("changes", "edits", "words"),
    [
        ({}, {"opset": 21}, "the manifest was changed after it was written"),
        ({"runtime": "tensorrt_rtx"}, {}, "has no Triton repository (export.runtime: tensorrt_rtx)"),
        ({"device": ""}, {}, ""),
    ],
)
@pytest.mark.usefixtures("bucket_server")
def test_a_changed_export_is_refused_whatever_is_allowed_and_an_unproven_one_is_not_uploaded(
    changes: dict[str, Any], edits: dict[str, Any], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    document, manifest = publish_export(URI, device=changes.get("device", L4)), storage.join(URI, MANIFEST_NAME)
    if runtime := changes.get("runtime"):
        document = document.model_copy(update={"runtime": runtime}).sealed()
    storage.replace(manifest, json.dumps(json.loads(document.to_json()) | edits).encode())
    config = make_config(export={"allow_unproven": bool(words)})
    code = perform("register", config, {"served": URI, "shards": publish("shard")})
    if words:
        assert code == 2 and words in capfd.readouterr().err
        assert not storage.exists(f"{root_of('register')}/executor_output.json")
    else:
        registered = read_artifacts("register")["registered"]["metadata"]
        assert (code, registered["verdict"], registered["proof"]) == (0, "refused", "unproven: not run on a GPU")
        assert "resourceName" not in registered
