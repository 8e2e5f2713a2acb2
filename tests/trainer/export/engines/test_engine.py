from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contracts.errors import ConfigError, ModelError
from tests.trainer.export.graphs import image_signature
from trainer.export.engines.engine import build_engine, check_profile, load_api, make_config, make_logger
from trainer.export.targets import DEFAULT_TARGET, RTX_TARGETS, TENSORRT_RTX, Builder

SIGNATURE = image_signature()


@pytest.fixture
def builder() -> Builder:
    return Builder(TENSORRT_RTX, "installed", ("sm89",))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_graph_becomes_an_engine_without_a_word(
    exported: Any, tmp_path: Path, precision: str, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "model.engine"
    graph = getattr(exported, precision)
    build_engine(
        graph,
        target,
        builder=Builder(TENSORRT_RTX, "", (DEFAULT_TARGET,)),
        signature=SIGNATURE,
        opt_batch=8,
        max_batch=64,
    )
    assert target.stat().st_size > 10_000
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("opt", "largest"), [(9, 8), (0, 8), (0, 0)])
def test_batch_sizes_must_be_ordered(opt: int, largest: int) -> None:
    with pytest.raises(ConfigError, match=f"min 1, opt {opt}, max {largest}"):
        check_profile(1, opt, largest)


def test_a_profile_with_min_above_opt_is_refused_before_the_builder(builder: Builder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="1 <= min <= opt <= max"):
        build_engine(
            tmp_path / "none.onnx",
            tmp_path / "none.engine",
            builder=builder,
            signature=SIGNATURE,
            opt_batch=2,
            max_batch=8,
            min_batch=4,
        )


def test_a_refused_graph_shows_what_the_builder_said(builder: Builder, tmp_path: Path, capfd: Any) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    with pytest.raises(ModelError, match=r"(?s)builds no engine from broken\.onnx for sm89:.*ERROR"):
        build_engine(broken, tmp_path / "e", builder=builder, signature=SIGNATURE, opt_batch=1, max_batch=1)
    assert not (tmp_path / "e").exists()
    assert capfd.readouterr() == ("", "")


def test_a_profile_of_another_image_size_is_refused_by_the_builder(
    exported: Any, builder: Builder, tmp_path: Path
) -> None:
    other = image_signature(48)
    with pytest.raises(ModelError, match="builds no engine"):
        build_engine(exported.fp16, tmp_path / "e", builder=builder, signature=other, opt_batch=1, max_batch=1)


def test_an_unknown_target_is_refused(exported: Any, tmp_path: Path) -> None:
    builder = Builder(TENSORRT_RTX, "installed", ("sm90",))
    with pytest.raises(ConfigError, match=r"(?s)cannot build for sm90.*sm80, sm86"):
        build_engine(exported.fp16, tmp_path / "e", builder=builder, signature=SIGNATURE, opt_batch=1, max_batch=1)


def test_the_table_of_targets_is_the_installed_builder_s() -> None:
    members = load_api(TENSORRT_RTX).ComputeCapability.__members__
    assert set(RTX_TARGETS) == {name.lower() for name in members if name.startswith("SM")}


@pytest.mark.parametrize(("precision", "tf32"), [("fp32", False), ("fp16", True)])
def test_an_fp32_engine_computes_in_fp32(builder: Builder, precision: str, tf32: bool) -> None:
    """TF32 is the builder's default, and its 10 bits do not keep to fp32's limits."""
    api, messages = load_api(TENSORRT_RTX), list[str]()
    factory = api.Builder(make_logger(api, messages))
    assert make_config(api, factory, builder, precision).get_flag(api.BuilderFlag.TF32) is tf32


def test_a_builder_that_does_not_load_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r'pip install "shardline\[rtx\]"'):
        load_api("no_such_builder")
