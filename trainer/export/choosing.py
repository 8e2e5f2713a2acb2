"""Which precision ships: what was asked for if it passes its gates, else the next in a stated order.

Here: `choose_precision`. On a GPU that engines are for, the engine of each graph decides as well (engine_gate.py), and
int8 must be faster than fp16. int8 falls back to fp16, fp16 (after rounds.py has kept what it can in fp32) to fp32,
where the targets have it; a graph that cannot be made falls back as one does that fails its gates. What was tried, what
failed and why is recorded in the workshop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from contracts.artifacts import Attempt, Gate
from contracts.errors import ModelError
from trainer.export.engines.engine_gate import judge_candidate, judge_speed, require_engine
from trainer.export.gates import parity
from trainer.export.graph import precision, quantize, ranges
from trainer.export.graph.layer_errors import measure_layer_errors
from trainer.export.graph.precision import Conversion
from trainer.export.graph.ranges import NodeRange
from trainer.export.graph.rounds import find_fp16
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
    found = work.step(
        "ranges",
        ranges.measure_ranges,
        work.path("fp32"),
        work.calibration_inputs,
        batch_size=BATCH,
        threads=work.threads,
    )
    if (work.settings.precision == "int8" and _try_int8(work, found)) or _try_fp16(work, found):
        return True
    check_precision(work.inputs.builder, "fp32")
    work.precision = "fp32"
    work.tried.append(Attempt(precision="fp32", outcome="kept", reason="what was tried before failed its gates"))
    work.tell("fp32, since nothing smaller passed its gates")
    return False


def _try_int8(work: Workshop, found: Mapping[str, NodeRange]) -> bool:
    graph = work.path("int8")
    try:
        conversion = _make_int8(work, graph, keep_fp32=ranges.nodes_to_keep(found))
    except ModelError as error:
        return work.settle(Attempt(precision="int8", outcome="failed", reason=str(error)))
    gates = [*work.judge_graph(graph, "int8"), ranges.judge_ranges(found, conversion.kept_fp32, precision="int8")]
    gates.append(
        work.bundle.judge_metric(
            precision="int8",
            reference=work.scores["fp32"],
            found=work.scores["int8"],
            samples=work.split.samples,
            ran=parity.name_of_onnx("int8"),
        )
    )
    gates.append(work.judge_coverage(graph, "int8"))
    if not describe_failed(gates):
        gates += judge_candidate(work, graph, "int8")
    if not describe_failed(gates):
        peer = partial(_convert, work, work.path("fp32"), keep_fp32=ranges.nodes_to_keep(found))
        gates.append(judge_speed(work, peer))
    work.gates += gates
    failed = describe_failed(gates)
    return work.settle(
        Attempt(
            precision="int8",
            kept_fp32=conversion.kept_fp32,
            outcome="failed" if failed else "kept",
            reason=failed,
        )
    )


def _make_int8(work: Workshop, graph: Path, *, keep_fp32: Sequence[str]) -> Conversion:
    wide = work.folder / "model.int8-fp32.onnx"
    work.step(
        "int8",
        quantize.quantize_to_int8,
        work.path("fp32"),
        wide,
        calibration=work.calibration_inputs,
        batch_size=BATCH,
        threads=work.threads,
        work=work.folder,
    )
    # What is not int8 is fp16: sm75 knows no other, and elsewhere it is faster.
    conversion = _convert(work, wide, graph, keep_fp32=keep_fp32)
    wide.unlink()
    return conversion


def _try_fp16(work: Workshop, found: Mapping[str, NodeRange]) -> bool:
    search = find_fp16(
        work.path("fp32"),
        work.path("fp16"),
        ranges=found,
        judge=partial(_judge_fp16, work),
        measure_errors=partial(measure_layer_errors, work),
        convert=partial(_convert, work),
    )
    work.tried += search.attempts[:-1]
    work.gates += search.gates
    return work.settle(search.attempts[-1])


def _convert(work: Workshop, source: Path, target: Path, *, keep_fp32: Sequence[str] = ()) -> Conversion:
    return work.step("fp16", precision.convert_to_fp16, source, target, keep_fp32=keep_fp32)


def _judge_fp16(work: Workshop, graph: Path) -> list[Gate]:
    gates = [*work.judge_graph(graph, "fp16"), work.judge_coverage(graph, "fp16")]
    return gates if describe_failed(gates) else [*gates, *judge_candidate(work, graph, "fp16")]
