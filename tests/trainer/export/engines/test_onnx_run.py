"""The served ONNX file by Triton's settings. The CPU's provider alone runs: nothing of CUDA or TensorRT is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from onnx import numpy_helper

from contracts.errors import CheckFailed, ConfigError
from contracts.serving import ONNXRUNTIME_TENSORRT, TENSORRT, TENSORRT_RTX
from tests.trainer.export.engines.conftest import outcomes
from tests.trainer.export.graphs import image_signature
from trainer.export import choosing, making
from trainer.export.bundle.triton_config import ServedModel, make_config, triton_messages
from trainer.export.engines import onnx_run
from trainer.export.engines.engine_gate import Trial, Trials, judge_engine, make_trials
from trainer.export.engines.onnx_run import OnnxRunner, find_provider, read_settings, runner_here
from trainer.export.gates.arrays import store_arrays
from trainer.export.gates.proof import write_graph_outputs
from trainer.export.gates.sessions import CPU, CUDA, TENSORRT_PROVIDER
from trainer.export.processes import run_step
from trainer.export.workshop import Workshop

MODEL = ServedModel("classifier", ONNXRUNTIME_TENSORRT, "fp16", "ab" * 32, image_signature(), (1, 4, 8), False)


def here(name: str, function: Any, *given: Any, **named: Any) -> Any:
    return function(*given, **named)


def apart(name: str, function: Any, *given: Any, **named: Any) -> Any:
    return run_step(function, *given, **named)[0]


def on_the_cpu(work: Workshop, step: Any = here) -> OnnxRunner:
    model = replace(making._describe_model(work, "fp32", sha256="", has_labels=False), runtime=ONNXRUNTIME_TENSORRT)
    return OnnxRunner(model, CPU, "sm89", step)


def test_settings_are_those_of_the_configuration(tmp_path: Path) -> None:
    level, (first, *rest) = read_settings(make_config(MODEL), tmp_path)
    name, options = first
    assert (level, name, rest) == ("ORT_ENABLE_ALL", TENSORRT_PROVIDER, [CUDA, CPU])
    written = make_config(MODEL).optimization.execution_accelerators.gpu_execution_accelerator[0].parameters
    assert {**options, "trt_engine_cache_path": ""} == {**written, "trt_engine_cache_path": ""}
    assert options["trt_engine_cache_path"] == str(tmp_path)
    assert options["trt_profile_max_shapes"] == "images:8x3x32x32"
    assert read_settings(make_config(replace(MODEL, precision="int8")), tmp_path)[0] == "ORT_DISABLE_ALL"
    assert read_settings(make_config(replace(MODEL, runtime=TENSORRT_RTX)), tmp_path) == ("ORT_ENABLE_ALL", [CUDA, CPU])


def test_the_first_provider_that_loads_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_provider([TENSORRT_PROVIDER, CUDA]) is not None:
        pytest.skip("this machine has one")
    assert find_provider([CUDA, CPU]) == CPU
    assert runner_here(MODEL, here, gpu="sm89") is None, "the CPU does not stand in for a GPU"
    loads = {CUDA}

    def open_loaded(content: Any, *, providers: Any, **settings: Any) -> None:
        if providers[0] not in loads:
            raise ConfigError("no", allowed="another", todo="take it")

    monkeypatch.setattr(onnx_run, "open_session", open_loaded)
    assert runner_here(MODEL, here, gpu="sm89") == OnnxRunner(MODEL, CUDA, "sm89", here)
    loads.add(TENSORRT_PROVIDER)
    found = runner_here(MODEL, here, gpu="sm89")
    assert found is not None and found.provider == TENSORRT_PROVIDER
    assert (found.limits_of("fp32"), found.limits_of("fp16")) == ("tf32", "fp16")
    assert runner_here(replace(MODEL, runtime=TENSORRT_RTX), here, gpu="sm89").provider == CUDA  # type: ignore[union-attr]
    assert runner_here(MODEL, here, gpu=None) is None
    assert runner_here(replace(MODEL, runtime=TENSORRT), here, gpu="sm89") is None


def judge(exported: Any, folder: Path, graph: Path, *, provider: str = CPU) -> Any:
    inputs = store_arrays(folder / "inputs", [{"images": exported.images}])
    reference = write_graph_outputs(exported.fp32, inputs, folder / "outputs", batch_size=8, threads=1)
    trials = replace(make_trials(inputs, reference, None, (1, 4, 8), folder), refuse={})
    runner = OnnxRunner(MODEL, provider, "sm89", apart)
    runner.build(graph, folder / "candidate.fp16.served", precision="fp16")
    path = folder / "candidate.fp16.served"
    return judge_engine(runner, path, trials, MODEL.signature, precision="fp16", folder=folder, name="served")[0]


def test_a_sound_graph_passes_and_its_gate_says_what_ran(exported: Any, tmp_path: Path) -> None:
    gate = judge(exported, tmp_path, exported.fp16)
    assert (gate.name, gate.status) == ("served", "passed")
    assert "CPUExecutionProvider on the CPU, ORT_ENABLE_ALL (sm89)" in gate.ran
    assert {"relative_error at batch 1", "relative_error at batch 8"} <= gate.figures.keys()
    assert not any(name.startswith("refuses") for name in gate.figures)


def test_a_damaged_graph_fails(exported: Any, tmp_path: Path) -> None:
    model = onnx.load(exported.fp16)
    weight = max(model.graph.initializer, key=lambda item: np.prod(item.dims))
    weight.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weight), weight.name))
    onnx.save(model, tmp_path / "damaged.onnx")
    gate = judge(exported, tmp_path, tmp_path / "damaged.onnx")
    assert gate.status == "failed"
    assert "it does not compute what torch computes" in gate.reason


def test_a_provider_that_is_gone_is_no_silent_run_on_the_cpu(exported: Any, tmp_path: Path) -> None:
    if find_provider([CUDA]) is not None:
        pytest.skip("this machine has it")
    with pytest.raises(ConfigError, match=f"has no {CUDA}"):
        judge(exported, tmp_path, exported.fp16, provider=CUDA)


def test_what_does_not_load_or_run_is_the_answer_of_a_check(exported: Any, tmp_path: Path) -> None:
    runner = OnnxRunner(MODEL, CPU, "sm89", here)
    (tmp_path / "not.onnx").write_bytes(b"no graph")
    runner.build(tmp_path / "not.onnx", tmp_path / "broken", precision="fp16")
    with pytest.raises(CheckFailed, match="broken does not load in CPUExecutionProvider"):
        runner.run(tmp_path / "broken", Trials((), {}), tmp_path)
    runner.build(exported.fp16, tmp_path / "sound", precision="fp16")
    small = store_arrays(tmp_path / "small", [{"images": exported.images[:4, :, :8, :8]}])
    with pytest.raises(CheckFailed, match="sound does not run"):
        runner.run(tmp_path / "sound", Trials((Trial("batch 4", small, small, 4),), {}), tmp_path)


def test_graphs_are_timed_in_turns(exported: Any, tmp_path: Path) -> None:
    runner = OnnxRunner(MODEL, CPU, "sm89", here)
    paths = [tmp_path / "a.fp16.served", tmp_path / "b.fp32.served"]
    for path, graph, precision in zip(paths, (exported.fp16, exported.fp32), ("fp16", "fp32"), strict=True):
        runner.build(graph, path, precision=precision)
    found = runner.time(paths, store_arrays(tmp_path / "inputs", [{"images": exported.images[:4]}]), 4)
    assert len(found) == 2 and min(found) > 0


def test_a_session_without_a_node_on_its_provider_has_not_run_there(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's provider that hands every node to the CPU."""
    import onnxruntime  # type: ignore[import-untyped]

    def open_recorded(path: Any, *, level: str, providers: Any) -> Any:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return onnxruntime.InferenceSession(path, options, providers=[CPU])

    monkeypatch.setattr(onnx_run, "open_session", open_recorded)
    runner = OnnxRunner(MODEL, CUDA, "sm89", here)
    runner.build(exported.fp16, tmp_path / "fp16.served", precision="fp16")
    with pytest.raises(CheckFailed, match=f"{CUDA} runs no node of fp16.served"):
        runner.run(tmp_path / "fp16.served", Trials((), {}), tmp_path)


# --- in the loop that chooses a precision -----------------------------------------------------------------------------


def test_the_served_file_is_run_as_its_configuration_says(work: Workshop) -> None:
    builder = replace(work.inputs.builder, module=ONNXRUNTIME_TENSORRT, version="", targets=())
    work.inputs = replace(work.inputs, builder=builder)
    work.settings = work.settings.model_copy(update={"precision": "fp16"})
    work.server = on_the_cpu(work)
    choosing.choose_precision(work)
    assert outcomes(work) == [("fp32", "kept"), ("fp16", "kept")]
    (gate,) = (one for one in work.gates if one.name == "served")
    assert (gate.precision, gate.status, gate.figures["samples"]) == ("fp16", "passed", 400)
    assert gate.figures["fp32 accuracy"] is not None
    for step in (making._place_graph, making._write_files, making._conclude):
        step(work)
    ran = work.candidate_path("fp16", of="served")
    assert (work.shipment / work.served.model).read_bytes() == ran.read_bytes()
    assert work.served.ran == gate.ran
    # The CPU has run it: what a GPU would do stays unproven.
    assert "ONNX Runtime's TensorRT provider" in work.served.unproven and work.verdict == "unproven"
    message = triton_messages().ModelConfig
    shipped, used = (
        text_format.Parse(path.read_text(), message())
        for path in (work.shipment / work.served.config, ran.with_suffix(".pbtxt"))
    )
    assert shipped.optimization == used.optimization
    assert shipped.instance_group == used.instance_group


def test_what_fails_on_the_gpu_alone_falls_back(work: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that computes fp16 wrongly, as no gate of the CPU sees."""
    work.settings = work.settings.model_copy(update={"precision": "fp16"})
    work.server = on_the_cpu(work)
    sound = onnx_run._run

    def run(session: Any, name: str, inputs: Any) -> Any:
        return {one: -array if "fp16" in name else array for one, array in sound(session, name, inputs).items()}

    monkeypatch.setattr(onnx_run, "_run", run)
    choosing.choose_precision(work)
    assert outcomes(work)[-1] == ("fp32", "kept")
    assert "fp16 served: parity" in work.tried[1].reason
    (gate,) = (one for one in work.gates if one.name == "served" and one.precision == "fp32")
    assert gate.status == "passed"


def test_int8_is_timed_by_the_provider_where_no_engine_is_built(
    work: Workshop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work.settings = work.settings.model_copy(update={"precision": "int8"})
    work.server = on_the_cpu(work)
    monkeypatch.setattr(onnx_run, "median_ms", lambda calls: [call() and 1.0 for call in calls])
    choosing.choose_precision(work)
    (speed,) = (one for one in work.gates if one.name == "speed")
    assert (speed.status, speed.reason) == ("failed", "int8 is not faster than fp16 on this GPU")
    assert work.precision == "fp16"


def test_a_served_file_that_fails_in_fp32_too_ends_the_export(
    work: Workshop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work.settings = work.settings.model_copy(update={"precision": "fp32"})
    work.server = on_the_cpu(work)
    monkeypatch.setattr(
        onnx_run, "_run", lambda *given: {"logits": np.zeros((len(given[2]["images"]), 10), np.float32)}
    )
    with pytest.raises(CheckFailed, match="the gate served of fp32 failed on the GPU"):
        choosing.choose_precision(work)
