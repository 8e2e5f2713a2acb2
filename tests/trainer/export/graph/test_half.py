"""The fp16 graph: every weight in fp16, its answers those of fp32, and what leaves fp16's range stays in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from torch import nn

from contracts.artifacts.signature import Dimension, OutputSpec, Signature, TensorSpec
from contracts.errors import ModelError
from tests.trainer.export.graphs import image_signature
from trainer.export.gates import parity
from trainer.export.gates.arrays import StoredArrays, store_arrays
from trainer.export.graph.half import HalfModel, fold_batch_norms, modules_beyond_fp16, write_fp16
from trainer.export.graph.onnx_graph import OPSET

TEXT = Signature(
    inputs={name: TensorSpec(dtype="int64", shape=["batch", "length"]) for name in ("tokens", "mask")},
    outputs={"logits": OutputSpec(dtype="float32", shape=["batch", 5], compare="classes")},
    dimensions={"length": Dimension(min=8, opt=16, max=32, multiple=8)},
)


def example_of(signature: Signature) -> list[torch.Tensor]:
    if signature is TEXT:
        return [torch.ones(2, 16, dtype=torch.int64) for _ in signature.inputs]
    return [torch.zeros(2, 3, 32, 32)]


def samples_of(signature: Signature, folder: Path, scale: float = 1.0) -> StoredArrays:
    random = np.random.default_rng(0)
    if signature is TEXT:
        mask = np.ones((8, 16), np.int64)
        mask[:4, 9:] = 0
        return store_arrays(folder, [{"tokens": random.integers(0, 99, (8, 16)), "mask": mask}])
    images = (scale * random.standard_normal((8, 3, 32, 32))).astype(np.float32)
    return store_arrays(folder, [{"images": images}])


def write(model: nn.Module, signature: Signature, folder: Path, *, cautious: bool = False) -> tuple[Path, list[str]]:
    """Return the fp16 graph, which answers as the model does in fp32, and what is kept in fp32."""
    samples = samples_of(signature, folder / "samples")
    feed = next(samples.batches(8))
    with torch.inference_mode():
        expected = model.eval()(*(torch.from_numpy(feed[name]) for name in signature.inputs)).numpy()
    path = folder / "model.fp16.onnx"
    example = example_of(signature)
    kept = write_fp16(
        model, path, signature=signature, example=example, samples=samples, opset=OPSET, cautious=cautious
    )
    actual = parity.open_graph(path, threads=1, precision="fp16")(feed)
    found = parity.compare([{"logits": expected}], [actual], outputs=signature.outputs, ran="here", precision="fp16")
    assert found.passed, found
    return path, kept


def fp32_share(path: Path) -> float:
    """Return the share of floating-point weights that are float32."""
    weights = [tensor for tensor in onnx.load(path).graph.initializer if tensor.data_type in (1, 10)]
    sizes = [int(np.prod(tensor.dims)) for tensor in weights]
    wide = [size for size, tensor in zip(sizes, weights, strict=True) if tensor.data_type == TensorProto.FLOAT]
    return sum(wide) / sum(sizes)


def network(name: str) -> nn.Module:
    """Return a small network of transformers with random weights, from inputs to logits."""
    import transformers

    torch.manual_seed(0)
    if name == "bert":
        config = transformers.BertConfig(
            vocab_size=99,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            num_labels=5,
        )
        inner: nn.Module = transformers.BertForSequenceClassification(config)
        return Logits(inner)
    sizes: dict[str, Any] = {
        "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        "vit": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32},
        "swin": {"embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 4, "image_size": 32},
        "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    }
    config = transformers.AutoConfig.for_model(name, num_labels=10, **sizes[name])
    return Logits(transformers.AutoModelForImageClassification.from_config(config))


class Logits(nn.Module):
    """A network of transformers that returns its logits alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, values: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        output = self.inner(values) if mask is None else self.inner(values, attention_mask=mask)
        logits: torch.Tensor = output.logits
        return logits


@pytest.mark.parametrize("name", ["resnet", "vit", "swin", "convnext", "bert"])
def test_all_weights_are_fp16_and_answers_those_of_fp32(name: str, tmp_path: Path) -> None:
    path, kept = write(network(name), TEXT if name == "bert" else image_signature(), tmp_path)
    assert kept == [] and fp32_share(path) == 0.0


class Attention(nn.Module):
    """An attention whose scores are far beyond fp16, between two layers that stay within it."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.query, self.scale = nn.Linear(32, 32), scale

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        query = self.query(values) * self.scale
        scores = (query @ query.transpose(1, 2)).softmax(dim=-1)
        mixed: torch.Tensor = scores @ values
        return mixed


class Planted(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.attention, self.last = Attention(scale), nn.Linear(32 * 32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.attention(images[:, 0]).flatten(1))


def test_a_module_beyond_fp16_stays_in_fp32_by_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path, kept = write(Planted(300.0), image_signature(), tmp_path)
    assert kept == ["attention"]
    assert 0 < fp32_share(path) < 0.2
    feed = (torch.from_numpy(next(samples_of(image_signature(), tmp_path / "again").batches(8))["images"]),)
    assert modules_beyond_fp16(Planted(1.0), feed) == (set(), set())


class NormNet(nn.Sequential):
    """Not a norm itself."""


def test_weights_and_norms_that_stay(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Planted(1.0)
    with torch.no_grad():
        model.attention.query.weight.mul_(1e-6)
        model.attention.query.weight[0, 0] = 1e5
    assert HalfModel(model, (torch.zeros(2, 3, 32, 32),)).kept == {"attention.query"}
    _, kept = write(network("vit"), image_signature(), tmp_path, cautious=True)
    assert kept and all("norm" in name for name in kept)
    named = NormNet(nn.Linear(32, 32), nn.LayerNorm(32))
    assert HalfModel(named, (torch.zeros(2, 32),), cautious=True).kept == {"1"}


class Bare(nn.Module):
    """Computes beyond fp16 in the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3 * 32 * 32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last((images * 1e5).flatten(1)) / 1e5


def test_values_outside_of_all_modules_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="beyond 32752 outside of its submodules"):
        write(Bare(), image_signature(), tmp_path)


class Scaled(nn.Module):
    """A linear layer whose outputs are beyond fp16, and what reads them: with weights, or the model itself."""

    def __init__(self, reader: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.first, self.reader, self.last = nn.Linear(32, 32), reader, nn.Linear(32, 10)
        self.scale = scale
        with torch.no_grad():
            self.first.weight.mul_(1e5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.reader(self.first(images[:, 0, 0])) * self.scale)


@pytest.mark.parametrize(
    ("reader", "scale", "expected"),
    [
        (nn.LayerNorm(32), 1.0, ["first", "reader"]),
        (nn.Sequential(nn.ReLU(), nn.LayerNorm(32)), 1.0, ["first", "reader"]),
        (nn.Identity(), 1e-5, ["first"]),
    ],
    ids=["weights", "no weights", "the model"],
)
def test_what_reads_values_beyond_fp16_takes_them_in_fp32(
    reader: nn.Module, scale: float, expected: list[str], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    path, kept = write(Scaled(reader, scale), image_signature(), tmp_path)
    assert kept == expected and fp32_share(path) < 1.0


def test_one_weight_beyond_fp16_keeps_its_layer_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16), nn.ReLU(), nn.Linear(16, 10))
    with torch.no_grad():
        model[1].weight[0], model[1].bias[0] = 0, -1
        model[3].weight[0, 0] = 1e5
    assert write(model, image_signature(), tmp_path)[1] == ["3"]


class Tied(nn.Module):
    """Two layers with one weight; fp16 cannot hold a constant of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 10)
        self.second.weight = self.first.weight
        self.second.register_buffer("limit", torch.tensor(1e5))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.first(images[:, 0, 0])))


def test_layers_that_share_a_weight_stay_together(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path, kept = write(Tied(), image_signature(), tmp_path)
    assert kept == ["first", "second"] and 0 < fp32_share(path) < 1


class Helper(nn.Module):
    """Makes a tensor of its own in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(images[:, 0]) @ torch.eye(32)).mean(1)


def test_a_model_that_fails_in_fp16_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="in fp16 fails: RuntimeError"):
        write(Helper(), image_signature(), tmp_path)


class Skip(nn.Module):
    """The convolution is read by the norm and by something else."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = self.convolution(images)
        return self.norm(values) + values


class Twice(Skip):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.norm(self.convolution(images)) + self.convolution(images * 2)


class Doubling(nn.Conv2d):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(images)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.BatchNorm2d(8)),
        nn.Sequential(Doubling(3, 8, 3), nn.BatchNorm2d(8)),
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False)),
        Skip(),
        Twice(),
    ],
    ids=["in place", "subclass", "no statistics", "skip", "twice"],
)
def test_norms_that_cannot_be_folded_stay(model: nn.Module) -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 3, 8, 8)
    for norm in model.eval().modules():
        if isinstance(norm, nn.BatchNorm2d) and norm.running_var is not None:
            norm.running_var.uniform_(2, 3)
    expected = model(images)
    assert torch.equal(fold_batch_norms(model, (images,))(images), expected)
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def test_a_norm_of_a_convolution_is_folded_in_fp32() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8)).eval()
    model[1].running_var.uniform_(0.5, 2)
    model[1].running_mean.normal_()
    images = torch.randn(2, 3, 8, 8)
    with torch.inference_mode():
        expected = model(images)
    folded = fold_batch_norms(model, (images,))
    assert [type(module).__name__ for module in folded] == ["Conv2d", "Identity", "ReLU", "BatchNorm2d"]
    with torch.inference_mode():
        assert torch.allclose(folded(images), expected, atol=1e-5)
