"""Which exports are uploaded; the upload and the alias are in tests/pipelines/vertex/test_register.py."""

import json
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, Gate
from tests.components.tasks import LINE, make_config, perform, publish, read_artifacts, read_output, root_of
from tests.contracts.test_proof import make_engine, make_served

URI = f"{LINE}/export/0123456789abcdef"
ALLOWING = make_config(export={"allow_unproven": True})
# No Triton is known that loads it: the first thing that is asked of an export that may be uploaded.
UNKNOWN = make_engine("sm80").model_copy(update={"builder": "tensorrt 11.9.0.1"})
pytestmark = pytest.mark.usefixtures("bucket_server")


def publish_export(**changes: Any) -> dict[str, str]:
    document = make_served(URI, "sm80", **{"engines": [UNKNOWN], **changes})
    storage.replace(storage.join(URI, MANIFEST_NAME), document.to_json())
    return {"served": URI, "shards": publish("shard")}


def test_what_is_unproven_is_not_uploaded_and_says_so() -> None:
    assert perform("register", make_config(), publish_export()) == 0
    registered = read_artifacts("register")["registered"]
    found = registered["metadata"]
    assert (registered["uri"], found["verdict"], found["unproven"]) == (URI, "refused", "sm80")
    assert "resourceName" not in found and "to do: export with" in found["reason"]
    assert read_output("register", "summary").startswith("Not uploaded.\n\n**refused**: unproven: sm80")


@pytest.mark.parametrize("is_proven", [False, True])
def test_what_is_proven_or_allowed_needs_an_image_that_loads_it(
    is_proven: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    passed = Gate(name="engine sm80", precision="fp32", status="passed", ran="a GPU")
    export = publish_export(**({"gates": [passed], "verdict": "proven"} if is_proven else {}))
    assert perform("register", make_config() if is_proven else ALLOWING, export) == 2
    said = capfd.readouterr().err
    assert "no known Triton loads this" in said and "set cloud.images.serving" in said
    assert not storage.exists(f"{root_of('register')}/executor_output.json")


def test_a_changed_export_is_an_error_whatever_is_allowed(capfd: pytest.CaptureFixture[str]) -> None:
    export = publish_export()
    uri = storage.join(URI, MANIFEST_NAME)
    storage.replace(uri, json.dumps(json.loads(storage.read_bytes(uri)) | {"verdict": "proven"}).encode())
    assert perform("register", ALLOWING, export) == 2
    assert "the manifest was changed after it was written" in capfd.readouterr().err
    assert not storage.exists(f"{root_of('register')}/executor_output.json")
