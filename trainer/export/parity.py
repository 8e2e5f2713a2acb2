"""The proof: outputs of the exported graphs and of torch on the same images, compared and held against limits.

Here: `open_graph` (ONNX Runtime), `collect_logits`, `compare`, `require`. Run by trainer/export/task.py.

What ONNX Runtime's CPU provider proves of an fp16 graph is the rounding of its weights: it drops the casts and computes
in fp32, so an activation that overflows in fp16 stays unseen. `Parity.ran` says so; only an engine on a GPU shows more.
Nothing here is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from contracts.artifacts import Parity
from contracts.errors import CheckFailed, DataError
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
}


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


def collect_logits(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    runners: Mapping[str, Runner],
    on_batch: Callable[[int], None] = lambda samples: None,
) -> tuple[dict[str, Array], npt.NDArray[np.int64]]:
    """Run every batch through every runner: images are read once.

    Args:
        batches: (images [B, 3, S, S] float32, labels [B] int64).
        runners: By name.
        on_batch: Told the number of samples so far.

    Returns:
        Logits [N, classes] by runner, and labels [N].
    """
    parts: dict[str, list[Array]] = {name: [] for name in runners}
    labels: list[npt.NDArray[np.int64]] = []
    samples = 0
    for images, batch_labels in batches:
        pixels = np.ascontiguousarray(images.numpy())
        for name, run in runners.items():
            parts[name].append(run(pixels))
        labels.append(batch_labels.numpy())
        samples += len(labels[-1])
        on_batch(samples)
    return {name: np.concatenate(found) for name, found in parts.items()}, np.concatenate(labels)


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
    agreement = float((expected.argmax(axis=1) == found.argmax(axis=1)).mean())
    return Parity(
        ran=ran,
        samples=len(expected),
        relative_error=relative_error,
        min_cosine=min_cosine,
        top1_agreement=agreement,
        # Written so that a NaN fails.
        passed=relative_error <= limits.relative_error
        and min_cosine >= limits.min_cosine
        and agreement >= limits.top1_agreement,
    )


def require(parity: Mapping[str, Mapping[str, Parity]]) -> None:
    """Let only a proof pass that failed nowhere; what did not run is no failure.

    Raises:
        CheckFailed: With the figures of everything that failed.
    """
    failed = []
    for what, by_precision in parity.items():
        for precision, found in by_precision.items():
            if found.passed is False:
                limits = LIMITS[precision]
                failed.append(
                    f"{what} {precision} on {found.samples} samples ({found.ran}): "
                    f"relative error {found.relative_error:.2e} (limit {limits.relative_error:.0e}), "
                    f"smallest cosine {found.min_cosine:.6f} (limit {limits.min_cosine}), "
                    f"top-1 agreement {found.top1_agreement:.4f} (limit {limits.top1_agreement})"
                )
    if failed:
        raise CheckFailed(
            "the exported model does not compute what torch computes; nothing is published\n  " + "\n  ".join(failed)
        )


def accuracy(logits: Array, labels: npt.NDArray[np.int64]) -> float:
    """Return the share of samples whose largest logit [N, classes] is at their label [N]."""
    return float((logits.argmax(axis=1) == labels).mean())


def _cosines(left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the cosine of each row; 1 where both rows are zero, 0 where one is."""
    left_norm, right_norm = np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1)
    product = left_norm * right_norm
    cosines: npt.NDArray[np.float64] = np.divide(
        (left * right).sum(axis=1), product, out=np.zeros_like(product), where=product != 0
    )
    cosines[(left_norm == 0) & (right_norm == 0)] = 1.0
    return cosines
