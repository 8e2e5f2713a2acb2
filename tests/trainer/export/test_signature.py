"""Graphs, engines and parity by a signature: several inputs and outputs, whole numbers, dimensions that vary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from contracts.artifacts.signature import Dimension, OutputSpec, Signature, TensorSpec
from contracts.errors import ModelError
from tests.trainer.export.graphs import describe, run_outputs
from trainer.export.engines.engine import build_engine, profile_shapes
from trainer.export.gates import parity
from trainer.export.gates.arrays import random_inputs, store_arrays
from trainer.export.gates.proof import measure_batches
from trainer.export.gates.tensors import kind_of, restore_outputs, run_torch
from trainer.export.graph.half import write_fp16
from trainer.export.graph.onnx_graph import export_graph
from trainer.export.targets import TENSORRT_RTX, Builder
from trainer.model.signature import name_outputs

SIGNATURE = Signature(
    inputs={
        "tokens": TensorSpec(dtype="int64", shape=["batch", "length"]),
        "table": TensorSpec(dtype="float32", shape=["batch", 4]),
    },
    outputs={
        "scores": OutputSpec(dtype="float32", shape=["batch", 7], compare="classes"),
        "price": OutputSpec(dtype="float32", shape=["batch"]),
        "states": OutputSpec(dtype="float32", shape=["batch", "length", 8]),
    },
    dimensions={"length": Dimension(min=8, opt=16, max=64, multiple=8)},
)


class Reader(nn.Module):
    """Text and a table in; scores, a number and a vector for each token out."""

    def __init__(self, kind: str = "tuple") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.words, self.mix = nn.Embedding(100, 8), nn.Linear(8, 8)
        self.score, self.price = nn.Linear(12, 7), nn.Linear(12, 1)

    def forward(self, tokens: torch.Tensor, table: torch.Tensor) -> Any:
        states = torch.relu(self.mix(self.words(tokens)))
        joined = torch.cat([states.mean(dim=1), table], dim=1)
        found = self.score(joined), self.price(joined)[:, 0], states
        if self.kind == "tuple":
            return found
        # In another order than the signature's.
        return {"states": found[2], "price": found[1], "scores": found[0]}


def example(length: int = 16) -> list[torch.Tensor]:
    return [torch.zeros(2, length, dtype=torch.int64), torch.zeros(2, 4)]


def write(model: nn.Module, folder: Path, signature: Signature = SIGNATURE, **settings: Any) -> Path:
    given = {"example": example(), "opset": 20, **settings}
    export_graph(model, folder / "fp32.onnx", signature=signature, **given)
    return folder / "fp32.onnx"


def some_inputs(samples: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(length)
    tokens = random.integers(0, 100, (samples, length))
    return {"tokens": tokens, "table": random.standard_normal((samples, 4), dtype=np.float32)}


@pytest.fixture(scope="module")
def fp32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(Reader().eval(), tmp_path_factory.mktemp("reader"))


def test_names_types_and_dimensions_are_the_signature_s(fp32: Path, tmp_path: Path) -> None:
    expected = (
        {"tokens": ["batch", "length"], "table": ["batch", 4]},
        {"scores": ["batch", 7], "price": ["batch"], "states": ["batch", "length", 8]},
    )
    assert describe(fp32) == expected
    assert [item.type.tensor_type.elem_type for item in onnx.load(fp32).graph.input] == [7, 1]
    samples = store_arrays(tmp_path / "samples", [some_inputs(8, 16)])
    settings = {"signature": SIGNATURE, "example": example(), "samples": samples, "opset": 20}
    assert write_fp16(Reader().eval(), tmp_path / "fp16.onnx", **settings) == []
    assert describe(tmp_path / "fp16.onnx") == expected


@pytest.mark.parametrize(("samples", "length"), [(1, 8), (3, 16), (5, 64)])
def test_the_graph_takes_all_sizes_of_a_dimension(fp32: Path, samples: int, length: int) -> None:
    inputs = some_inputs(samples, length)
    found, expected = run_outputs(fp32, **inputs), run_torch(Reader().eval(), SIGNATURE, inputs)
    assert list(expected) == list(SIGNATURE.outputs)
    for name, array in expected.items():
        assert np.allclose(found[name], array, atol=1e-5), name


def test_a_dictionary_of_outputs_goes_by_its_names(fp32: Path, tmp_path: Path) -> None:
    model = Reader("dict").eval()
    inputs = some_inputs(3, 24)
    expected, found = run_outputs(fp32, **inputs), run_outputs(write(model, tmp_path), **inputs)
    assert all(np.array_equal(expected[name], found[name]) for name in SIGNATURE.outputs)
    for one in (model, Reader().eval()):
        outputs = one(*example())
        named = {name: tensor.detach().numpy() for name, tensor in name_outputs(outputs, SIGNATURE).items()}
        again = restore_outputs(named, kind_of(outputs))
        assert type(again) is type(outputs)
        assert name_outputs(again, SIGNATURE).keys() == named.keys()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"example": example(1)}, "length is 1 in the example batch"),
        ({"example": example(12)}, "length is 12 in the example batch"),
        ({"example": [example()[0].int(), example()[1]]}, r"tokens of the example batch is int32 \[2, 16\]"),
        ({"example": [example()[0], torch.zeros(2, 5)]}, r"table of the example batch is float32 \[2, 5\]"),
    ],
)
def test_an_example_that_is_not_as_the_signature_says_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        write(Reader(), tmp_path, **change)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({"scores": SIGNATURE.outputs["scores"]}, "the task's signature names scores"),
        (
            {**SIGNATURE.outputs, "scores": OutputSpec(dtype="float32", shape=["batch", 8])},
            r"output scores of fp32\.onnx is float32 \['batch', 7\], the task's signature says float32 \['batch', 8\]",
        ),
        (
            {**SIGNATURE.outputs, "price": OutputSpec(dtype="int64", shape=["batch"])},
            r"output price of fp32\.onnx is float32 \['batch'\], the task's signature says int64",
        ),
    ],
)
def test_outputs_that_are_not_as_the_signature_says_are_refused(
    tmp_path: Path, outputs: dict[str, OutputSpec], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        write(Reader().eval(), tmp_path, SIGNATURE.model_copy(update={"outputs": outputs}))


def test_an_engine_has_a_profile_for_each_dimension(fp32: Path, tmp_path: Path) -> None:
    assert profile_shapes(SIGNATURE, (1, 4, 8)) == {
        "tokens": [(1, 8), (4, 16), (8, 64)],
        "table": [(1, 4), (4, 4), (8, 4)],
    }
    builder = Builder(TENSORRT_RTX, "installed", ("sm89",))
    engine = tmp_path / "engine"
    tensors = build_engine(fp32, engine, builder=builder, signature=SIGNATURE, opt_batch=4, max_batch=8)
    assert engine.stat().st_size > 0
    assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in tensors} == {
        "tokens": ("int64", [-1, -1]),
        "table": ("float", [-1, 4]),
        "scores": ("float", [-1, 7]),
        "price": ("float", [-1]),
        "states": ("float", [-1, -1, 8]),
    }


def test_gates_go_over_all_outputs_and_samples_of_several_lengths(fp32: Path, tmp_path: Path) -> None:
    model = Reader().eval()
    inputs = store_arrays(tmp_path / "inputs", [some_inputs(9, 16), some_inputs(6, 32), random_inputs(SIGNATURE, 5)])
    assert [part.samples for part in inputs.parts] == [9, 6, 5]
    reference = store_arrays(tmp_path / "torch", (run_torch(model, SIGNATURE, one) for one in inputs.batches(4)))
    run = parity.open_graph(fp32, threads=1)
    found = store_arrays(tmp_path / "onnx", (run(one) for one in inputs.batches(3)))
    compared = parity.compare_stored(reference, found, SIGNATURE, ran="test", precision="fp32")
    assert (compared.passed, compared.samples, set(compared.outputs)) == (True, 20, set(SIGNATURE.outputs))
    gates = {gate.name: gate for gate in parity.judge(compared, "fp32")}
    assert {"relative_error of price", "min_cosine of states"} <= set(gates["parity"].figures)
    assert max(measure_batches(fp32, inputs, [1, 4, 12], threads=1).values()) < 1e-5
    # Whole numbers are no activations.


def outputs_of(scores: np.ndarray, price: np.ndarray) -> tuple[list[dict[str, np.ndarray]], dict[str, OutputSpec]]:
    return [{"scores": scores, "price": price}], {name: SIGNATURE.outputs[name] for name in ("scores", "price")}


def test_the_worst_output_counts() -> None:
    scores = np.tile(np.eye(7, dtype=np.float32) * 10, (4, 1))
    price = np.tile(np.linspace(-1, 1, 7).astype(np.float32), 4)
    expected, specs = outputs_of(scores, price)
    found, _ = outputs_of(scores, price + np.float32(0.1) * np.tile(np.arange(7), 4))
    compared = parity.compare(expected, found, outputs=specs, ran="test", precision="fp16")
    assert not compared.passed
    assert compared.relative_error == compared.outputs["price"].relative_error == pytest.approx(0.3)
    assert compared.outputs["scores"].relative_error == 0
    # One number a sample has no direction: the samples' numbers are the vector, and a sign at 0 says nothing.
    assert 0.9 < (compared.outputs["price"].min_cosine or 0) < 1
    tiny, _ = outputs_of(scores, price - np.float32(1e-6))
    assert parity.compare(expected, tiny, outputs=specs, ran="test", precision="fp16").passed
    failed, top1 = parity.judge(compared, "fp16")
    assert (failed.status, top1.status) == ("failed", "passed")


def test_outputs_that_are_values_have_no_answers() -> None:
    price = np.linspace(-1, 1, 7).astype(np.float32)
    specs = {"price": SIGNATURE.outputs["price"]}
    compared = parity.compare([{"price": price}], [{"price": price}], outputs=specs, ran="test", precision="fp32")
    assert (compared.top1_agreement, compared.outputs) == (None, {})
    assert [gate.name for gate in parity.judge(compared, "fp32")] == ["parity"]


@pytest.mark.parametrize(("wrong", "status"), [(1, "passed"), (60, "failed")])
def test_of_many_answers_a_ten_thousandth_may_be_others(wrong: int, status: str) -> None:
    specs = {"scores": OutputSpec(dtype="float32", shape=["batch", 5, 64, 64], compare="classes")}
    classes = np.arange(10 * 64 * 64).reshape(10, 64, 64) % 5
    scores = np.moveaxis(np.eye(5, dtype=np.float32)[classes], 3, 1)
    scores[0, :, 0] = 0.5
    found = scores.copy()
    found[0, :, 0] += np.float32(1e-6) * np.arange(5)[:, None] * (np.arange(64) < wrong)
    compared = parity.compare([{"scores": scores}], [{"scores": found}], outputs=specs, ran="test", precision="fp32")
    numbers, answers = parity.judge(compared, "fp32")
    assert (numbers.status, answers.status) == ("passed", status)
    assert answers.limits == {"agreement": parity.MANY_ANSWERS_AGREEMENT}


@pytest.mark.parametrize("name", ["file", "allow_pickle"])
def test_names_that_numpy_keeps_for_itself_are_refused(name: str) -> None:
    """`numpy.savez(stream, **arrays)` is how inputs and outputs travel in a .npz file."""
    one, other = TensorSpec(dtype="float32", shape=["batch"]), OutputSpec(dtype="float32", shape=["batch"])
    for inputs, outputs in (({name: one}, {"y": other}), ({"x": one}, {name: other})):
        with pytest.raises(ValueError, match=f"{name}: numpy.savez"):
            Signature(inputs=inputs, outputs=outputs)
