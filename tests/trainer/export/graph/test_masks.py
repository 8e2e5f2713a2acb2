"""Fills of attention's masks: bounded where a softmax alone sees them, and left as they are elsewhere."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from trainer.export.graph.masks import FILL, bound_masks

LOWEST = float(np.finfo(np.float32).min)


def graph_of(
    nodes: list[onnx.NodeProto], *, fill: float = LOWEST, as_node: bool = False, out: str = "out"
) -> onnx.GraphProto:
    tensor = numpy_helper.from_array(np.array(fill, np.float32), "fill")
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    if as_node:
        nodes = [helper.make_node("Constant", [], ["fill"], value=tensor), *nodes]
    return helper.make_graph(
        nodes,
        "masks",
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [2, 4]),
            helper.make_tensor_value_info("seen", TensorProto.BOOL, [2, 4]),
        ],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
        [zero] if as_node else [tensor, zero],
    )


def fill_of(graph: onnx.GraphProto) -> float:
    (found,) = [one for one in graph.initializer if one.name == "fill"] or [
        node.attribute[0].t for node in graph.node if node.op_type == "Constant"
    ]
    return float(numpy_helper.to_array(found))


WHERE = helper.make_node("Where", ["seen", "zero", "fill"], ["mask"])
ADD = helper.make_node("Add", ["scores", "mask"], ["masked"])
SOFTMAX = helper.make_node("Softmax", ["masked"], ["out"], axis=-1)
FILLED_SCORES = helper.make_node("Where", ["seen", "scores", "fill"], ["masked"])
SHAPED = [helper.make_node("Identity", ["mask"], ["again"]), helper.make_node("Add", ["scores", "again"], ["masked"])]
PRODUCT = [
    helper.make_node("Cast", ["seen"], ["one"], to=TensorProto.FLOAT),
    helper.make_node("Mul", ["one", "fill"], ["mask"]),
]


@pytest.mark.parametrize("as_node", [False, True])
@pytest.mark.parametrize("fill", [LOWEST, -np.inf, -1e9])
@pytest.mark.parametrize(
    "nodes", [[WHERE, ADD, SOFTMAX], [FILLED_SCORES, SOFTMAX], [WHERE, *SHAPED, SOFTMAX], [*PRODUCT, ADD, SOFTMAX]]
)
def test_a_softmax_of_a_bounded_fill_is_the_same_to_the_bit(
    nodes: list[onnx.NodeProto], fill: float, as_node: bool
) -> None:
    graph = graph_of(nodes, fill=fill, as_node=as_node)
    inputs = {
        "scores": np.array([[0.5, -3.0, 7.0, 0.1], [2.0, 100.0, -100.0, 1.0]], np.float32),
        "seen": np.array([[True, True, False, False], [True, False, True, True]]),
    }
    opsets = {"": 20}
    with np.errstate(invalid="ignore"):
        before = ReferenceEvaluator(graph, opsets=opsets).run(None, inputs)[0]
    assert bound_masks(graph) == 1 and fill_of(graph) == FILL
    after = ReferenceEvaluator(graph, opsets=opsets).run(None, inputs)[0]
    if not np.isnan(before).any():
        # -inf times 0 is no number; what is bounded is one.
        np.testing.assert_array_equal(after, before)
    assert np.isfinite(after).all() and np.float16(FILL) * 3 > -65504


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([FILLED_SCORES, helper.make_node("ReduceMax", ["masked"], ["out"])], id="a maximum sees it"),
        pytest.param([WHERE, ADD, helper.make_node("Tanh", ["masked"], ["out"])], id="another function sees it"),
        pytest.param([WHERE, ADD, SOFTMAX, helper.make_node("Neg", ["mask"], ["other"])], id="something else as well"),
        pytest.param([helper.make_node("Add", ["scores", "fill"], ["masked"]), SOFTMAX], id="it makes no mask"),
    ],
)
def test_what_anything_else_sees_stays_as_it_is(nodes: list[onnx.NodeProto]) -> None:
    graph = graph_of(nodes)
    assert bound_masks(graph) == 0 and fill_of(graph) == LOWEST


@pytest.mark.parametrize(("fill", "out"), [(-1e4, "out"), (1e9, "out"), (LOWEST, "mask")])
def test_numbers_that_fp16_holds_and_outputs_stay_as_they_are(fill: float, out: str) -> None:
    graph = graph_of([WHERE, ADD, SOFTMAX], fill=fill, out=out)
    assert bound_masks(graph) == 0 and fill_of(graph) == np.float32(fill)
