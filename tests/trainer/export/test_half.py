"""The fp16 graph: every weight in fp16, its answers those of fp32, and what leaves fp16's range stays in fp32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from torch import nn

from contracts.artifacts.signature import Signature
from contracts.errors import ModelError
from tests.trainer.export.graphs import example_of, image_signature, inputs_of, network, signature_of
from trainer.export.compare import ModelFile, Trial, judge_parity
from trainer.export.engine import build_engine, graph_runtime, open_graph
from trainer.export.half import fold_batch_norms, write_fp16
from trainer.export.runtime import Builder, version_of
from trainer.export.tensors import run_torch


def write(
    model: nn.Module, folder: Path, signature: Signature | None = None, *, cautious: bool = False
) -> tuple[Path, list[str]]:
    """Return the fp16 graph, with the outputs of the fp32 model, and the names of the modules in fp32."""
    signature, path = signature or image_signature(), folder / "model.fp16.onnx"
    feed = inputs_of(signature)
    trial = Trial("samples", feed, run_torch(model.eval(), signature, feed))
    names = write_fp16(model, path, signature=signature, example=example_of(signature), feed=feed, cautious=cautious)
    run = open_graph(path, threads=1, precision="fp16")
    gate = judge_parity(run, [trial], signature, ModelFile("fp16", path.name, graph_runtime()))
    assert gate.status == "passed", gate
    return path, names


def fp32_share(path: Path) -> float:
    """Return the share of floating-point weights that are float32."""
    weights = [tensor for tensor in onnx.load(path).graph.initializer if tensor.data_type in (1, 10)]
    sizes = [int(np.prod(tensor.dims)) for tensor in weights]
    wide = [size for size, tensor in zip(sizes, weights, strict=True) if tensor.data_type == TensorProto.FLOAT]
    return sum(wide) / sum(sizes)


@pytest.mark.parametrize("name", ["resnet", "swin", "bert"])
def test_networks_are_fp16_as_a_whole_and_engines_build(name: str, tmp_path: Path) -> None:
    signature = signature_of(name)
    path, names = write(network(name), tmp_path, signature)
    assert names == [] and fp32_share(path) < 0.01
    builder = Builder("tensorrt_rtx", version_of("tensorrt_rtx"), "sm89")
    engine = tmp_path / "engine"
    build_engine(path, engine, builder=builder, signature=signature, batches=(4, 8), precision="fp16")
    assert engine.stat().st_size > 10_000


class Net(nn.Module):
    """Named modules, and a function of it and images that computes logits."""

    def __init__(self, compute: Callable[..., torch.Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.compute = compute
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.compute(self, images)


def linear(width: int = 32, *, scale: float = 1.0) -> nn.Linear:
    layer = nn.Linear(32, width)
    with torch.no_grad():
        layer.weight.mul_(scale)
    return layer


class Attention(nn.Module):
    """An attention with scores far beyond fp16, between values that stay within it."""

    def __init__(self) -> None:
        super().__init__()
        self.query = linear(scale=300.0)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        query = self.query(values)
        mixed: torch.Tensor = (query @ query.transpose(1, 2)).softmax(dim=-1) @ values
        return mixed


def attending() -> Net:
    return Net(
        lambda net, images: net.last(net.attention(images[:, 0]).mean(1)), attention=Attention(), last=linear(10)
    )


def scaled() -> Net:
    """A layer with outputs beyond fp16, and one that reads them."""
    return Net(
        lambda net, images: net.last(net.reader(net.first(images[:, 0, 0]))),
        first=linear(scale=1e5),
        reader=nn.Sequential(nn.ReLU(), nn.LayerNorm(32)),
        last=linear(10),
    )


def tied() -> nn.Module:
    """Two layers with one weight; fp16 cannot hold a constant of the second."""
    first, second = linear(), linear()
    second.weight = first.weight
    second.register_buffer("limit", torch.tensor(1e5))
    return Net(
        lambda net, images: net.last(second(first(images[:, 0, 0]))), first=first, second=second, last=linear(10)
    )


@pytest.mark.parametrize(
    ("build", "expected"),
    [(attending, ["attention"]), (scaled, ["first", "reader"]), (tied, ["first", "second"])],
)
def test_what_fp16_cannot_hold_stays_in_fp32_by_name(
    build: Callable[[], nn.Module], expected: list[str], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    path, names = write(build(), tmp_path)
    assert names == expected and 0 < fp32_share(path) < 1


def test_the_second_try_keeps_norms(tmp_path: Path) -> None:
    model = Net(lambda net, images: net.last(net.norm(images[:, 0, 0])), norm=nn.LayerNorm(32), last=linear(10))
    assert write(model, tmp_path, cautious=True)[1] == ["norm"]


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda net, images: net.last(images[:, 0, 0] * 1e5) / 1e5, "beyond 32752 outside of its submodules"),
        (lambda net, images: net.last(images[:, 0, 0]) @ torch.eye(10), "in fp16 fails: RuntimeError"),
        (
            lambda net, images: net.last(images[:, 0, 0] + 1e3) - net.last(torch.full((32,), 1e3)),
            "in fp16 differ from fp32",
        ),
    ],
)
def test_a_model_that_fails_in_fp16_is_refused(
    compute: Callable[..., torch.Tensor], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        write(Net(compute, last=linear(10)), tmp_path)


def convolution_and_norm(compute: Callable[..., torch.Tensor]) -> Net:
    return Net(compute, convolution=nn.Conv2d(3, 8, 3), norm=nn.BatchNorm2d(8))


@pytest.mark.parametrize(
    ("model", "is_folded"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), True),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.BatchNorm2d(8)), False),
        (convolution_and_norm(lambda net, images: net.norm(net.convolution(images)) + net.convolution(images)), False),
        (convolution_and_norm(lambda net, images: (values := net.convolution(images)) + net.norm(values)), False),
    ],
    ids=["plain", "in place", "twice", "skip"],
)
def test_a_norm_of_a_convolution_alone_is_folded(model: nn.Module, is_folded: bool) -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 3, 8, 8)
    for norm in model.eval().modules():
        if isinstance(norm, nn.BatchNorm2d) and norm.running_var is not None:
            norm.running_var.uniform_(2, 3)
    with torch.no_grad():
        expected = model(images)
        assert torch.allclose(fold_batch_norms(model, (images,))(images), expected, atol=1e-5)
    assert is_folded != any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
