"""The Triton repository of each runtime, beside golden files that Triton's own message parsed.

Not proven here: that a server loads one.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import pytest

from contracts.artifacts.signature import Signature
from contracts.config.stages import Runtime
from contracts.serving import RELEASES, image_of
from tests.export_fields import image_export, make_engine, make_manifest
from trainer.export.triton import model_path, write_repository

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "triton"
LABELS = ["two\nlines", "Zürich", 'a "quoted" one', "50%", *map(str, range(6))]
IMAGE = Signature.model_validate(image_export(32, 10)["signature"])
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
RUNTIMES: tuple[Runtime, ...] = ("tensorrt", "onnx")


def write(
    folder: Path,
    runtime: Runtime,
    signature: Signature = IMAGE,
    *,
    precision: str = "fp16",
) -> str:
    """Write the repository of a classifier for batches of 1 to 10, tuned for 4; return config.pbtxt."""
    write_repository(
        folder,
        task="image_classification",
        runtime=runtime,
        precision=precision,
        model_sha256=hashlib.sha256(b"a model").hexdigest(),
        signature=signature,
        batches=(4, 10),
        labels=LABELS,
    )
    return (folder / "triton/classifier/config.pbtxt").read_text(encoding="utf-8")


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("name", "signature"), [("image", IMAGE), ("text", TEXT)])
def test_the_folder_is_the_golden_one(tmp_path: Path, runtime: Runtime, name: str, signature: Signature) -> None:
    """Dims without the batch, a reshape of scalars, the profile of every input, warm-up batches."""
    config = write(tmp_path, runtime, signature)
    assert config == (GOLDEN / f"{runtime}-{name}.pbtxt").read_text(encoding="utf-8")
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["triton/classifier/config.pbtxt", "triton/classifier/labels.txt"]
    # Triton reads one label per line.
    labels = (tmp_path / "triton/classifier/labels.txt").read_text(encoding="utf-8").split("\n")
    assert labels == ["two lines", *LABELS[1:], ""]
    assert model_path("image_classification", runtime).startswith("triton/classifier/1/model.")


def test_a_quantised_graph_is_left_alone(tmp_path: Path) -> None:
    # onnxruntime_backend of 2026-06: 2 is DISABLE_ALL, 0 is ENABLE_ALL.
    for precision, level in (("int8", 2), ("fp16", 0), ("fp32", 0)):
        assert f"graph {{ level: {level} }}" in write(tmp_path, "onnx", precision=precision)


def test_the_image_is_that_of_the_tensorrt_version() -> None:
    def image_by(version: str) -> str | None:
        return image_of(make_manifest(engine=make_engine(builder=f"tensorrt {version}")))

    assert image_by("11.2.1.2") == "nvcr.io/nvidia/tritonserver:26.08-py3"
    assert image_by("11.4.0.1") is image_by("10.11.1.1") is None
    newest = f"nvcr.io/nvidia/tritonserver:{max(RELEASES.values())}-py3"
    assert image_of(make_manifest(runtime="onnx", served="model.fp16.onnx", engine=None)) == newest
    # Triton loads no engine of TensorRT-RTX.
    assert image_of(make_manifest()) is None


def test_the_extra_tensorrt_is_of_a_version_that_a_release_holds() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (pinned,) = extras["tensorrt"]
    assert pinned.removeprefix("tensorrt==").removesuffix(".*") in RELEASES
    # Its libraries cannot be had on every network.
    assert "tensorrt" not in extras["dev"][0]
