"""The engine inside of the loop that chooses a precision: each branch, driven by a double of the GPU with a fault."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from contracts.artifacts import Gate
from contracts.artifacts.export import NO_SERVER, Served
from contracts.artifacts.signature import Dimension, OutputSpec, Signature, TensorSpec
from contracts.errors import CheckFailed
from tests.trainer.export.engines.conftest import outcomes
from tests.trainer.export.engines.engine_double import EngineDouble
from tests.trainer.export.graphs import image_signature, write_graph
from trainer.export import choosing, making
from trainer.export.engines.engine_gate import judge_engine, make_trials
from trainer.export.engines.engine_open import NoGpu
from trainer.export.engines.engine_run import GpuRunner
from trainer.export.gates.arrays import store_arrays
from trainer.export.gates.proof import Ends, write_end_inputs, write_graph_outputs
from trainer.export.processes import run_step
from trainer.export.targets import TENSORRT_RTX, Builder, gpu_target
from trainer.export.workshop import Workshop


def choose(work: Workshop, precision: str = "fp16", **faults: Any) -> EngineDouble:
    work.settings = work.settings.model_copy(update={"precision": precision})
    work.runner = double = EngineDouble(work.signature, work.settings.max_batch, **faults)
    choosing.choose_precision(work)
    return double


def verdict_of(work: Workshop) -> str:
    """Return what the gates alone come to: what Triton loads is another matter."""
    work.served = Served.model_construct(unproven=[])
    return work.verdict


def engine_gate(work: Workshop) -> Gate:
    (gate,) = (one for one in work.gates if one.name == "engine sm89" and one.precision == work.precision)
    return gate


def test_a_sound_engine_ships_as_it_was_proven(work: Workshop) -> None:
    double = choose(work)
    assert outcomes(work) == [("fp32", "kept"), ("fp16", "kept")]
    gate = engine_gate(work)
    assert (gate.status, gate.ran) == ("passed", "double 1.0 on a double (sm89)")
    assert gate.figures["samples"] == 400 and gate.figures["fp32 accuracy"] is not None
    assert {"relative_error at batch 1", "relative_error at batch 64"} <= gate.figures.keys()
    assert gate.figures["refuses batch 65"] is True
    proven = work.candidate_path("fp16").read_bytes()
    making._build_engines(work)
    assert list(double.built.values()) == ["fp16"], "built once"
    assert (work.shipment / work.engines[0].name).read_bytes() == proven
    assert verdict_of(work) == "proven"


def test_the_plan_that_has_run_is_what_triton_loads(work: Workshop) -> None:
    work.inputs = replace(work.inputs, builder=Builder("tensorrt", "11.0", ("sm89",)))
    choose(work, "fp16")
    proven = work.candidate_path("fp16").read_bytes()
    for step in (making._place_graph, making._build_engines, making._write_files, making._conclude):
        step(work)
    assert (work.shipment / work.served.model).read_bytes() == proven
    assert work.served.ran == "double 1.0 on a double (sm89)"
    assert (work.served.unproven, work.verdict) == ([NO_SERVER], "proven")


def test_wrong_labels_fall_back_to_fp32(work: Workshop) -> None:
    choose(work, wrong={"fp16": 1})
    assert outcomes(work)[-1] == ("fp32", "kept")
    failed = [attempt for attempt in work.tried if attempt.outcome == "failed"]
    assert failed and all("top1: it gives other answers than torch" in attempt.reason for attempt in failed)
    assert all("metric: accuracy is" in attempt.reason for attempt in failed)
    assert engine_gate(work).status == "passed"


def test_a_failure_at_the_largest_batch_falls_back_and_says_so(work: Workshop) -> None:
    choose(work, fails_at={"fp16": "batch 64"})
    assert outcomes(work)[-1] == ("fp32", "kept")
    assert "engine sm89: out of memory at batch 64" in work.tried[1].reason


def test_a_refused_graph_falls_back(work: Workshop) -> None:
    choose(work, refused=("fp16",))
    assert outcomes(work)[-1] == ("fp32", "kept")
    assert "engine sm89: no fp16" in work.tried[1].reason
    assert engine_gate(work).precision == "fp32"


@pytest.mark.parametrize("fault", [{"fails_at": {"fp32": "batch 64"}}, {"accepts_all": True}])
def test_fp32_that_fails_too_ends_the_export(work: Workshop, fault: dict[str, Any]) -> None:
    reason = "batch 64" if "fails_at" in fault else "runs batch 65, beyond its profile"
    with pytest.raises(CheckFailed, match=f"(?s)nothing left to fall back to.*{reason}"):
        choose(work, refused=("fp16",), **fault)


def test_fp32_that_is_asked_for_is_judged_too(work: Workshop) -> None:
    choose(work, "fp32")
    assert engine_gate(work).status == "passed"


@pytest.mark.parametrize(("int8_ms", "ships"), [(0.9, "int8"), (1.0, "fp16"), (float("nan"), "fp16")])
def test_int8_ships_where_it_is_faster(work: Workshop, int8_ms: float, ships: str) -> None:
    choose(work, "int8", ms={"int8": int8_ms, "fp16": 1.0})
    assert work.precision == ships
    (speed,) = (gate for gate in work.gates if gate.name == "speed")
    assert speed.status == ("passed" if ships == "int8" else "failed")
    if ships == "fp16":
        assert "int8 is not faster than fp16 on this GPU" in work.tried[1].reason
    assert engine_gate(work).status == "passed"
    making._build_engines(work)
    assert verdict_of(work) == "proven"


def test_int8_whose_engine_gives_wrong_labels_falls_back(work: Workshop) -> None:
    # Of 400 samples in batches of 8, one wrong in each: more than the half point that may be lost.
    choose(work, "int8", wrong={"int8": 1}, ms={"int8": 0.5, "fp16": 1.0})
    assert outcomes(work) == [("fp32", "kept"), ("int8", "failed"), ("fp16", "kept")]
    assert "may be lost" in work.tried[1].reason
    assert not any(gate.name == "speed" for gate in work.gates)


def test_int8_without_an_fp16_engine_to_be_faster_than_does_not_ship(work: Workshop) -> None:
    choose(work, "int8", refused=("fp16",), ms={"int8": 0.5})
    assert outcomes(work)[1] == ("int8", "failed")
    assert "there is no fp16 engine to be faster than: no fp16" in work.tried[1].reason
    assert work.precision == "fp32"


def test_without_a_gpu_int8_is_unproven(work: Workshop) -> None:
    work.settings = work.settings.model_copy(update={"precision": "int8"})
    choosing.choose_precision(work)
    assert work.precision == "int8"
    (speed,) = (gate for gate in work.gates if gate.name == "speed")
    assert (speed.status, speed.ran) == ("not run", "not run: no GPU")
    assert speed.reason.startswith("unproven: ")
    assert verdict_of(work) == "unproven"


# --- ends of dimensions -------------------------------------------------------------------------------------------


SIGNATURE = Signature(
    inputs={"images": TensorSpec(dtype="float32", shape=["batch", "length"])},
    outputs={"logits": OutputSpec(dtype="float32", shape=["batch", 1])},
    dimensions={"length": Dimension(min=8, opt=16, max=32, multiple=8)},
)


def judge_lengths(folder: Path, **faults: Any) -> Gate:
    nodes = [onnx.helper.make_node("ReduceSum", ["images", "axes"], ["logits"], keepdims=1)]
    graph = write_graph(folder / "fp32.onnx", nodes, {"axes": np.array([1])}, image=("length",))  # type: ignore[arg-type]
    samples = np.random.default_rng(0).standard_normal((20, 16), dtype=np.float32)
    inputs = store_arrays(folder / "inputs", [{"images": samples}])
    reference = write_graph_outputs(graph, inputs, folder / "outputs", batch_size=8, threads=1)
    given, beyond = write_end_inputs(SIGNATURE, inputs, folder)
    ends = Ends(given, write_graph_outputs(graph, given, folder / "ends", batch_size=4, threads=1), beyond)
    trials = make_trials(inputs, reference, ends, (2, 4, 8), folder)
    double = EngineDouble(SIGNATURE, 8, **faults)
    double.build(graph, folder / "engine", precision="fp32")
    gate, _ = judge_engine(double, folder / "engine", trials, SIGNATURE, precision="fp32", folder=folder)
    return gate


def test_each_end_of_a_dimension_runs_at_the_largest_batch(tmp_path: Path) -> None:
    gate = judge_lengths(tmp_path)
    assert gate.status == "passed"
    assert "relative_error at ends of dimensions, batch 8" in gate.figures
    assert gate.figures["refuses batch 9"] is gate.figures["refuses length 40"] is True


def test_an_engine_that_fails_at_an_end_or_takes_more_has_failed(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="out of memory at ends of dimensions, batch 8"):
        (tmp_path / "a").mkdir()
        judge_lengths(tmp_path / "a", fails_at={"fp32": "ends of dimensions, batch 8"})
    (tmp_path / "b").mkdir()
    gate = judge_lengths(tmp_path / "b", accepts_all=True)
    assert gate.status == "failed"
    assert "it runs batch 9, beyond its profile; it runs length 40, beyond its profile" in gate.reason


@pytest.mark.parametrize("trial", ["batch 4", "batch 2", "batch 8", "ends of dimensions, batch 8"])
def test_other_numbers_at_any_trial_fail(tmp_path: Path, trial: str) -> None:
    gate = judge_lengths(tmp_path, turned_at=trial)
    assert gate.status == "failed"
    assert gate.reason == f"{'parity' if trial == 'batch 4' else trial}: it does not compute what torch computes"


def test_the_builder_of_workstations_takes_the_fp16_graph(exported: Any, tmp_path: Path) -> None:
    """Without a GPU nothing runs it; that the builder takes the graph, and how the runner's calls travel, shows."""
    settings = (image_signature(), (1, 4, 8))
    runner = GpuRunner(Builder(TENSORRT_RTX, version("tensorrt_rtx_cu13"), ("sm89",)), *settings, step=run_apart)
    tensors = runner.build(exported.fp16, tmp_path / "fp16.engine", precision="fp16")
    assert [(tensor.mode, tensor.name) for tensor in tensors] == [("input", "images"), ("output", "logits")]
    inputs = store_arrays(tmp_path / "inputs", [{"images": exported.images[:8]}])
    trials = make_trials(inputs, inputs, None, (1, 4, 8), tmp_path)
    if gpu_target() == "sm89":
        return
    with pytest.raises(NoGpu, match="was built for sm89"):
        runner.run(tmp_path / "fp16.engine", trials, tmp_path)
    with pytest.raises(NoGpu):
        runner.time([tmp_path / "fp16.engine"], inputs, 4)


def run_apart(name: str, function: Any, *given: Any, **named: Any) -> Any:
    return run_step(function, *given, **named)[0]
