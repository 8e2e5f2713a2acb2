"""Runtime and target of a configuration on a machine: GPU and packages are planted."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from contracts.config import ExportSection
from contracts.errors import ConfigError
from trainer.export import runtime
from trainer.export.runtime import Builder, check_precision, choose_runtime

RTX = {"tensorrt_rtx"}
BOTH = {"tensorrt", "tensorrt_rtx"}
Choose = Callable[..., Builder]


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    def choose(installed: set[str], gpu: str | None, **settings: Any) -> Builder:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in installed else None)
        monkeypatch.setattr(runtime, "gpu_target", lambda: gpu)
        monkeypatch.setattr(runtime, "version_of", lambda module: "1.2.3")
        return choose_runtime(ExportSection(**settings))

    return choose


@pytest.mark.parametrize(
    ("installed", "gpu", "settings", "expected"),
    [
        (BOTH, "sm90", {}, "tensorrt 1.2.3, sm90"),
        (RTX, "sm89", {}, "onnx"),
        (BOTH, "sm90", {"runtime": "onnx"}, "onnx"),
        (RTX, None, {"runtime": "tensorrt_rtx"}, "tensorrt_rtx 1.2.3, sm89"),
        (RTX, "sm75", {"runtime": "tensorrt_rtx"}, "tensorrt_rtx 1.2.3, sm75"),
        (BOTH, "sm90", {"runtime": "tensorrt_rtx", "target": "nvidia-l4"}, "tensorrt_rtx 1.2.3, sm89"),
    ],
)
def test_runtime_and_target_follow_from_settings_and_machine(
    choose: Choose, installed: set[str], gpu: str | None, settings: dict[str, Any], expected: str
) -> None:
    assert choose(installed, gpu, **settings).identity == expected


@pytest.mark.parametrize(
    ("installed", "gpu", "settings", "given", "todo"),
    [
        (RTX, "sm90", {"runtime": "tensorrt"}, "the package tensorrt is not installed", "shardline[tensorrt]"),
        (BOTH, None, {"runtime": "tensorrt"}, "this machine has no GPU", "export.runtime=onnx"),
        (set(), None, {"runtime": "tensorrt_rtx"}, "tensorrt_rtx is not installed", "shardline[rtx]"),
        (RTX, "sm90", {"runtime": "tensorrt_rtx"}, "no engine for sm90 (h100, h200)", "shardline[tensorrt]"),
        (BOTH, "sm90", {"runtime": "tensorrt", "target": "l4"}, "export.target l4", "runtime=tensorrt_rtx"),
        (BOTH, None, {"target": "l5"}, "'l5', which is not a known GPU", "correct export.target"),
    ],
)
def test_what_cannot_be_built_is_refused(
    choose: Choose, installed: set[str], gpu: str | None, settings: dict[str, Any], given: str, todo: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(installed, gpu, **settings)
    assert given in caught.value.given and todo in caught.value.todo, caught.value


def test_a_gpu_without_the_package_is_a_warning(choose: Choose) -> None:
    (warning,) = choose(RTX, "sm89").warnings
    assert "a GPU of sm89 (l4" in warning and "tensorrt is not installed" in warning and "unproven" in warning
    assert choose(BOTH, "sm90").warnings == choose(set(), None).warnings == ()


@pytest.mark.parametrize(
    ("builder", "refused"),
    [
        (Builder("tensorrt_rtx", "1", "sm89"), ["int8"]),
        (Builder("tensorrt_rtx", "1", "sm75"), ["fp32", "int8"]),
        (Builder("tensorrt", "11", "sm75"), []),
    ],
)
def test_a_precision_that_the_target_lacks_is_refused(builder: Builder, refused: list[str]) -> None:
    for precision in ("fp32", "fp16", "int8"):
        with pytest.raises(ConfigError, match="for sm") if precision in refused else nullcontext():
            check_precision(builder, precision)
