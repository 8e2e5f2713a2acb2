"""The proof: outputs of the exported graphs and of torch on the same images, compared and held against limits.

Here: `open_graph` (ONNX Runtime), `run_torch`, `compare`, `judge`. Run by trainer/export/task.py.

What ONNX Runtime's CPU provider proves of an fp16 graph is the rounding of its weights: it drops the casts and computes
in fp32, so an activation that overflows in fp16 stays unseen. `Parity.ran` says so; only an engine on a GPU shows more.
Nothing here is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from contracts.artifacts import Gate, Parity
from contracts.errors import DataError
from trainer.export.onnx_graph import INPUT_NAME, OUTPUT_NAME

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[np.float32]
Runner = Callable[[Array], Array]
"""Maps images [B, 3, S, S] float32, normalised, to logits [B, classes] float32."""

REFERENCE = "torch"


@dataclass(frozen=True)
class Limits:
    """What a graph's outputs must keep to."""

    relative_error: float
    min_cosine: float
    top1_agreement: float


# Ten times and more above what sound graphs of ResNet and ViT showed (fp32 7e-7, fp16 7e-4 relative error), and below
# what one zeroed filter does. All three: top-1 alone says nothing of a model that predicts one class.
LIMITS = {
    "fp32": Limits(relative_error=1e-4, min_cosine=0.9999, top1_agreement=1.0),
    "fp16": Limits(relative_error=5e-3, min_cosine=0.9999, top1_agreement=0.995),
    # Half of fp16's digits; what it is for is the range.
    "bf16": Limits(relative_error=5e-2, min_cosine=0.999, top1_agreement=0.98),
    # Scales for a whole tensor err most at its ends, so the largest difference says little; accuracy is a gate beside.
    "int8": Limits(relative_error=float("inf"), min_cosine=0.99, top1_agreement=0.98),
}
# With fewer different answers of the reference, to agree on them says nothing: a random network predicts one class.
LEAST_CLASSES = 5


def open_graph(path: Path, *, threads: int) -> Runner:
    """Return a function that runs an ONNX file on the CPU with ONNX Runtime.

    Graph optimisation is off: an optimised graph is not the one that ships, and ONNX Runtime's fusions were seen to
    change the outputs of a sound quantised model (cosine 0.83 instead of 0.999).

    Args:
        path: The ONNX file.
        threads: Intra-op threads.
    """
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors: they are raised as well, warnings would go to stderr
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(images: Array) -> Array:
        logits: Array = session.run([OUTPUT_NAME], {INPUT_NAME: images})[0]
        return logits

    return run


def name_of_onnx(precision: str) -> str:
    """Return what `open_graph` runs with, and what that proves, for `Parity.ran`."""
    import onnxruntime

    name = f"onnxruntime {onnxruntime.__version__} CPUExecutionProvider, graph optimisation off"
    return name if precision == "fp32" else f"{name}; computes in fp32: proves the weights' rounding only"


def run_torch(model: torch.nn.Module) -> Runner:
    """Return a function that runs the torch model eagerly in fp32, in evaluation mode."""
    import torch

    model.eval()

    def run(images: Array) -> Array:
        with torch.inference_mode():
            logits: Array = model(torch.from_numpy(images)).float().numpy()
        return logits

    return run


def compare(reference: Array, candidate: Array, *, ran: str, precision: str) -> Parity:
    """Compare logits [N, classes] with torch's and hold them against the limits of `precision`.

    Raises:
        DataError: The reference itself is not finite, or all its logits are one number.
    """
    expected, found = reference.astype(np.float64), candidate.astype(np.float64)
    span = float(np.ptp(expected)) if np.isfinite(expected).all() else float("nan")
    if not span > 0:
        raise DataError(
            f"the checkpoint's own logits {'are all equal' if span == 0 else 'are not finite'}",
            allowed="weights whose outputs can be compared",
            todo="look at the training run's loss; train again",
        )
    limits = LIMITS[precision]
    relative_error = float(np.abs(found - expected).max()) / span
    min_cosine = float(_cosines(expected, found).min())
    answers = expected.argmax(axis=1)
    agreement = float((answers == found.argmax(axis=1)).mean())
    classes = len(np.unique(answers))
    if not np.isfinite(found).all():
        # Neither is a number in JSON; both are as wrong as can be.
        relative_error, min_cosine = sys.float_info.max, -1.0
    return Parity(
        ran=ran,
        samples=len(expected),
        relative_error=relative_error,
        min_cosine=min_cosine,
        top1_agreement=agreement,
        reference_classes=classes,
        # Written so that a NaN fails.
        passed=relative_error <= limits.relative_error
        and min_cosine >= limits.min_cosine
        and (classes < LEAST_CLASSES or agreement >= limits.top1_agreement),
    )


def judge(found: Parity, precision: str) -> list[Gate]:
    """Return the gates of a comparison: `parity` for the logits, `top1` for the answers."""
    if found.passed is None:
        return [
            Gate(name=name, precision=precision, status="not run", ran=found.ran, reason=found.ran)
            for name in ("parity", "top1")
        ]
    limits = LIMITS[precision]
    assert found.relative_error is not None and found.min_cosine is not None and found.top1_agreement is not None
    keeps = found.relative_error <= limits.relative_error and found.min_cosine >= limits.min_cosine
    logits = Gate(
        name="parity",
        precision=precision,
        status="passed" if keeps else "failed",
        ran=found.ran,
        figures={"samples": found.samples, "relative_error": found.relative_error, "min_cosine": found.min_cosine},
        limits={
            **({} if np.isinf(limits.relative_error) else {"relative_error": limits.relative_error}),
            "min_cosine": limits.min_cosine,
        },
        reason="" if keeps else "it does not compute what torch computes",
    )
    decidable = (found.reference_classes or 0) >= LEAST_CLASSES
    agrees = found.top1_agreement >= limits.top1_agreement
    top1 = Gate(
        name="top1",
        precision=precision,
        status=("passed" if agrees else "failed") if decidable else "not decidable",
        ran=found.ran,
        figures={"agreement": found.top1_agreement, "reference_classes": found.reference_classes},
        limits={"agreement": limits.top1_agreement},
        reason=""
        if decidable and agrees
        else "it gives other answers than torch"
        if decidable
        else f"torch predicts {found.reference_classes} classes, {LEAST_CLASSES} are needed to say anything",
    )
    return [logits, top1]


def count_right(logits: Array, labels: npt.NDArray[np.int64]) -> int:
    """Return the number of samples whose largest logit [N, classes] is at their label [N]; none is at -1."""
    return int((logits.argmax(axis=1) == labels).sum())


def mean_score(logits: Array) -> float:
    """Return the average over samples of the largest probability that logits [N, classes] give."""
    wide = logits.astype(np.float64)
    exponentials = np.exp(wide - wide.max(axis=1, keepdims=True))
    return float((exponentials.max(axis=1) / exponentials.sum(axis=1)).mean())


def _cosines(left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the cosine of each row; 1 where both rows are zero, 0 where one is."""
    left_norm, right_norm = np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1)
    product = left_norm * right_norm
    cosines: npt.NDArray[np.float64] = np.divide(
        (left * right).sum(axis=1), product, out=np.zeros_like(product), where=product != 0
    )
    cosines[(left_norm == 0) & (right_norm == 0)] = 1.0
    return cosines
