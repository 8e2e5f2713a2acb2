"""From the fp16 graph to an int8 graph: QuantizeLinear and DequantizeLinear around what a builder can run in int8.

Here: `quantize_to_int8`, by ONNX Runtime's quantiser; what is not quantised stays fp16. What is decided here, and why:

* Conv, Gemm and MatMul only, and only their inputs. Those are what int8 is fast at; quantising norms, softmax and the
  outputs costs accuracy and buys nothing, since a builder joins the next node's quantisation with this one's output.
* Signed and symmetric, weights per channel: what TensorRT takes. Weights stay floating point with a QuantizeLinear and
  a DequantizeLinear behind them, and biases stay floating point: TensorRT-RTX's parser refuses an int32 bias.
* Scales from the smallest and largest value over all calibration samples: percentiles and entropy gain nothing on
  trained digits and a random ResNet-50 and hold histograms of all activations (docs/export.md).
* Without the quantiser's pre-processing, which fuses nodes: the graph that ships has the nodes that were proven.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from contracts.errors import ModelError
from trainer.export.gates.arrays import StoredArrays
from trainer.export.gates.sessions import open_session
from trainer.export.graph.onnx_graph import save_checked, strip_metadata

QUANTIZABLE = ("Conv", "Gemm", "MatMul")
"""Operators that are quantised."""
# What MinMaxCalibrater appends to a tensor's name for the graph outputs that it adds.
_LOWEST, _HIGHEST = "_ReduceMin", "_ReduceMax"


def quantize_to_int8(
    source: Path, target: Path, *, calibration: StoredArrays, batch_size: int, threads: int, work: Path
) -> None:
    """Write `source` with int8 Conv, Gemm and MatMul; all other arithmetic, inputs and outputs stay float32.

    Equal inputs give equal bytes. Temporary files lie in a folder in `work` and are gone afterwards.

    Args:
        source: The fp32 ONNX file; its weights may be outside of it.
        target: File to write.
        calibration: Inputs as the model takes them.
        batch_size: Samples to run at a time: it decides memory, not the result's meaning.
        threads: Intra-op threads of ONNX Runtime.
        work: Folder for temporary files: about three times the size of `source`.

    Raises:
        ModelError: An activation is not finite in fp32 on the calibration samples, so that it has no scale; or the
            quantiser refuses the graph.
    """
    import onnx
    from onnxruntime.quantization import (  # type: ignore[import-untyped]
        QuantFormat,
        QuantType,
        quantize_static,
        save_tensors_data,
    )

    with tempfile.TemporaryDirectory(prefix="int8-", dir=work) as folder, _quiet_quantizer():
        # A copy: the quantiser writes files of its own beside the graph that it is given.
        staged, ranges, quantized = (Path(folder) / name for name in ("staged.onnx", "ranges.json", "quantized.onnx"))
        _stage(source, staged)
        found = _measure_ranges(staged, calibration, batch_size=batch_size, threads=threads)
        save_tensors_data(found, ranges)
        with _refusals_named(source):
            quantize_static(
                staged,
                quantized,
                None,
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
        graph = onnx.load(quantized)
    strip_metadata(graph)
    save_checked(graph, target)


def _stage(source: Path, staged: Path) -> None:
    """Write a copy with its weights outside, so that the quantiser's copies of the graph are small."""
    import onnx

    onnx.save(onnx.load(source), staged, save_as_external_data=True, location=f"{staged.name}.data")


def _measure_ranges(graph: Path, calibration: StoredArrays, *, batch_size: int, threads: int) -> Any:
    """Return smallest and largest value of each input and output of the nodes to quantise, as TensorsData."""
    from onnxruntime.quantization import (
        CalibrationMethod,
        MinMaxCalibrater,
        TensorsData,
    )

    # Only what it adds to the graph is used: by itself it takes all cores, and it overlooks NaNs.
    augmented = graph.with_name("augmented.onnx")
    MinMaxCalibrater(graph, list(QUANTIZABLE), str(augmented), use_external_data_format=True).augment_graph()
    # In its default order the added nodes come last and every activation is kept for them, and its arena grows from
    # batch to batch: with both, ResNet-50 took 3.0 GB at batch 16 where it now takes 0.4 GB.
    session = open_session(augmented, threads=threads, level="ORT_DISABLE_ALL", in_graph_order=True, arena=False)
    wanted = [item.name for item in session.get_outputs() if item.name.endswith((_LOWEST, _HIGHEST))]
    found: dict[str, Any] = {}
    for batch in calibration.batches(batch_size):
        for name, value in zip(wanted, session.run(wanted, batch), strict=True):
            choose = np.minimum if name.endswith(_LOWEST) else np.maximum
            found[name] = choose(found.get(name, value), value)
    tensors = [name.removesuffix(_LOWEST) for name in wanted if name.endswith(_LOWEST)]
    ranges = {name: (found[name + _LOWEST], found[name + _HIGHEST]) for name in tensors}
    endless = sorted(name for name, range_ in ranges.items() if not np.isfinite(range_).all())
    if endless:
        raise ModelError(
            f"{len(endless)} tensor(s) at Conv, Gemm or MatMul nodes are not finite in fp32: {', '.join(endless[:5])}",
            allowed="a model whose activations on its own training samples are numbers",
            todo="look at the training run's loss; train again",
        )
    return TensorsData(CalibrationMethod.MinMax, ranges)


@contextlib.contextmanager
def _refusals_named(source: Path) -> Iterator[None]:
    """Turn what the quantiser raises about a graph into an error of the model; it has no errors of its own."""
    try:
        yield
    except (ValueError, LookupError, RuntimeError) as error:
        raise ModelError(
            f"ONNX Runtime's quantiser refuses {source.name}: {type(error).__name__}: {error}",
            allowed="a graph that it can quantise",
            todo="set export.precision=fp16",
        ) from error


@contextlib.contextmanager
def _quiet_quantizer() -> Iterator[None]:
    """Drop what the quantiser logs, and nothing else: it logs by the root logger, and would give that a handler."""

    def is_ours(record: logging.LogRecord) -> bool:
        return "onnxruntime" not in Path(record.pathname).parts

    root, handler = logging.getLogger(), logging.NullHandler()
    root.addFilter(is_ours)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.removeFilter(is_ours)
