"""Which runtime a configuration gets on a machine: compute capabilities and packages are planted."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Any

import pytest
from pydantic import ValidationError

from contracts.config import ExportSection
from contracts.errors import ConfigError
from trainer.export import targets
from trainer.export.targets import (
    DEFAULT_TARGET,
    OUTSIDE_MATRIX,
    RTX_TARGETS,
    Builder,
    capability_of,
    check_precision,
    choose_runtime,
    gpus_of,
)

RTX = {"tensorrt_rtx"}
BOTH = {"tensorrt", "tensorrt_rtx"}


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Any:
    def choose(installed: set[str], gpu: str | None, **settings: Any) -> Builder:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in installed else None)
        monkeypatch.setattr(targets, "gpu_target", lambda: gpu)
        monkeypatch.setattr(targets, "version_of", lambda module: "1.2.3")
        return choose_runtime(ExportSection(**settings))

    return choose


@pytest.mark.parametrize(
    ("installed", "gpu", "settings", "expected"),
    [
        # auto: TensorRT on the GPU that is there, else ONNX, whatever else is installed.
        (BOTH, "sm90", {}, "tensorrt 1.2.3, sm90"),
        (BOTH, "sm89", {}, "tensorrt 1.2.3, sm89"),
        (BOTH, None, {}, "onnxruntime_tensorrt"),
        (RTX, "sm89", {}, "onnxruntime_tensorrt"),
        (set(), None, {}, "onnxruntime_tensorrt"),
        # Asked for.
        (BOTH, "sm100", {"runtime": "tensorrt"}, "tensorrt 1.2.3, sm100"),
        (BOTH, "sm90", {"runtime": "tensorrt", "targets": ["h100"]}, "tensorrt 1.2.3, sm90"),
        (BOTH, "sm90", {"runtime": "onnxruntime_tensorrt"}, "onnxruntime_tensorrt"),
        (RTX, "sm89", {"runtime": "onnxruntime_tensorrt", "targets": ["l4"]}, "onnxruntime_tensorrt"),
        (RTX, None, {"runtime": "tensorrt_rtx"}, "tensorrt_rtx 1.2.3, sm89"),
        (RTX, "sm75", {"runtime": "tensorrt_rtx"}, "tensorrt_rtx 1.2.3, sm75"),
        (BOTH, "sm90", {"runtime": "tensorrt_rtx", "targets": ["l4"]}, "tensorrt_rtx 1.2.3, sm89"),
    ],
)
def test_the_runtime_that_fits_machine_and_wish(
    choose: Any, installed: set[str], gpu: str | None, settings: dict[str, Any], expected: str
) -> None:
    assert choose(installed, gpu, **settings).identity == expected


@pytest.mark.parametrize(
    ("installed", "gpu", "settings", "given", "todo"),
    [
        (RTX, "sm90", {}, "this machine has a GPU of sm90 (h100, h100-80gb, h200)", "shardline[tensorrt]"),
        (set(), "sm100", {}, "this machine has a GPU of sm100 (b200)", "shardline[tensorrt]"),
        (RTX, "sm90", {"runtime": "tensorrt"}, "the package tensorrt is not installed", "shardline[tensorrt]"),
        (RTX, "sm90", {"runtime": "tensorrt_rtx"}, "no engines for sm90", "shardline[tensorrt]"),
        (BOTH, None, {"runtime": "tensorrt"}, "this machine has no GPU", "export.runtime=onnxruntime_tensorrt"),
        (set(), None, {"runtime": "tensorrt_rtx"}, "tensorrt_rtx is not installed", "shardline[rtx]"),
        (RTX, None, {"runtime": "tensorrt_rtx", "targets": ["h100"]}, "builds no engine for sm90", "with h100 ("),
        (
            RTX,
            "sm90",
            {"runtime": "tensorrt_rtx", "targets": ["v100"]},
            "builds no engine for sm70 (v100)",
            "export.runtime=tensorrt ",
        ),
        (BOTH, "sm90", {"runtime": "tensorrt", "targets": ["l4"]}, "export.targets l4", "runtime=tensorrt_rtx"),
        (BOTH, None, {"runtime": "onnxruntime_tensorrt", "targets": ["l4"]}, "has no GPU", "runtime=tensorrt_rtx"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(
    choose: Any, installed: set[str], gpu: str | None, settings: dict[str, Any], given: str, todo: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(installed, gpu, **settings)
    assert given in caught.value.given and todo in caught.value.todo, caught.value
    assert caught.value.exit_code == 2


def test_what_a_user_should_know_is_a_warning(choose: Any) -> None:
    (lacking,) = choose(RTX, "sm89").warnings
    assert "tensorrt is not installed: the ONNX file is what serves" in lacking
    (outside,) = choose(RTX, None, runtime="tensorrt_rtx", targets=["a100"]).warnings
    assert outside == "sm80 (a100, a100-80gb, a30): outside NVIDIA's published matrix of TensorRT-RTX"
    assert choose(BOTH, "sm90").warnings == choose(set(), None).warnings == ()
    assert DEFAULT_TARGET not in OUTSIDE_MATRIX


def test_an_export_has_one_engine_that_one_machine_can_prove() -> None:
    with pytest.raises(ValidationError, match="targets"):
        ExportSection(targets=["l4", "a10"])


def test_an_unknown_runtime_is_refused_by_the_configuration() -> None:
    with pytest.raises(ValidationError, match="runtime"):
        ExportSection.model_validate({"runtime": "tensorrt_llm"})


def test_the_version_is_that_of_the_installed_package() -> None:
    builder = choose_runtime(ExportSection(runtime="tensorrt_rtx", targets=["l4"]))
    assert builder.version == importlib.metadata.version("tensorrt_rtx_cu13")


@pytest.mark.parametrize("name", ["l5", "", "89", "sm8"])
def test_an_unknown_gpu_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)no GPU that is known here.*t4, a100") as caught:
        capability_of(name)
    assert "sm120" in caught.value.allowed


def test_rtx_has_no_int8_and_on_turing_no_fp32() -> None:
    builder = Builder("tensorrt_rtx", "1", ("sm89", "sm75"))
    check_precision(builder, "fp16")
    with pytest.raises(ConfigError, match=r"no fp32 for sm75 \(t4\)"):
        check_precision(builder, "fp32")
    with pytest.raises(ConfigError, match="its support matrix lists int8 for weights alone"):
        check_precision(builder, "int8")
    for other in (Builder("tensorrt", "11", ("sm75",)), Builder("onnxruntime_tensorrt", "", ())):
        for precision in ("fp32", "int8"):
            check_precision(other, precision)


def test_every_target_has_a_gpu_with_a_name() -> None:
    assert all(gpus_of(target) for target in RTX_TARGETS)
