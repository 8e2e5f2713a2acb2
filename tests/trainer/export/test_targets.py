from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest

from contracts.errors import ConfigError
from trainer.export import targets
from trainer.export.targets import DEFAULT_TARGETS, choose_builder


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
    [(set(), "no engine builder is installed"), ({"tensorrt"}, "only where a GPU is")],
)
def test_no_usable_builder_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, installed: set[str], given: str
) -> None:
    pretend(monkeypatch, installed=installed, gpu=None)
    with pytest.raises(ConfigError, match=given) as caught:
        choose_builder()
    assert caught.value.todo == 'pip install "shardline[tensorrt]"'


def test_the_version_is_that_of_the_installed_package() -> None:
    builder = choose_builder()
    assert builder.version == importlib.metadata.version("tensorrt_rtx_cu13")


def test_without_a_gpu_the_engine_is_for_the_common_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "gpu_target", lambda: None)
    assert choose_builder().targets == DEFAULT_TARGETS
