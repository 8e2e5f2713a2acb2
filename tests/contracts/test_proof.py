"""Which exports are proven: those whose served file ran on a GPU, by the manifest or by a verification since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import ExportManifest, Gate, Verification
from contracts.errors import ConfigError
from contracts.proof import UNPROVEN, read_verification, require_proven, verdict, verification_uri
from contracts.stage import find_output_damage
from tests.export_fields import publish_export

GRAPH, ENGINE, OTHER = "model.fp32.onnx", "triton/classifier/1/model.plan", "triton/classifier/config.pbtxt"
GPU = "NVIDIA L4 (sm89)"


def parity(**changes: Any) -> Gate:
    values = {"name": "parity", "precision": "fp32", "file": ENGINE, "status": "passed", "ran": "tensorrt 11.1"}
    return Gate(**{**values, "device": GPU, **changes})


def write_export(folder: Path, **changes: Any) -> ExportManifest:
    """Write an export that no gate ran for, unless `gates` says more; return its manifest."""
    return publish_export(storage.normalise(folder), **{"gates": [], **changes})


@pytest.mark.parametrize(
    ("gates", "words"),
    [
        ([parity()], f"proven on {GPU}"),
        ([], UNPROVEN),
        ([parity(device="", ran="onnxruntime 1.31")], UNPROVEN),
        ([parity(file=GRAPH)], UNPROVEN),
        ([parity(), parity(name="metric", status="failed")], UNPROVEN),
    ],
    ids=["ran", "nothing ran", "on the CPU", "another file", "metric failed"],
)
def test_an_export_is_proven_where_its_served_file_ran(tmp_path: Path, gates: list[Gate], words: str) -> None:
    document, uri = write_export(tmp_path, gates=gates), storage.normalise(tmp_path)
    assert verdict(document) == words
    require_proven(uri, document, allow_unproven=True)
    if words == UNPROVEN:
        with pytest.raises(ConfigError, match=rf"is {UNPROVEN}\n.*allow_unproven: true\n.*shardline verify"):
            require_proven(uri, document, allow_unproven=False)
    else:
        require_proven(uri, document, allow_unproven=False)


@pytest.mark.parametrize(
    ("changes", "is_proven"),
    [
        ({}, True),
        ({"export_sha256": "0" * 64}, False),
        ({"gates": [parity(status="failed")]}, False),
        ({"gates": []}, False),
    ],
    ids=["its own", "another export", "failed", "nothing ran"],
)
def test_a_verification_proves_its_own_export_and_engine(
    tmp_path: Path, changes: dict[str, Any], is_proven: bool
) -> None:
    document, uri = write_export(tmp_path), storage.normalise(tmp_path)
    assert document.engine is not None
    values = {
        "fingerprint": document.fingerprint,
        "export_sha256": document.sha256,
        "engine_sha256": document.engine.sha256,
        "target": "sm89",
        "gates": [parity()],
    }
    place = verification_uri(uri, document.engine)
    assert place is not None
    storage.replace(place, Verification(**(values | changes)).to_json())
    assert verdict(document, read_verification(uri, document)) == (f"proven on {GPU}" if is_proven else UNPROVEN)
    if is_proven:
        require_proven(uri, document, allow_unproven=False)
        storage.replace(place, b"{")
        assert verdict(document, read_verification(uri, document)) == UNPROVEN


@pytest.mark.parametrize(
    ("changes", "seal", "words"),
    [
        ({"gates": [parity()]}, False, "the manifest was changed after it was written"),
        ({"metrics": {"fp32": {"accuracy": float("nan")}}}, False, "the manifest was changed after it was written"),
        ({"precision": "int8"}, True, "the manifest has no graph of int8"),
        ({"served": "other.plan"}, True, "the manifest has no other.plan"),
        ({"metrics": {}}, True, "the manifest has no accuracy of fp32"),
    ],
)
def test_a_changed_manifest_is_neither_proven_nor_reused(
    tmp_path: Path, changes: dict[str, Any], seal: bool, words: str
) -> None:
    document, uri = write_export(tmp_path).model_copy(update=changes), storage.normalise(tmp_path)
    document = document.sealed() if seal else document
    assert verdict(document) == f"unproven: {words}"
    assert find_output_damage(uri, document) == words
    with pytest.raises(ConfigError, match=words):
        require_proven(uri, document, allow_unproven=True)


@pytest.mark.parametrize("name", [GRAPH, ENGINE, OTHER])
def test_a_changed_byte_of_any_file_is_refused_before_an_upload(tmp_path: Path, name: str) -> None:
    document, uri = write_export(tmp_path, gates=[parity()]), storage.normalise(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-1] + b"!")
    with pytest.raises(ConfigError, match=f"is damaged: {name} has crc32c"):
        require_proven(uri, document, allow_unproven=True)
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match=f"is damaged: {name} is missing"):
        require_proven(uri, document, allow_unproven=True)


def test_a_file_that_was_added_is_refused_before_an_upload(tmp_path: Path) -> None:
    document, uri = write_export(tmp_path, gates=[parity()]), storage.normalise(tmp_path)
    storage.replace(f"{uri}/triton/classifier/2/model.plan", b"")
    with pytest.raises(ConfigError, match=r"is damaged: triton/classifier/2/model\.plan is not of this export"):
        require_proven(uri, document, allow_unproven=True)
