"""The Triton repository of each runtime: parsed by Triton's own message, and compared with golden files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from contracts.artifacts import Signature
from contracts.artifacts.export import NO_SERVER
from contracts.serving import (
    GRAPH_LEVELS,
    NO_RELEASE,
    RELEASES,
    graph_level,
    image_for,
)
from tests.trainer.export.graphs import image_signature, parse_config
from tests.trainer.export.handover import ORT, RTX, TENSORRT, make_export, served_model
from trainer.export.bundle.triton import describe_served, docker_command, model_path, write_repository
from trainer.export.bundle.triton_config import make_config
from trainer.export.engines.engine import build_engine
from trainer.export.targets import TENSORRT_RTX, Builder

GOLDEN = Path(__file__).parents[3] / "golden" / "triton"
RUNTIMES = ("tensorrt", "onnxruntime_tensorrt", "tensorrt_rtx")
LABELS = ["two\nlines", "Zürich", 'a "quoted" one', "50%", *map(str, range(6))]
TEXT = Signature.model_validate(
    {
        "inputs": {name: {"dtype": "int64", "shape": ["batch", "length"]} for name in ("tokens", "mask")},
        "outputs": {
            "logits": {"dtype": "float32", "shape": ["batch", 4]},
            "value": {"dtype": "float32", "shape": ["batch"]},
        },
        "dimensions": {"length": {"min": 8, "opt": 64, "max": 256, "multiple": 8}},
    }
)


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> Any:
    return request.param


def write(
    folder: Path, runtime: Any, signature: Signature, *, builder: str = TENSORRT, precision: str = "fp16"
) -> Path:
    """Write the repository of a model that is a few bytes; return config.pbtxt."""
    path = folder / model_path("image_classification", runtime)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"a model")
    model = served_model(path, runtime, signature, precision=precision)
    return write_repository(folder, model, builder=builder, labels=LABELS)


@pytest.mark.parametrize(("name", "signature"), [("image", image_signature(32)), ("text", TEXT)])
def test_the_folder_is_the_golden_one(tmp_path: Path, runtime: Any, name: str, signature: Signature) -> None:
    config = write(tmp_path, runtime, signature)
    files = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    model = "model.plan" if runtime == "tensorrt" else "model.onnx"
    names = ["README.md", f"classifier/1/{model}", "classifier/config.pbtxt", "classifier/labels.txt"]
    assert sorted(files) == [f"triton/{name}" for name in names]
    # Read by the message itself: an unknown field, or a value of another type, would be refused here.
    found = parse_config(config.read_text())
    golden = parse_config((GOLDEN / f"{runtime}-{name}.pbtxt").read_text())
    assert text_format.MessageToString(found) == text_format.MessageToString(golden)
    # Triton ends a label at the end of its line.
    labels = config.with_name("labels.txt").read_text(encoding="utf-8").split("\n")
    assert labels == ["two lines", *LABELS[1:], ""]


def test_a_quantised_graph_is_left_alone_and_others_run_as_in_the_gates(tmp_path: Path) -> None:
    # onnxruntime_backend of 2026-06: 1 is EXTENDED, 2 DISABLE_ALL, and whatever it does not know is ENABLE_ALL.
    assert (GRAPH_LEVELS[graph_level("int8")], GRAPH_LEVELS[graph_level("fp16")]) == (2, 0)
    for precision, level in (("int8", 2), ("fp16", 0), ("fp32", 0)):
        config = parse_config(write(tmp_path, ORT, TEXT, precision=precision).read_text())
        assert config.optimization.graph.level == level
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert "precision_mode" not in accelerator.parameters
    assert accelerator.parameters["trt_engine_cache_path"].startswith("/")
    for end, sizes in (("min", "1x8"), ("opt", "4x64"), ("max", "10x256")):
        assert accelerator.parameters[f"trt_profile_{end}_shapes"] == f"tokens:{sizes},mask:{sizes}"


def test_plans_of_another_file_are_kept_elsewhere(tmp_path: Path) -> None:
    signature = image_signature(32)
    folders = []
    for content in (b"a model", b"another"):
        (tmp_path / "model.onnx").write_bytes(content)
        config = make_config(served_model(tmp_path / "model.onnx", ORT, signature))
        (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
        folders.append(accelerator.parameters["trt_engine_cache_path"])
    assert len(set(folders)) == 2


def test_it_is_what_the_graph_and_a_real_build_say(exported: Any, tmp_path: Path) -> None:
    import onnx

    config = parse_config(write(tmp_path, "tensorrt_rtx", image_signature(32)).read_text())
    tensors = build_engine(
        exported.fp16,
        tmp_path / "real.engine",
        builder=Builder(TENSORRT_RTX, "installed", ("sm89",)),
        signature=image_signature(32),
        opt_batch=4,
        max_batch=10,
    )
    told = [(one.name, list(one.dims)) for one in (*config.input, *config.output)]
    assert told == [(tensor.name, tensor.shape[1:]) for tensor in tensors]
    graph = onnx.load(exported.fp16).graph
    types = {item.name: item.type.tensor_type.elem_type for item in (*graph.input, *graph.output)}
    # TYPE_FP32 of Triton's model_config.proto is 11: inputs and outputs of an fp16 graph stay float32.
    assert {one.name: one.data_type for one in (*config.input, *config.output)} == dict.fromkeys(types, 11)
    assert set(types.values()) == {onnx.TensorProto.FLOAT}


def test_the_image_is_that_of_the_tensorrt_version() -> None:
    assert image_for("tensorrt 11.2.1.2") == "nvcr.io/nvidia/tritonserver:26.08-py3"
    assert image_for("tensorrt 10.11.0.33") == "nvcr.io/nvidia/tritonserver:25.06-py3"
    for version in ("11.4.0.1", "11.2.0.5", "10.11.1.1", "1.7.1"):
        assert image_for(f"tensorrt {version}") is None
    # Graphs are bound to no version: the newest.
    for builder in ("tensorrt_rtx 9.9.9", ""):
        assert image_for(builder) == f"nvcr.io/nvidia/tritonserver:{max(RELEASES.values())}-py3"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in RELEASES)


@pytest.mark.parametrize(
    ("runtime", "builder", "said"),
    [
        ("tensorrt", TENSORRT, "The release with the tensorrt 11.2.1.2 that built the plan"),
        ("tensorrt", "tensorrt 11.4.0.20", NO_RELEASE),
        ("onnxruntime_tensorrt", "", "Warning: the newest release known on 2026"),
        ("tensorrt_rtx", RTX, "Triton's tensorrt backend does not load them. Warning: the newest"),
    ],
)
def test_the_readme_has_the_command_where_a_release_is_known(
    tmp_path: Path, runtime: Any, builder: str, said: str
) -> None:
    write(tmp_path, runtime, image_signature(32), builder=builder)
    text = (tmp_path / "triton/README.md").read_text()
    assert said in text and "Not run: no server" in text
    image = image_for(builder if runtime == "tensorrt" else "")
    assert ("docker run" in text) == (image is not None) == ("11.4" not in builder)
    if image is not None:
        assert f"{image} tritonserver --model-repository=/models" in text
    # A plan that is built when the model is loaded outlives the container.
    assert ("shardline-plans-" in text) == (runtime == "onnxruntime_tensorrt")


def test_the_command_mounts_the_repository() -> None:
    command = " ".join(docker_command("IMAGE", "/a/triton", sha256="ab" * 32))
    assert "--gpus all" in command and "-v /a/triton:/models:ro" in command
    assert f"-v shardline-plans-{'ab' * 8}:/tmp/shardline-plans-{'ab' * 8} IMAGE tritonserver" in command


@pytest.mark.parametrize(
    ("runtime", "precision", "ran", "lacks"),
    [
        (
            "onnxruntime_tensorrt",
            "fp16",
            "CPUExecutionProvider",
            ["ONNX Runtime's TensorRT provider", "fp16 arithmetic"],
        ),
        (ORT, "fp32", "TensorrtExecutionProvider", []),
        ("tensorrt_rtx", "fp32", "CPUExecutionProvider", ["ONNX Runtime's CUDA provider"]),
        ("tensorrt", "fp16", "tensorrt 11.3.0.14 on a GPU", []),
    ],
)
def test_what_did_not_run_is_said(tmp_path: Path, runtime: Any, precision: str, ran: str, lacks: list[str]) -> None:
    (tmp_path / "model").write_bytes(b"")
    model = served_model(tmp_path / "model", runtime, image_signature(32), precision=precision)
    named = {"path": "p", "config": "c", "config_sha256": "0" * 64, "ran": f"onnxruntime 1 {ran}"}
    served = describe_served(model, **named)
    assert (served.unproven, served.lacks, served.is_proven) == ([*lacks, NO_SERVER], lacks, not lacks)


@pytest.mark.parametrize("builder", [RTX, TENSORRT, ORT])
def test_the_manifest_names_what_lies_there(exported: Any, tmp_path: Path, builder: str) -> None:
    document = make_export(tmp_path, exported, builder=builder).sealed()
    assert document.find_contradiction() is None
    assert document.served is not None
    other = document.served.model_copy(update={"sha256": "0" * 64})
    changed = document.model_copy(update={"served": other}).sealed()
    assert str(changed.find_contradiction()).endswith("is not the one that the gates ran")


def test_the_extra_tensorrt_is_of_a_version_that_a_release_holds() -> None:
    root = Path(__file__).parents[4]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (pinned,) = extras["tensorrt"]
    assert pinned.removeprefix("tensorrt==").removesuffix(".*") in RELEASES
    # Its libraries cannot be had on every network.
    assert "tensorrt" not in extras["dev"][0]
    assert not re.search(r"(?m)^tensorrt==", (root / "constraints" / "constraints.txt").read_text())
