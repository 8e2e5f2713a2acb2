"""How much each node of an fp16 graph adds to its error on a GPU, from the values that its engine gives on the way.

Here: `measure_layer_errors`, asked by rounds.py. The fp32 graph's values are ONNX Runtime's. An engine that gives all
values is another one than that which ships, since a builder joins fewer nodes: it shows where an error begins, and
proves nothing.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contracts.errors import ConfigError, ShardlineError, TryAgain
from trainer.export.engines.engine_gate import Trial, Trials
from trainer.export.gates import proof
from trainer.export.gates.arrays import Array, StoredArrays, pad_batch, store_arrays
from trainer.export.graph.nodes import infer_types, load_graph, reads

if TYPE_CHECKING:
    from trainer.export.workshop import Workshop

_PREFIX = "value of "


def measure_layer_errors(work: Workshop, graph: Path) -> dict[str, float]:
    """Return by node what it adds to the relative error of its inputs; infinite where only fp16 is not finite.

    What reads a value that is not finite gets the next largest number: in fp32 it would read it by a cast.

    Args:
        work: The workshop, with the fp32 graph.
        graph: The fp16 graph.

    Returns:
        Nothing without a GPU, or where an engine that gives all values cannot be built or run.
    """
    runner = work.runner or work.server
    if runner is None:
        return {}
    with tempfile.TemporaryDirectory(dir=work.folder, prefix="layers-") as name:
        folder = Path(name)
        wide, narrow, engine = folder / "fp32.onnx", folder / "fp16.onnx", folder / "fp16.engine"
        batch = work.settings.batches[0]
        inputs = store_arrays(folder / "inputs", [pad_batch(next(work.split.inputs.batches(batch)), batch)])
        try:
            sources = work.step("layers", expose_values, work.path("fp32"), wide)
            work.step("layers", expose_values, graph, narrow)
            expected = work.step(
                "layers", proof.write_graph_outputs, wide, inputs, folder / "expected", batch_size=batch, threads=1
            )
            runner.build(narrow, engine, precision="fp16")
            trial = Trial("all values", inputs, expected, batch)
            (found,) = runner.run(engine, Trials((trial,), {}), folder).outputs
        except (TryAgain, ConfigError):
            raise
        except ShardlineError as error:
            work.tell(f"values on the way cannot be had from an engine: {str(error).splitlines()[0]}")
            return {}
        return find_added(_named(expected), _named(found), sources)


def expose_values(graph: Path, target: Path) -> dict[str, list[str]]:
    """Write a copy of a graph that gives what its nodes write instead of its outputs: `value of NODE` [1, numbers].

    Returns:
        The nodes whose values each node reads.

    Raises:
        ModelError: ONNX cannot infer the types of the graph.
    """
    import onnx

    model = load_graph(graph)
    kinds = {item.name: item.type.tensor_type.elem_type for item in infer_types(model).graph.value_info}
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    writers = {name: node.name for node in model.graph.node for name in node.output}
    sources = {node.name: [writers[name] for name in reads(node) if name in writers] for node in model.graph.node}
    kinds |= {item.name: item.type.tensor_type.elem_type for item in model.graph.output}
    del model.graph.output[:]
    wide = int(onnx.TensorProto.FLOAT)
    for node in list(model.graph.node):
        if node.output and kinds.get(node.output[0]) in floats:
            name = _PREFIX + node.name
            # Not each value has the batch as its first dimension.
            flatten = onnx.helper.make_node("Flatten", [node.output[0]], [f"{name} flat"], name=f"{name} flat", axis=0)
            cast = onnx.helper.make_node("Cast", [f"{name} flat"], [name], name=name, to=wide)
            model.graph.node.extend((flatten, cast))
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, wide, [1, None]))
    onnx.save(model, target)
    return sources


def _named(stored: StoredArrays) -> dict[str, Array]:
    (values,) = stored.batches(1)
    return {name.removeprefix(_PREFIX): array for name, array in values.items() if name.startswith(_PREFIX)}


def find_added(
    expected: Mapping[str, Array], found: Mapping[str, Array], sources: Mapping[str, list[str]]
) -> dict[str, float]:
    """Return what each node adds to the error of what it reads.

    Args:
        expected: What nodes write in fp32.
        found: The same, of the engine.
        sources: The nodes whose values each node reads, in the graph's order.
    """
    errors = {
        name: _relative(array, found[name])
        for name, array in expected.items()
        if name in found and found[name].shape == array.shape
    }
    # Nodes that give no floats, and those that the converter has added, hand on what they read.
    reached: dict[str, float] = {}
    added: dict[str, float] = {}
    for name, before in sources.items():
        given = max((reached.get(source, 0.0) for source in before), default=0.0)
        reached[name] = errors.get(name, given)
        if name in errors:
            if np.isinf(given):
                added[name] = sys.float_info.max if any(np.isinf(added.get(source, 0.0)) for source in before) else 0.0
            else:
                added[name] = max(0.0, reached[name] - given)
    return added


def _relative(expected: Array, found: Array) -> float:
    finite = np.isfinite(expected)
    if not np.isfinite(found[finite]).all():
        return float("inf")
    size = float(np.abs(expected[finite]).max(initial=0.0))
    error = float(np.abs(found[finite] - expected[finite]).max(initial=0.0))
    return error / size if size else error
