"""Which exports are proven: by their manifest, by what ran since, and by nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts import proof, storage
from contracts.artifacts import (
    EngineEntry,
    ExportManifest,
    Gate,
    GraphEntry,
    Served,
    ShippedFile,
    Verification,
)
from contracts.artifacts.export import NO_SERVER
from contracts.errors import ConfigError, DataError
from contracts.proof import describe_proof, read_verifications, require_proven, verification_uri
from contracts.stage import find_output_damage
from tests.export_fields import image_export, served_file

FILE = {"bytes": 1, "crc32c": "0" * 8}


def make_engine(target: str) -> EngineEntry:
    return EngineEntry(
        name=f"model.{target}.engine",
        **FILE,
        sha256="ab" * 32,
        onnx_sha256="cd" * 32,
        builder="tensorrt_rtx 1.7",
        precision="fp32",
        target=target,
        min_batch=1,
        opt_batch=8,
        max_batch=64,
        build_s=1,
        peak_bytes=1,
    )


def make_export(*targets: str, **changes: Any) -> ExportManifest:
    values = {
        "fingerprint": "9" * 16,
        "precision": "fp32",
        "asked_precision": "fp32",
        "tried": [],
        "verdict": "unproven",
        "opset": 20,
        "inputs": {},
        "outputs": {},
        "graphs": [GraphEntry(name="model.fp32.onnx", **FILE, sha256="cd" * 32, precision="fp32")],
        "engines": [make_engine(target) for target in targets],
        "gates": [
            Gate(name=f"engine {target}", precision="fp32", status="not run", ran="no GPU") for target in targets
        ],
        "parity": {},
        **image_export(),
        "metrics": {"fp32": {"accuracy": 0.5}},
        "test_samples": 2,
        "checkpoint_sha256": "0" * 64,
        "shards_fingerprint": "5" * 16,
        "made_with": {},
        "files": [],
        "served": served_file("model.fp32.onnx", "cd" * 32),
    }
    return ExportManifest(**{**values, **changes}).sealed()


CONFIG = "triton/classifier/config.pbtxt"
MODEL = "triton/classifier/1/model.onnx"


def make_served(uri: str, *targets: str, lacks: Sequence[str] = (), **changes: Any) -> ExportManifest:
    """Write a model and its configuration; return the manifest of an export that serves them."""
    for name, content in ((MODEL, b"a model"), (CONFIG, b"a configuration")):
        storage.replace(storage.join(uri, *name.split("/")), content)
    model, settings = (ShippedFile.of(uri, name) for name in (MODEL, CONFIG))
    served = Served(
        runtime="tensorrt_rtx",
        model=MODEL,
        sha256=model.sha256,
        config=CONFIG,
        config_sha256=settings.sha256,
        graph_level=1,
        ran="onnxruntime 1 CPUExecutionProvider",
        unproven=[*lacks, NO_SERVER],
    )
    graph = GraphEntry(**model.model_dump(), precision="fp32")
    engines = [make_engine(target).model_copy(update={"onnx_sha256": model.sha256}) for target in targets]
    files = [settings]
    return make_export(*targets, **{"graphs": [graph], "engines": engines, "files": files, "served": served, **changes})


def write_verification(uri: str, document: ExportManifest, place: str, **changes: Any) -> None:
    values = {
        "fingerprint": document.fingerprint,
        "export_sha256": document.sha256,
        "engine_sha256": "ab" * 32,
        "target": place,
        "device": "a GPU",
        "gates": [Gate(name=f"engine {place}", precision="fp32", status="passed", ran="a test")],
    }
    found = Verification(**{**values, **changes})
    storage.replace(verification_uri(uri, place), found.to_json())


def find_unproven(uri: str, document: ExportManifest, *, gpu: str | None = None) -> list[str]:
    return proof.find_unproven(document, read_verifications(uri, document), gpu=gpu)


def test_every_engine_must_have_run(tmp_path: Path) -> None:
    uri, document = storage.normalise(tmp_path), make_export("sm80", "sm89")
    assert find_unproven(uri, document) == ["sm80", "sm89"]
    write_verification(uri, document, "sm80")
    assert find_unproven(uri, document) == ["sm89"]
    with pytest.raises(ConfigError, match=r"is unproven: sm89\n.*allow_unproven: true\n.*shardline verify"):
        require_proven(uri, document, allow_unproven=False)
    require_proven(uri, document, allow_unproven=True)
    write_verification(uri, document, "sm89")
    assert find_unproven(uri, document) == []
    require_proven(uri, document, allow_unproven=False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"engine_sha256": "cd" * 32},
        {"export_sha256": "cd" * 32},
        {"gates": [Gate(name="served", precision="fp32", status="failed", ran="a test")]},
        {"gates": []},
    ],
    ids=["another file", "another export", "failed", "no gate"],
)
def test_what_is_served_is_proven_by_its_own_verification(tmp_path: Path, wrong: dict[str, Any]) -> None:
    uri = storage.normalise(tmp_path)
    document = make_served(uri, lacks=["fp16 arithmetic"])
    assert document.served is not None
    sound = {
        "engine_sha256": document.served.sha256,
        "gates": [Gate(name="served", precision="fp32", status="passed", ran="a test")],
    }
    write_verification(uri, document, "served.sm89", **{**sound, **wrong})
    assert find_unproven(uri, document) == ["fp16 arithmetic"]
    write_verification(uri, document, "served.sm89", **sound)
    assert find_unproven(uri, document) == []
    require_proven(uri, document, allow_unproven=False)


def test_a_proof_counts_for_the_kind_of_gpu_that_ran_it_alone(tmp_path: Path) -> None:
    """ONNX Runtime builds a plan of its own on each kind, and what an export ran itself is of one kind, too."""
    uri = storage.normalise(tmp_path)
    document = make_served(uri, lacks=["a provider"])
    passed = [Gate(name="served", precision="fp32", status="passed", ran="a test")]
    write_verification(
        uri, document, "served.sm89", engine_sha256=document.served.sha256, device="NVIDIA L4", gates=passed
    )
    assert find_unproven(uri, document, gpu="sm89") == find_unproven(uri, document) == []
    assert find_unproven(uri, document, gpu="sm75") == ["what is served, on sm75 (it ran on sm89)"]
    assert describe_proof(document, read_verifications(uri, document)) == "proven only on sm89 (NVIDIA L4)"
    ran = document.model_copy(update={"served": document.served.model_copy(update={"unproven": [], "gpu": "sm90"})})
    (tmp_path / "verified/served.sm89.json").unlink()
    assert [find_unproven(uri, ran.sealed(), gpu=gpu) == [] for gpu in ("sm90", None, "sm75")] == [True, True, False]


def test_what_is_served_must_have_run_besides(tmp_path: Path) -> None:
    uri = storage.normalise(tmp_path)
    document = make_served(uri, lacks=["fp16 arithmetic"])
    assert find_unproven(uri, document) == ["fp16 arithmetic"]
    with pytest.raises(ConfigError, match="is unproven: fp16 arithmetic"):
        require_proven(uri, document, allow_unproven=False)
    # No server is ever run here: that holds nothing back.
    assert find_unproven(uri, make_served(uri)) == []
    assert find_unproven(uri, make_served(uri, "sm80", lacks=["a provider"])) == ["sm80", "a provider"]


@pytest.mark.parametrize("name", [MODEL, CONFIG])
def test_another_file_than_the_proven_one_is_refused(tmp_path: Path, name: str) -> None:
    uri = storage.normalise(tmp_path)
    document = make_served(uri)
    require_proven(uri, document, allow_unproven=False)
    content = (tmp_path / name).read_bytes()
    for other, words in ((b"other", "has bytes 5"), (b"A" + content[1:], "has crc32c")):
        (tmp_path / name).write_bytes(other)
        with pytest.raises(ConfigError, match=f"is damaged: {name} {words}"):
            require_proven(uri, document, allow_unproven=True)
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match=f"is damaged: {name} is missing"):
        require_proven(uri, document, allow_unproven=True)


def test_an_engine_may_have_run_when_it_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    monkeypatch.setattr(storage, "list_objects", lambda uri: listed.append(uri) or [])
    gate = Gate(name="engine sm80", precision="fp32", status="passed", ran="a GPU")
    document = make_export("sm80", verdict="proven", gates=[gate])
    require_proven(storage.normalise(tmp_path), document, allow_unproven=False)
    # Its Triton repository alone.
    assert [uri.rpartition("/")[2] for uri in listed] == ["triton"]
    # That of a try which did not ship.
    other = make_export("sm80", gates=[gate.model_copy(update={"precision": "fp16"})])
    assert proof.find_unproven(other, ()) == ["sm80"]


def test_int8_that_nothing_has_timed_is_unproven(tmp_path: Path) -> None:
    uri = storage.normalise(tmp_path)
    gates = [Gate(name="engine sm89", precision="int8", status="passed", ran="a GPU")]
    graphs = [
        GraphEntry(name=f"model.{name}.onnx", **FILE, sha256="cd" * 32, precision=name) for name in ("fp32", "int8")
    ]
    for status, unproven in (("not run", ["speed of int8"]), ("passed", [])):
        speed = Gate(name="speed", precision="int8", status=status, ran="a test")
        engines = [make_engine("sm89").model_copy(update={"precision": "int8"})]
        document = make_export(precision="int8", graphs=graphs, engines=engines, gates=[*gates, speed])
        assert find_unproven(uri, document) == unproven


@pytest.mark.parametrize(
    "changes",
    [
        {"export_sha256": "0" * 64},
        {"engine_sha256": "0" * 64},
        {"target": "sm89"},
        {"gates": []},
        {"gates": [Gate(name="engine sm80", precision="fp32", status="failed", ran="a GPU")]},
        {"gates": [Gate(name="checksum", precision="fp32", status="passed", ran="a GPU")]},
    ],
)
def test_a_verification_of_something_else_proves_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    uri, document = storage.normalise(tmp_path), make_export("sm80")
    write_verification(uri, document, "sm80", **changes)
    assert find_unproven(uri, document) == ["sm80"]


def test_a_damaged_verification_proves_nothing(tmp_path: Path) -> None:
    uri, document = storage.normalise(tmp_path), make_export("sm80")
    storage.replace(verification_uri(uri, "sm80"), b"{")
    assert find_unproven(uri, document) == ["sm80"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"verdict": "proven"}, "the manifest was changed after it was written"),
        ({"metrics": {"fp32": {"accuracy": float("nan")}}}, "the manifest was changed after it was written"),
    ],
)
def test_a_changed_manifest_is_refused_and_not_reused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    uri, document = storage.normalise(tmp_path), make_export("sm80").model_copy(update=change)
    assert find_output_damage(uri, document) == words
    assert find_unproven(uri, document) != []
    with pytest.raises(ConfigError, match=words):
        require_proven(uri, document, allow_unproven=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"precision": "fp16"}, "the manifest has no graph of fp16"),
        ({"graphs": []}, "the manifest has no graph of fp32"),
        ({"metrics": {}}, "the manifest has no accuracy of fp32"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_named(change: dict[str, Any], words: str) -> None:
    document = make_export("sm80", **change)
    assert document.find_contradiction() == words
    if "graph" in words:
        with pytest.raises(DataError, match=words):
            document.graph()


@pytest.mark.parametrize("target", ["../../sm80", ""])
def test_a_target_names_no_other_file(target: str) -> None:
    with pytest.raises(ValueError, match="target"):
        make_engine(target)
