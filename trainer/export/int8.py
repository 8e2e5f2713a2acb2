"""The int8 graph, from the fp16 graph by ONNX Runtime's quantiser; operators that are not quantised stay fp16.

Only inputs of Conv, Gemm and MatMul are quantised: int8 gains nothing elsewhere and costs accuracy. TensorRT requires
symmetric scales, per channel for weights, and biases in floating point. Scales are from the smallest and the largest
value on the calibration samples.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from contracts.errors import ModelError
from trainer.export.arrays import Batches
from trainer.export.onnx_graph import save_graph

QUANTIZABLE = ("Conv", "Gemm", "MatMul")
"""Operators that are quantised."""


def quantize_to_int8(fp16_graph: Path, path: Path, *, calibration: Batches, threads: int, work: Path) -> None:
    """Write a graph with int8 Conv, Gemm and MatMul; other operators do not change.

    Args:
        fp16_graph: The ONNX file.
        path: File to write.
        calibration: Inputs of the model; the size of a batch decides memory, not the result.
        threads: Intra-op threads of ONNX Runtime.
        work: Folder for temporary files: about five times the size of `fp16_graph`.

    Raises:
        ModelError: An activation is not finite on the calibration samples, or the quantiser refuses the graph.
    """
    import onnx
    import onnx_ir
    from onnxruntime.quantization import (  # type: ignore[import-untyped]
        QuantFormat,
        QuantType,
        quantize_static,
        save_tensors_data,
    )

    with tempfile.TemporaryDirectory(prefix="int8-", dir=work) as folder, _quiet():
        # External weights keep the quantiser's copies of the graph small.
        source, ranges, target = (Path(folder) / name for name in ("source.onnx", "ranges.json", "int8.onnx"))
        onnx.save(onnx.load(fp16_graph), source, save_as_external_data=True, location="weights")
        save_tensors_data(_measure_ranges(source, calibration, threads), ranges)
        try:
            quantize_static(
                source,
                target,
                calibration_cache_path=ranges,
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=list(QUANTIZABLE),
                per_channel=True,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
                use_external_data_format=True,
                extra_options={
                    "ActivationSymmetric": True,
                    "WeightSymmetric": True,
                    "AddQDQPairToWeight": True,
                    "QuantizeBias": False,
                    "OpTypesToExcludeOutputQuantization": list(QUANTIZABLE),
                },
            )
        except (ValueError, LookupError, RuntimeError) as error:  # it has no exception classes
            raise ModelError(
                f"ONNX Runtime's quantiser refuses {fp16_graph.name}: {type(error).__name__}: {error}",
                allowed="a graph that it can quantise",
                todo="set export.precision=fp16",
            ) from error
        save_graph(onnx_ir.load(target), path)


def _measure_ranges(graph: Path, calibration: Batches, threads: int) -> Any:
    """Return the smallest and the largest value of each input and output of the nodes to quantise."""
    import onnxruntime  # type: ignore[import-untyped]
    from onnxruntime.quantization import create_calibrator

    augmented = graph.with_name("augmented.onnx")
    calibrator = create_calibrator(graph, QUANTIZABLE, str(augmented), use_external_data_format=True)
    # The calibrator's default session uses all cores, and keeps every activation and the largest batch's memory.
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    options.intra_op_num_threads, options.enable_cpu_mem_arena = threads, False
    calibrator.infer_session = onnxruntime.InferenceSession(str(augmented), options, providers=["CPUExecutionProvider"])
    # The only method of CalibrationDataReader that the calibrator calls.
    calibrator.collect_data(SimpleNamespace(get_next=partial(next, iter(calibration), None)))
    ranges = calibrator.compute_data()
    endless = sorted(name for name, values in ranges.data.items() if not np.isfinite(values.range_value).all())
    if endless:
        raise ModelError(
            f"{len(endless)} tensor(s) at Conv, Gemm or MatMul nodes are not finite in fp32: {', '.join(endless[:5])}",
            allowed="a model with finite activations on its own training samples",
            todo="check the training loss, and train again",
        )
    return ranges


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the quantiser's log messages, the handler that it would add to the root logger, and its NaN warnings."""

    def is_ours(record: logging.LogRecord) -> bool:
        return "onnxruntime" not in Path(record.pathname).parts

    root, handler = logging.getLogger(), logging.NullHandler()
    root.addFilter(is_ours)
    root.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
            yield
    finally:
        root.removeHandler(handler)
        root.removeFilter(is_ours)
