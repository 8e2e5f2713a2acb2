"""A network or its example batch that is not as the task's signature says is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from contracts.errors import ModelError
from tests.trainer.export.test_onnx_graph import SIGNATURE, Reader
from trainer.export.onnx_graph import export_graph


def example(length: int = 16) -> list[torch.Tensor]:
    return [torch.zeros(2, length, dtype=torch.int64), torch.zeros(2, 4)]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (example(1), "length is 1 in the example batch"),
        (example(12), "length is 12 in the example batch"),
        ([example()[0].int(), example()[1]], r"tokens of the example batch is int32 \[2, 16\]"),
        ([example()[0], torch.zeros(2, 5)], r"table of the example batch is float32 \[2, 5\]"),
    ],
)
def test_an_example_of_other_shapes(tmp_path: Path, batch: Sequence[torch.Tensor], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        export_graph(Reader(), tmp_path / "fp32.onnx", signature=SIGNATURE, example=batch)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({"scores": SIGNATURE.outputs["scores"]}, "the task's signature names scores"),
        (
            {**SIGNATURE.outputs, "price": OutputSpec(dtype="int64", shape=["batch"])},
            r"price of fp32\.onnx is float32 \['batch'\], the task's signature says int64",
        ),
    ],
)
def test_other_outputs(tmp_path: Path, outputs: dict[str, OutputSpec], words: str) -> None:
    signature = SIGNATURE.model_copy(update={"outputs": outputs})
    with pytest.raises(ModelError, match=words):
        export_graph(Reader().eval(), tmp_path / "fp32.onnx", signature=signature, example=example())


@pytest.mark.parametrize("name", ["file", "allow_pickle"])
def test_names_that_numpy_keeps_for_itself(name: str) -> None:
    """`numpy.savez(stream, **arrays)` is how inputs and outputs travel in a .npz file."""
    one, other = TensorSpec(dtype="float32", shape=["batch"]), OutputSpec(dtype="float32", shape=["batch"])
    for inputs, outputs in (({name: one}, {"y": other}), ({"x": one}, {name: other})):
        with pytest.raises(ValueError, match=f"{name}: numpy.savez"):
            Signature(inputs=inputs, outputs=outputs)
