"""Runs torch and everything exported over the test split, and makes parity and accuracy of it.

Here: `run_test_split`, `prove_parity`, `measure_accuracy`. Run by trainer/export/task.py. Images are read once and go
through all runners, so all figures are of the same samples. Nothing is timed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from contracts.artifacts import Parity
from trainer.data.loader import evaluation_batches
from trainer.data.transforms import EvaluationTransform
from trainer.export import engine_run, parity
from trainer.export.inputs import Inputs
from trainer.export.targets import Builder

if TYPE_CHECKING:
    from torch import nn

Labels = npt.NDArray[np.int64]
Logits = dict[str, parity.Array]
"""[N, classes] by what computed them: `torch`, the precisions of the graphs, and `engine` where it ran."""

ENGINE = "engine"


def run_test_split(
    inputs: Inputs, model: nn.Module, graphs: dict[str, Path], engine_path: Path, *, batch_size: int, threads: int
) -> tuple[Logits, Labels]:
    """Return the logits of torch, of each graph and, with a GPU, of the engine, and the labels [N].

    Args:
        inputs: The checkpoint, whose transform is used, and the shards.
        model: The torch model with the checkpoint's weights.
        graphs: ONNX files by precision.
        engine_path: The engine.
        batch_size: Samples a batch; no more than the engine takes.
        threads: Intra-op threads of ONNX Runtime.
    """
    runners = {parity.REFERENCE: parity.run_torch(model)}
    runners |= {name: parity.open_graph(path, threads=threads) for name, path in graphs.items()}
    if engine_run.reason_not_to_run(inputs.builder) is None:
        num_classes = len(inputs.checkpoint.classes)
        runners[ENGINE] = engine_run.open_engine(engine_path, builder=inputs.builder, num_classes=num_classes)
    mean, std = inputs.checkpoint.data["mean"], inputs.checkpoint.data["std"]
    transform = EvaluationTransform(inputs.image_size, (mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))
    batches = evaluation_batches(inputs.shards_uri, inputs.shards, "test", transform, batch_size, data=inputs.data)
    return parity.collect_logits(batches, runners)


def prove_parity(logits: Logits, *, builder: Builder, precision: str) -> dict[str, dict[str, Parity]]:
    """Compare everything with torch; return the proof by what ran (`onnx`, `engine`), then by precision.

    Raises:
        CheckFailed: A comparison is past its limits.
        DataError: torch's own logits cannot be compared with.
    """
    reference = logits[parity.REFERENCE]
    onnx_proof = {
        name: parity.compare(reference, logits[name], ran=parity.name_of_onnx(name), precision=name)
        for name in parity.LIMITS
        if name in logits
    }
    if ENGINE in logits:
        ran = f"{builder.name} on {builder.targets[0]}"
        engine_proof = parity.compare(reference, logits[ENGINE], ran=ran, precision=precision)
    else:
        engine_proof = Parity(ran=f"not run: {engine_run.reason_not_to_run(builder)}")
    proof = {"onnx": onnx_proof, ENGINE: {precision: engine_proof}}
    parity.require(proof)
    return proof


def measure_accuracy(logits: Logits, labels: Labels) -> dict[str, float]:
    """Return the share of right answers by what computed them."""
    return {name: parity.accuracy(found, labels) for name, found in logits.items()}
