"""Runs a graph in ONNX's reference evaluator: numpy, one node after the other, with fp16 that is fp16.

Here: `evaluate` and `judge_reference` (what an fp16 graph gives when it really computes in fp16: ONNX Runtime on a CPU
does not), and `measure_errors` (which node loses most). Run by trainer/export/task.py. It is slow: seconds to minutes
a sample for models larger than the digits', so the judge gives up in time and says so. Where numpy adds up products of
fp16 numbers it does so in float32; a GPU may not.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from contracts.artifacts.export import Figure, Gate
from contracts.artifacts.signature import OutputSpec
from trainer.export import parity
from trainer.export.arrays import Arrays, join_batches
from trainer.export.nodes import lift_constants, name_nodes, reads

if TYPE_CHECKING:
    import onnx

Values = Mapping[str, npt.NDArray[Any]]
OnNode = Callable[["onnx.NodeProto", Values, Values], None]
"""Told of a node, what it read and what it wrote, by name."""

# Samples at once: im2col of a convolution makes nine times the activation of it.
_CHUNK = 8


class TooSlow(Exception):
    """The time that was given for an evaluation is over."""


@dataclass
class ReferenceGraph:
    """A graph that is run node by node; values are let go after their last reader."""

    path: Path
    _nodes: list[onnx.NodeProto] = field(init=False)
    _opsets: dict[str, int] = field(init=False)
    _constants: dict[str, npt.NDArray[Any]] = field(init=False)
    _last_reads: list[list[str]] = field(init=False)
    _outputs: list[str] = field(init=False)
    _runners: dict[tuple[str, ...], Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        import onnx

        model = onnx.load(self.path)
        name_nodes(model.graph)
        lift_constants(model.graph)
        self._nodes = list(model.graph.node)
        self._opsets = {item.domain: item.version for item in model.opset_import}
        self._constants = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
        self._outputs = [item.name for item in model.graph.output]
        last = {name: place for place, node in enumerate(self._nodes) for name in (*node.output, *reads(node))}
        self._last_reads = [[] for _ in self._nodes]
        for name, place in last.items():
            if name not in self._outputs and name not in self._constants:
                self._last_reads[place].append(name)

    def run(
        self, batch: Values, *, on_node: OnNode | None = None, deadline: float = float("inf")
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the outputs of a batch by name.

        Args:
            batch: Inputs by name.
            on_node: Called after each node.
            deadline: Value of time.monotonic() after which no node is started.

        Raises:
            TooSlow: The deadline is over.
            NotImplementedError: The evaluator lacks an operator.
        """
        values: dict[str, npt.NDArray[Any]] = {**self._constants, **batch}
        for node, finished in zip(self._nodes, self._last_reads, strict=True):
            if time.monotonic() > deadline:
                raise TooSlow
            inputs = {name: values[name] for name in reads(node)}
            outputs = self.run_node(node, inputs)
            if on_node is not None:
                on_node(node, inputs, outputs)
            values.update(outputs)
            for name in finished:
                del values[name]
        return {name: values[name] for name in self._outputs}

    def run_node(self, node: onnx.NodeProto, inputs: Values) -> dict[str, npt.NDArray[Any]]:
        """Run one node on values of any precision; return what it writes, by name."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in inputs.items()}
        outputs = [name for name in node.output if name]
        key = (node.name, *map(str, kinds.values()))
        if key not in self._runners:
            # A graph of one node, with types: operators that are defined by others need them.
            graph = onnx.helper.make_graph(
                [node],
                node.name,
                [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()],
                [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
            )
            self._runners[key] = ReferenceEvaluator(graph, opsets=self._opsets, new_ops=[_gather_elements()])
        # What overflows is counted, not warned of.
        with np.errstate(all="ignore"):
            found = self._runners[key].run(outputs, dict(inputs))
        return {name: np.asarray(value) for name, value in zip(outputs, found, strict=True)}


@functools.cache
def _gather_elements() -> Any:
    """Return an operator in place of the evaluator's own, which fails on dimensions above 64 (numpy.choose)."""
    from onnx.reference.op_run import OpRun

    class GatherElements(OpRun):
        def _run(self, data: Any, indices: Any, axis: int | None = None) -> tuple[Any]:
            axis = axis or 0
            taken = [
                slice(None) if place == axis % data.ndim else slice(size) for place, size in enumerate(indices.shape)
            ]
            return (np.take_along_axis(data[tuple(taken)], indices, axis),)

    return GatherElements


def evaluate(graph: Path, inputs: Arrays) -> Arrays:
    """Return the outputs by name that the reference evaluator computes."""
    opened = ReferenceGraph(graph)
    return join_batches(opened.run(batch) for batch in _chunks(inputs, _CHUNK))


def _chunks(arrays: Arrays, size: int, *, first: int = 0) -> Iterator[Arrays]:
    for start in range(first, len(next(iter(arrays.values()))), size):
        yield {name: array[start : start + size] for name, array in arrays.items()}


def judge_reference(
    graph: Path,
    inputs: Arrays,
    expected: Arrays,
    outputs: Mapping[str, OutputSpec],
    *,
    precision: str = "fp16",
    limit_s: float = 120.0,
) -> Gate:
    """Compute `graph` with real fp16 arithmetic and hold it against the limits of `precision`.

    No fp16 value on the way may be infinite or not a number; answers are a figure without a limit. What the first
    sample takes says how long all would.

    Args:
        graph: The fp16 graph.
        inputs: By name, all samples.
        expected: Outputs of torch, or of the float32 graph, by name.
        outputs: The signature's.
        precision: Whose limits hold.
        limit_s: Seconds that all samples may take by that estimate; longer is `not run`.
    """
    import onnx

    name = f"onnx {onnx.__version__} ReferenceEvaluator, fp16 in numpy"
    spoiled: dict[str, int] = {}

    def count(node: onnx.NodeProto, inputs: Values, outputs: Values) -> None:
        # float32 values are left out: what is infinite there is so in the float32 graph too, or came from fp16.
        for value in outputs.values():
            if value.dtype == np.float16 and (bad := int(value.size - np.isfinite(value).sum())):
                spoiled[node.name] = spoiled.get(node.name, 0) + bad

    samples = len(next(iter(inputs.values())))
    try:
        opened = ReferenceGraph(graph)
        started = time.monotonic()
        one = next(_chunks(inputs, 1))
        parts = [opened.run(one, on_node=count, deadline=started + limit_s / samples)]
        parts += [opened.run(batch, on_node=count) for batch in _chunks(inputs, _CHUNK, first=1)]
    except TooSlow:
        why = f"{samples} samples would take more than {limit_s:.0f} s"
        return Gate(name="reference", precision=precision, status="not run", ran=f"not run: {why}", reason=why)
    except NotImplementedError as error:
        why = f"the evaluator lacks an operator: {str(error).partition(chr(10))[0]}"
        return Gate(name="reference", precision=precision, status="not run", ran=f"not run: {why}", reason=why)
    found = join_batches(parts)
    figures: dict[str, Figure] = {
        "samples": samples,
        "non_finite_values": sum(spoiled.values()),
        "non_finite_outputs": sum(int(array.size - np.isfinite(array).sum()) for array in found.values()),
    }
    numbers = {name: np.nan_to_num(array) for name, array in found.items()}
    compared = parity.compare([expected], [numbers], outputs=outputs, ran=name, precision=precision)
    assert compared.relative_error is not None and compared.min_cosine is not None
    # So few images cannot tell 99.5 % of answers: one that flips would be 98 %. The gate top1 has them all.
    figures |= {
        "relative_error": compared.relative_error,
        "min_cosine": compared.min_cosine,
        **({} if compared.top1_agreement is None else {"top1_agreement": compared.top1_agreement}),
    }
    limits = parity.LIMITS[precision]
    reasons = []
    if figures["non_finite_values"] or figures["non_finite_outputs"]:
        where = ", ".join(list(spoiled)[:3]) or "the outputs"
        reasons.append(f"values that are not finite, first from {where}")
    if not (compared.relative_error <= limits.relative_error and compared.min_cosine >= limits.min_cosine):
        reasons.append("the outputs are off")
    return Gate(
        name="reference",
        precision=precision,
        status="failed" if reasons else "passed",
        ran=name,
        figures=figures,
        limits={
            "non_finite_values": 0.0,
            "non_finite_outputs": 0.0,
            "relative_error": limits.relative_error,
            "min_cosine": limits.min_cosine,
        },
        reason="; ".join(reasons),
    )


def measure_errors(graph: Path, batch: Arrays, *, limit_s: float = 300.0) -> dict[str, float]:
    """Return for each node of a float32 graph how much it alone loses when it computes in fp16.

    Each node reads its float32 inputs rounded to fp16; the error is the largest difference of what it writes, over the
    largest number in it; infinite where only fp16 is not finite. So a node is not blamed for what it was handed. Left
    out is what the evaluator cannot compute: in fp16 the node alone, in float32 all that come after it as well.

    Args:
        graph: The float32 graph.
        batch: Inputs by name; one sample is enough.
        limit_s: Seconds after which the nodes that were not reached are left out.
    """
    from onnxconverter_common import float16  # type: ignore[import-untyped]

    opened = ReferenceGraph(graph)
    errors: dict[str, float] = {}

    def compare(node: onnx.NodeProto, inputs: Values, outputs: Values) -> None:
        wide = {name: value for name, value in outputs.items() if value.dtype == np.float32}
        if not wide or node.op_type in float16.DEFAULT_OP_BLOCK_LIST:
            return
        narrow = {name: _narrow(value) for name, value in inputs.items()}
        try:
            found = opened.run_node(node, narrow)
        except NotImplementedError:
            return
        errors[node.name] = max(_relative(wide[name], found[name]) for name in wide)

    with contextlib.suppress(TooSlow, NotImplementedError):
        opened.run(batch, on_node=compare, deadline=time.monotonic() + limit_s)
    return errors


def _narrow(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    with np.errstate(all="ignore"):
        return value.astype(np.float16) if value.dtype == np.float32 else value


def _relative(expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> float:
    finite = np.isfinite(expected)
    wide = found.astype(np.float32)
    if not np.isfinite(wide[finite]).all():
        return float("inf")
    size = float(np.abs(expected[finite]).max(initial=0.0))
    error = float(np.abs(wide[finite] - expected[finite]).max(initial=0.0))
    return error / size if size else error
