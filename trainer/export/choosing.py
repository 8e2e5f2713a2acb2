"""Which precision ships: what was asked for if it passes its gates, else the next in a stated order.

Here: `choose_precision`. int8 and bf16 fall back to fp16, fp16 (after rounds.py has kept what it can in fp32) to fp32,
where the targets have it; a graph that cannot be made falls back as one does that fails its gates. What was tried, what
failed and why is recorded in the workshop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from contracts.artifacts import Attempt, Gate
from contracts.errors import ModelError
from trainer.export import parity, precision, quantize, ranges, reference
from trainer.export.precision import Conversion
from trainer.export.ranges import NodeRange
from trainer.export.rounds import find_fp16
from trainer.export.targets import check_precision, gpu_target
from trainer.export.workshop import BATCH, Workshop, describe_failed

# Samples that an fp16 graph computes in real fp16 arithmetic, in numpy: a second a sample and more.
REFERENCE_SAMPLES = 64
BF16_UNSEEN = "ONNX Runtime's CPU has no bf16 convolution, and there is no GPU: nothing here can judge a bf16 graph"


def choose_precision(work: Workshop) -> None:
    """Make the graph that ships; the fp32 graph is there, and the workshop's precision is fp32.

    Raises:
        ConfigError: fp32 is what is left, and a target does not have it.
    """
    asked = work.settings.precision
    if asked == "fp32" or (asked == "bf16" and _try_bf16(work)):
        return
    found = work.step(
        "ranges",
        ranges.measure_ranges,
        work.path("fp32"),
        work.calibration_inputs,
        batch_size=BATCH,
        threads=work.threads,
    )
    if (asked == "int8" and _try_int8(work, found)) or _try_fp16(work, found):
        return
    check_precision(work.inputs.builder, "fp32")
    work.precision = "fp32"
    work.tried.append(Attempt(precision="fp32", outcome="kept", reason="what was tried before failed its gates"))
    work.tell("fp32, since nothing smaller passed its gates")


def _try_bf16(work: Workshop) -> bool:
    """With a GPU not executed so far: nvidia-modelopt is no dependency of ours."""
    if gpu_target() is None:
        return work.settle(Attempt(precision="bf16", outcome="failed", reason=BF16_UNSEEN))
    graph = work.path("bf16")
    work.step("bf16", precision.convert_with_autocast, work.path("fp32"), graph, precision="bf16")
    found = [*work.judge_graph(graph, "bf16"), work.judge_coverage(graph, "bf16")]
    work.gates += found
    failed = describe_failed(found)
    return work.settle(Attempt(precision="bf16", outcome="failed" if failed else "kept", reason=failed))


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
            samples=work.test_samples,
            ran=parity.name_of_onnx("int8"),
        )
    )
    gates += [work.judge_coverage(graph, "int8"), _speed_of_int8()]
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


def _speed_of_int8() -> Gate:
    """Return the gate `speed`, which nothing decides yet: that int8 is faster than fp16 is why it is asked for."""
    return Gate(
        name="speed",
        precision="int8",
        status="not run",
        ran=f"not run: {'no GPU' if gpu_target() is None else 'not built'}",
        reason="nothing shows that int8 is faster than fp16: an engine of each would have to be timed on the GPU",
    )


def _try_fp16(work: Workshop, found: Mapping[str, NodeRange]) -> bool:
    search = find_fp16(
        work.path("fp32"),
        work.path("fp16"),
        ranges=found,
        judge=partial(_judge_fp16, work),
        measure_errors=partial(_measure_errors, work),
        convert=partial(_convert, work),
    )
    work.tried += search.attempts[:-1]
    work.gates += search.gates
    return work.settle(search.attempts[-1])


def _convert(work: Workshop, source: Path, target: Path, *, keep_fp32: Sequence[str] = ()) -> Conversion:
    return work.step("fp16", precision.convert_to_fp16, source, target, keep_fp32=keep_fp32)


def _measure_errors(work: Workshop) -> Mapping[str, float]:
    (sample,) = work.split.inputs.batches(1, most=1)
    return work.step("fp16 errors", reference.measure_errors, work.path("fp32"), sample)


def _judge_fp16(work: Workshop, graph: Path) -> list[Gate]:
    gates = [*work.judge_graph(graph, "fp16"), work.judge_coverage(graph, "fp16")]
    inputs = next(work.split.inputs.batches(REFERENCE_SAMPLES))
    expected = next(work.reference.batches(len(next(iter(inputs.values())))))
    judge = reference.judge_reference
    return [*gates, work.step("fp16 reference", judge, graph, inputs, expected, work.signature.outputs)]
