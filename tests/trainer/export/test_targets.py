from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest

from contracts.errors import ConfigError
from trainer.export import targets
from trainer.export.targets import (
    DEFAULT_TARGETS,
    RTX_TARGETS,
    Builder,
    capability_of,
    check_precision,
    choose_builder,
    gpus_of,
)


def pretend(monkeypatch: pytest.MonkeyPatch, *, installed: set[str], gpu: str | None) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in installed else None)
    monkeypatch.setattr(targets, "gpu_target", lambda: gpu)
    monkeypatch.setattr(targets, "_version_of", lambda module: "1.2.3")


@pytest.mark.parametrize(
    ("installed", "gpu", "expected"),
    [
        ({"tensorrt_rtx"}, None, "tensorrt_rtx 1.2.3, sm80+sm86+sm89+sm120"),
        ({"tensorrt_rtx"}, "sm89", "tensorrt_rtx 1.2.3, sm89"),
        ({"tensorrt_rtx"}, "sm90", "tensorrt_rtx 1.2.3, sm80+sm86+sm89+sm120"),
        ({"tensorrt", "tensorrt_rtx"}, "sm90", "tensorrt 1.2.3, sm90"),
        ({"tensorrt", "tensorrt_rtx"}, None, "tensorrt_rtx 1.2.3, sm80+sm86+sm89+sm120"),
    ],
)
def test_the_builder_that_fits_the_machine_is_chosen(
    monkeypatch: pytest.MonkeyPatch, installed: set[str], gpu: str | None, expected: str
) -> None:
    pretend(monkeypatch, installed=installed, gpu=gpu)
    assert choose_builder().identity == expected


@pytest.mark.parametrize(
    ("installed", "given"),
    [(set(), "no engine builder is installed"), ({"tensorrt"}, "on that GPU only; this machine has no GPU")],
)
def test_no_usable_builder_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, installed: set[str], given: str
) -> None:
    pretend(monkeypatch, installed=installed, gpu=None)
    with pytest.raises(ConfigError, match=given) as caught:
        choose_builder()
    assert 'pip install "shardline[tensorrt]"' in caught.value.todo


def test_the_version_is_that_of_the_installed_package() -> None:
    builder = choose_builder()
    assert builder.version == importlib.metadata.version("tensorrt_rtx_cu13")


def test_without_a_gpu_the_engine_is_for_the_common_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "gpu_target", lambda: None)
    assert choose_builder().targets == DEFAULT_TARGETS


def test_several_gpus_by_name_become_capabilities_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, installed={"tensorrt_rtx"}, gpu=None)
    wanted = ["l4", "nvidia-tesla-t4", "NVIDIA-L4", "sm89", "rtx-pro-6000"]
    assert choose_builder(wanted).targets == ("sm89", "sm75", "sm120")


@pytest.mark.parametrize("name", ["l5", "", "89", "sm8"])
def test_an_unknown_gpu_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)no GPU that is known here.*t4, a100") as caught:
        capability_of(name)
    assert "sm120" in caught.value.allowed


@pytest.mark.parametrize("name", ["h100", "b200", "v100"])
def test_what_rtx_cannot_build_for_is_built_on_that_gpu(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pretend(monkeypatch, installed={"tensorrt", "tensorrt_rtx"}, gpu=None)
    with pytest.raises(ConfigError, match="built by tensorrt on that GPU only; this machine has no GPU"):
        choose_builder([name])
    pretend(monkeypatch, installed={"tensorrt", "tensorrt_rtx"}, gpu=capability_of(name))
    assert choose_builder([name]).name == "tensorrt 1.2.3"
    with pytest.raises(ConfigError, match="on that GPU only"):
        choose_builder([name, "l4"])


def test_turing_has_no_fp32_in_rtx() -> None:
    builder = Builder("tensorrt_rtx", "1", ("sm89", "sm75"))
    check_precision(builder, "fp16")
    with pytest.raises(ConfigError, match=r"no fp32 for sm75 \(t4\)"):
        check_precision(builder, "fp32")
    check_precision(Builder("tensorrt", "11", ("sm75",)), "fp32")


def test_every_target_has_a_gpu_with_a_name() -> None:
    assert all(gpus_of(target) for target in RTX_TARGETS)
