"""What an export has beside graphs and engines where only the user's code knows what inputs and outputs mean.

signature.json says names, types and shapes; predict.py maps arrays to arrays. See bundles.py for the functions.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.artifacts import EVALUATION_NAME, CheckpointManifest, ExportManifest, Gate
from contracts.artifacts.export import Figure
from contracts.artifacts.signature import Signature
from contracts.config import RunConfig
from contracts.errors import ConfigError
from pages.markdown import code
from trainer.export.bundle.bundles import GATE_NAME, PREDICT_NAME
from trainer.export.bundle.shipped import (
    PROGRAMS,
    Shipped,
    ShippedFailed,
    ShippedProgram,
    name_versions,
    write_program,
)
from trainer.export.gates.scores import allowed_loss, judge_scores

if TYPE_CHECKING:
    from trainer.export.bundle.bundles import Bundle
    from trainer.export.gates.arrays import Arrays, StoredArrays
    from trainer.export.gates.proof import TestSplit
    from trainer.export.gates.scores import Scores
    from trainer.export.inputs import Inputs
    from trainer.predict.checked_folder import CheckedFolder
    from trainer.tasks.protocol import Task

SIGNATURE_NAME = "signature.json"
# Samples that the shipped program is tried with: it does nothing that depends on their number.
_TRIED_SAMPLES = 16
# The same graph in the same runtime; batches may be cut elsewhere.
MAX_DIFFERENCE = 1e-5
# Samples that an engine is tried with, where the test split cannot be had.
_NOISE_SAMPLES = 64

_USE_INPUTS = (
    "`signature.json` says names, types and shapes. Inputs are made of samples by `prepare`, `collate` and `to_model` "
    "of the task, in evaluation: other ones cost what the model is worth, without an error."
)

judge_metric = judge_scores


def check_checkpoint(config: RunConfig, checkpoint: CheckpointManifest) -> None:
    """Do nothing: the task's arguments say all."""


def make_noise(task: Task, samples: int) -> Arrays:
    """Return random inputs."""
    from trainer.export.gates.arrays import random_inputs

    return random_inputs(task.signature, samples)


def write_bundle(folder: Path, inputs: Inputs, signature: Signature, *, model_name: str, max_batch: int) -> list[str]:
    """Write signature.json and predict.py."""
    said = {"format_version": 1, "model": model_name, "max_batch": max_batch, **signature.model_dump(mode="json")}
    (folder / SIGNATURE_NAME).write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [SIGNATURE_NAME, *write_program(folder, PROGRAMS / "predict_arrays.py")]


def check_bundle(
    shipped: Shipped, inputs: Inputs, split: TestSplit, outputs: StoredArrays, scores: Mapping[str, Scores]
) -> Gate:
    """Run the shipped predict.py on samples of the test split, and compare with what the graph gave.

    What the graph is worth on all of them is held against what training found with these weights.
    """
    given = next(split.inputs.batches(_TRIED_SAMPLES))
    samples = len(next(iter(given.values())))
    gate = _try_program(shipped, given, next(outputs.batches(samples)))
    return hold_to_evaluation(gate, inputs, split, scores)


def check_again(shipped: Shipped, document: ExportManifest, work: Path) -> Gate:
    """Say that without the task's code nothing is compared."""
    reason = f"only the code of task {document.task} makes inputs of samples; its export did so"
    return Gate(name=GATE_NAME, precision="fp32", status="not run", ran=f"not run: {reason}", reason=reason)


def read_inputs(shipped: Shipped, document: ExportManifest, work: Path) -> StoredArrays:
    """Return noise."""
    from trainer.export.gates.arrays import random_inputs, store_arrays

    return store_arrays(work / "noise", [random_inputs(document.signature, _NOISE_SAMPLES)])


def read_labels(folder: Path) -> list[str] | None:
    """Return none."""
    return None


def introduce(document: ExportManifest, checkpoint: CheckpointManifest | None) -> tuple[str, list[str]]:
    """Return what the model card calls the model, and what it says of it."""
    return f"task {code(document.task)}", ["What inputs and outputs mean is said by the code of its task."]


def describe_use() -> list[str]:
    """Return what the model card says of predict.py."""
    return [
        "On any machine, with numpy and onnxruntime (CPU):",
        "    python predict.py INPUTS.npz OUTPUTS.npz",
        _USE_INPUTS,
    ]


def describe_limits() -> list[str]:
    """Return nothing: only its user knows."""
    return []


def predict(folder: CheckedFolder, options: argparse.Namespace) -> int:
    """Refuse: only the task's code makes inputs of files.

    Raises:
        ConfigError: Always.
    """
    document = folder.document
    task, signature = document.task, document.signature
    inputs = ", ".join(
        f"{name} {spec.dtype} [{', '.join(map(str, spec.shape))}]" for name, spec in signature.inputs.items()
    )
    raise ConfigError(
        f"the export is of task {task}: only its code makes inputs of files",
        allowed="`shardline predict` of an export of a task that comes with the tool",
        todo=f"add a program to the code of {task} that makes {inputs} of files, by the task's own `prepare`, "
        f'`collate` and `to_model`, and writes them by numpy.savez("INPUTS.npz", '
        f"{', '.join(f'{name}=...' for name in signature.inputs)}); then run `python {PREDICT_NAME} INPUTS.npz "
        f"OUTPUTS.npz` of the export's folder, and read {', '.join(signature.outputs)} from the latter",
    )


def _try_program(shipped: Shipped, given: Arrays, expected: Arrays) -> Gate:
    import numpy as np

    figures: dict[str, Figure] = {"samples": len(next(iter(given.values())))}
    with tempfile.TemporaryDirectory(prefix="shardline-bundle-") as name:
        work = Path(name)
        np.savez(work / "inputs.npz", **given)  # type: ignore[arg-type]
        arguments, reason = ("inputs.npz", "outputs.npz"), ""
        try:
            with ShippedProgram(shipped, arguments, work=work) as program:
                program.finish(expected=(0,))
        except ShippedFailed as failure:
            reason = str(failure)
        else:
            with np.load(work / "outputs.npz") as file:
                found = {name: file[name] for name in file.files}
            difference = _difference(expected, found)
            figures["relative_difference"] = difference
            if difference is None or difference > MAX_DIFFERENCE:
                reason = "its outputs are not those of the graph"
    return Gate(
        name=GATE_NAME,
        precision="fp32",
        status="failed" if reason else "passed",
        ran=f"the shipped {PREDICT_NAME} with {name_versions(['onnxruntime'])}, on inputs of the test split",
        figures=figures,
        limits={"relative_difference": MAX_DIFFERENCE},
        reason=reason,
    )


def hold_to_evaluation(gate: Gate, inputs: Inputs, split: TestSplit, scores: Mapping[str, Scores]) -> Gate:
    """Add to the gate whether the graph's headline is what it should be, be it better or worse.

    On the whole test split it should be that of evaluation.json, on a part of it torch's.
    """
    headline, whose = scores["fp32"].headline, "evaluation"
    name = headline.metric
    if split.places is None:
        evaluation, missing = inputs.find_evaluation()
        if evaluation is None:
            return gate.model_copy(update={"reason": "; ".join(part for part in (gate.reason, missing) if part)})
        expected, where = evaluation.value(name), f"in {EVALUATION_NAME}"
    else:
        expected, whose, where = scores["torch"].values.get(name), "torch", f"torch's on these {split.samples} samples"
    found = scores["fp32"].values.get(name)
    apart = None if expected is None or found is None else abs(found - expected)
    limit = None if expected is None else allowed_loss(headline, expected)
    update: dict[str, object] = {
        "figures": gate.figures | {f"{whose} {name}": expected, name: found, f"{whose}_difference": apart},
        "limits": gate.limits if limit is None else gate.limits | {f"{whose}_difference": limit},
    }
    if apart is None or limit is None or apart > limit:
        reason = f"{name} of the graph on the test split is {found}, and {expected} {where}"
        update |= {"status": "failed", "reason": "; ".join(part for part in (gate.reason, reason) if part)}
    return gate.model_copy(update=update)


def _difference(expected: Arrays, found: Arrays) -> float | None:
    """Return the largest difference over the range of an output; None where they cannot be compared."""
    import numpy as np

    if {name: array.shape for name, array in expected.items()} != {name: array.shape for name, array in found.items()}:
        return None
    differences = []
    for name, array in expected.items():
        wide = array.astype(np.float64)
        differences.append(float(np.abs(found[name] - wide).max()) / (float(np.ptp(wide)) or 1.0))
    worst = max(differences)
    return worst if np.isfinite(worst) else None


if TYPE_CHECKING:
    from trainer.export.bundle import arrays_bundle

    _is_bundle: Bundle = arrays_bundle
