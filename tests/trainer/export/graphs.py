"""Small random networks with their signatures and inputs, and ONNX files run and described by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from contracts.artifacts.signature import Dimension, OutputSpec, Signature, TensorSpec
from trainer.export.arrays import Array, Arrays
from trainer.export.engine import open_graph
from trainer.export.onnx_graph import EXAMPLE_BATCH, export_graph

_SIZES: dict[str, dict[str, Any]] = {
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    "swin": {"embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 4, "image_size": 32},
    "bert": {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
}


def image_signature(size: int = 32, classes: int = 10) -> Signature:
    """Return the signature of an image classifier."""
    return Signature(
        inputs={"images": TensorSpec(dtype="float32", shape=["batch", 3, size, size])},
        outputs={"logits": OutputSpec(dtype="float32", shape=["batch", classes], compare="classes")},
    )


def signature_of(name: str) -> Signature:
    """Return the signature of a network."""
    if name == "bert":
        return Signature(
            inputs={tensor: TensorSpec(dtype="int64", shape=["batch", "length"]) for tensor in ("tokens", "mask")},
            outputs={"logits": OutputSpec(dtype="float32", shape=["batch", 10], compare="classes")},
            dimensions={"length": Dimension(min=8, opt=16, max=32, multiple=8)},
        )
    return image_signature()


def network(name: str) -> nn.Module:
    """Return a small network of transformers with random weights, from inputs to logits."""
    import transformers

    torch.manual_seed(0)
    kind = "SequenceClassification" if name == "bert" else "ImageClassification"
    config = transformers.AutoConfig.for_model(name, num_labels=10, **_SIZES[name])
    return Logits(getattr(transformers, f"AutoModelFor{kind}").from_config(config)).eval()


class Logits(nn.Module):
    """A network of transformers that returns its logits alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, values: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        output = self.inner(values) if mask is None else self.inner(values, attention_mask=mask)
        logits: torch.Tensor = output.logits
        return logits


def inputs_of(signature: Signature, samples: int = 8, length: int = 16) -> Arrays:
    """Return random inputs of a signature."""
    random = np.random.default_rng(length)
    inputs: Arrays = {}
    for name, spec in signature.inputs.items():
        shape = [{"batch": samples, "length": length}.get(str(size), size) for size in spec.shape]
        is_float = spec.dtype == "float32"
        values = random.standard_normal(shape) if is_float else random.integers(1, 99, shape)
        inputs[name] = (values != 3 if name == "mask" else values).astype(spec.dtype)
    return inputs


def example_of(signature: Signature) -> list[torch.Tensor]:
    """Return the example batch of a signature."""
    return [torch.from_numpy(array) for array in inputs_of(signature, EXAMPLE_BATCH).values()]


def write_fp32(model: nn.Module, path: Path, signature: Signature | None = None) -> Path:
    """Write a model, an image classifier by default, as an fp32 graph."""
    signature = signature or image_signature()
    export_graph(model, path, signature=signature, example=example_of(signature))
    return path


def run_outputs(path: Path, **inputs: Array) -> Arrays:
    """Return the outputs of an ONNX file by name, computed without optimisation."""
    return open_graph(path, threads=1, precision="int8")(inputs)


def describe(path: Path) -> tuple[dict[str, list[str | int]], dict[str, list[str | int]]]:
    """Return names and shapes of a file's inputs and outputs; a dynamic dimension is given by its name."""
    graph = onnx.load(path).graph
    inputs, outputs = (
        {item.name: [size.dim_param or size.dim_value for size in item.type.tensor_type.shape.dim] for item in items}
        for items in (graph.input, graph.output)
    )
    return inputs, outputs
