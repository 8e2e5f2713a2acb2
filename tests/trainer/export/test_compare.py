"""Gates `parity` and `metric`: what passes, what fails, and what decides."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from contracts.artifacts import Gate, Headline
from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from contracts.errors import DataError
from trainer.export.arrays import Array, Arrays
from trainer.export.compare import ModelFile, judge_metric, judge_parity, make_trials

RANDOM = np.random.default_rng(0)
SIGNATURE = Signature(
    inputs={"rows": TensorSpec(dtype="float32", shape=["batch", 6])},
    outputs={
        "scores": OutputSpec(dtype="float32", shape=["batch", 6], compare="classes"),
        "price": OutputSpec(dtype="float32", shape=["batch"], compare="values"),
    },
)
ROWS = RANDOM.standard_normal((24, 6)).astype(np.float32)


def model(inputs: Mapping[str, Array]) -> Arrays:
    return {"scores": inputs["rows"] * 3, "price": inputs["rows"].sum(axis=1)}


def judge(run: object, *, precision: str = "fp16", reference: object = model) -> Gate:
    batches = [{"rows": ROWS[start : start + 8]} for start in range(0, len(ROWS), 8)]
    trials = make_trials([(batch, reference(batch)) for batch in batches], [], (8, 16))
    return judge_parity(run, trials, SIGNATURE, ModelFile(precision, "model.onnx", "a test"))


def test_equal_outputs_pass_at_every_batch_size() -> None:
    gate = judge(model)
    assert (gate.status, gate.figures["samples"]) == ("passed", 24)
    assert {name for name in gate.figures if "relative_error" in name} == {
        "relative_error",
        "relative_error at batch 1",
        "relative_error at batch 16",
    }


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (lambda inputs: {**model(inputs), "price": model(inputs)["price"] + 0.1}, "output price"),
        (lambda inputs: {**model(inputs), "scores": model(inputs)["scores"][:, ::-1]}, "output scores"),
        (lambda inputs: {**model(inputs), "price": model(inputs)["price"] * np.nan}, "output price"),
        (lambda inputs: {**model(inputs), "price": model(inputs)["price"][:, None]}, "output price"),
        (lambda inputs: model({"rows": inputs["rows"] - inputs["rows"].mean(axis=0) / 50}), "batch 1: "),
        (lambda inputs: model({"rows": inputs["rows"] * (len(inputs["rows"]) != 16)}), "batch 16: "),
    ],
)
def test_other_outputs_fail_and_are_named(wrong: object, where: str) -> None:
    gate = judge(wrong)
    assert gate.status == "failed" and where in gate.reason
    assert gate.model_validate_json(gate.model_dump_json()) == gate


def test_the_limit_is_that_of_the_precision() -> None:
    def rounded(inputs: Mapping[str, Array]) -> Arrays:
        return {name: array.astype(np.float16).astype(np.float32) for name, array in model(inputs).items()}

    assert judge(rounded, precision="fp16").status == "passed"
    assert judge(rounded, precision="fp32").status == "failed"


@pytest.mark.parametrize(("factor", "words"), [(0.0, "training has collapsed"), (np.inf, "training has diverged")])
def test_a_model_that_says_nothing_is_the_training_s_fault(factor: float, words: str) -> None:
    def broken(inputs: Mapping[str, Array]) -> Arrays:
        return {**model(inputs), "scores": np.full_like(inputs["rows"], 1.0) * factor}

    with pytest.raises(DataError) as caught:
        judge(broken, reference=broken)
    assert words in caught.value.todo


@pytest.mark.parametrize(
    ("metric", "direction", "samples", "expected", "actual", "status"),
    [
        ("accuracy", "max", 1000, 0.9, 0.8951, "passed"),
        ("accuracy", "max", 1000, 0.9, 0.8949, "failed"),
        ("accuracy", "max", 1000, 0.9, 0.95, "passed"),
        ("accuracy", "max", 30, 20 / 30, 19 / 30, "passed"),
        ("accuracy", "max", 30, 20 / 30, 18 / 30, "failed"),
        ("error", "min", 1000, 40.0, 40.19, "passed"),
        ("error", "min", 1000, 40.0, 40.21, "failed"),
        ("error", "min", 1000, 0.0, 1e-5, "passed"),
        ("error", "min", 1000, 40.0, None, "failed"),
    ],
)
def test_little_of_the_headline_may_be_lost(
    metric: str, direction: str, samples: int, expected: float, actual: float | None, status: str
) -> None:
    values = {} if actual is None else {metric: actual}
    headline = Headline.model_validate({"metric": metric, "direction": direction})
    gate = judge_metric({metric: expected}, values, headline, ModelFile("int8", "m", "a test"), samples=samples)
    assert gate.status == status
