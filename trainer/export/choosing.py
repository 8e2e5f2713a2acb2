"""Which precision ships: what was asked for if it passes its gates, else the next in a stated order.

int8 falls back to fp16, fp16 to a second try that keeps more in fp32 (half.py), then to fp32 where the targets have it;
a graph that cannot be made falls back as one does that fails its gates. On a GPU that engines are for, the engine of
each graph decides as well (engine_gate.py), and int8 must be faster than fp16. What was tried, what failed and why is
recorded in the workshop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from contracts.artifacts import Attempt, Gate
from contracts.errors import ModelError
from trainer.export.engines.engine_gate import judge_candidate, judge_speed, require_engine
from trainer.export.gates import parity
from trainer.export.gates.arrays import StoredArrays
from trainer.export.gates.scores import judge_scores
from trainer.export.graph import quantize
from trainer.export.graph.onnx_graph import EXAMPLE_BATCH, OPSET
from trainer.export.inputs import Inputs
from trainer.export.targets import check_precision
from trainer.export.workshop import BATCH, Workshop, describe_failed


def choose_precision(work: Workshop) -> None:
    """Make the graph that ships; the fp32 graph is there, and the workshop's precision is fp32.

    Raises:
        ConfigError: fp32 is what is left, and a target does not have it.
        CheckFailed: fp32 is what is left, and its engine fails.
    """
    if work.settings.precision != "fp32" and _try_smaller(work):
        return
    gates = judge_candidate(work, work.path("fp32"), "fp32")
    work.gates += gates
    require_engine(gates)


def _try_smaller(work: Workshop) -> bool:
    """Try int8, where it is asked for, and fp16; where nothing passes, fp32 is what ships."""
    if work.settings.precision == "int8" and _try_int8(work):
        return True
    if _try_fp16(work) or _try_fp16(work, cautious=True):
        return True
    check_precision(work.inputs.builder, "fp32")
    work.precision = "fp32"
    work.tried.append(Attempt(precision="fp32", outcome="kept", reason="what was tried before failed its gates"))
    work.tell("fp32, since nothing smaller passed its gates")
    return False


def _try_int8(work: Workshop) -> bool:
    graph, base = work.path("int8"), work.folder / "model.int8-base.onnx"
    try:
        # What is not int8 is fp16: sm75 knows no other, and elsewhere it is faster.
        kept = _write_fp16(work, base)
        work.step(
            "int8",
            quantize.quantize_to_int8,
            base,
            graph,
            calibration=work.calibration_inputs,
            batch_size=BATCH,
            threads=work.threads,
            work=work.folder,
        )
    except ModelError as error:
        return work.settle(Attempt(precision="int8", outcome="failed", reason=str(error)))
    gates = work.judge_graph(graph, "int8")
    gates.append(
        judge_scores(
            precision="int8",
            reference=work.scores["fp32"],
            found=work.scores["int8"],
            samples=work.split.samples,
            ran=parity.name_of_onnx("int8"),
        )
    )
    if not describe_failed(gates):
        gates += judge_candidate(work, graph, "int8")
    if not describe_failed(gates):
        gates.append(judge_speed(work, base))
    base.unlink()
    return _settle(work, "int8", kept, gates)


def _try_fp16(work: Workshop, *, cautious: bool = False) -> bool:
    graph = work.path("fp16")
    try:
        kept = _write_fp16(work, graph, cautious=cautious)
    except ModelError as error:
        return work.settle(Attempt(precision="fp16", outcome="failed", reason=str(error)))
    gates = work.judge_graph(graph, "fp16")
    if not describe_failed(gates):
        gates += judge_candidate(work, graph, "fp16")
    return _settle(work, "fp16", kept, gates)


def _write_fp16(work: Workshop, graph: Path, *, cautious: bool = False) -> list[str]:
    return work.step(
        "fp16",
        _write_half,
        work.inputs,
        graph,
        work.calibration_inputs,
        threads=work.threads,
        cautious=cautious,
    )


def _write_half(inputs: Inputs, path: Path, samples: StoredArrays, *, threads: int, cautious: bool) -> list[str]:
    # Here: they import torch.
    import torch

    from trainer.export.graph import half
    from trainer.model.build import example_inputs

    torch.set_num_threads(threads)
    task = inputs.load_task()
    example = example_inputs(task, EXAMPLE_BATCH)
    return half.write_fp16(
        inputs.load_model(),
        path,
        signature=task.signature,
        example=example,
        samples=samples,
        opset=OPSET,
        cautious=cautious,
    )


def _settle(work: Workshop, precision: str, kept: list[str], gates: list[Gate]) -> bool:
    work.gates += gates
    failed = describe_failed(gates)
    outcome: Literal["failed", "kept"] = "failed" if failed else "kept"
    return work.settle(Attempt(precision=precision, kept_fp32=kept, outcome=outcome, reason=failed))
