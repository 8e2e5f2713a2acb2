"""Labels that the shipped predict.py gives to the test split, held against what training has counted: gate `bundle`.

Whatever is wrong with inputs or names on that way shows there; parity with torch, on tensors, sees none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from contracts.artifacts import EVALUATION_NAME, ExportManifest
from contracts.artifacts.export import Figure, Gate
from trainer.export.bundle.bundles import GATE_NAME

if TYPE_CHECKING:
    from trainer.export.gates.arrays import StoredArrays
    from trainer.export.gates.proof import TestSplit
    from trainer.export.gates.scores import Scores
    from trainer.export.inputs import Inputs

# Two sums over the same probabilities, in float32 and by other kernels, were seen 1e-7 apart; a mean of pixels that is
# off by 0.05 of the range moves the average probability by more than a thousandth.
MAX_SCORE_DIFFERENCE = 1e-4
# Samples whose probabilities are in memory at a time.
_CHUNK = 256


@dataclass(frozen=True)
class Expected:
    """What the program should come to."""

    evaluation_right: int | None = None
    """Right answers in the evaluation.json of the checkpoint; None: there is none, or what computed it (TF32, a GPU's
    bf16) is no fp32."""
    torch_right: int | None = None
    """Right answers of torch, where the proof is of a part of the test split, which evaluation.json does not count."""
    transformed_right: int | None = None
    """Right answers of the same graph on the trainer's own inputs of the same samples."""
    score: float | None = None
    """Average of the largest probability of each sample, on the trainer's inputs, or as an earlier gate found it: it
    sees what moves no answer."""

    @classmethod
    def of_export(
        cls, inputs: Inputs, split: TestSplit, outputs: StoredArrays, scores: Mapping[str, Scores]
    ) -> tuple[Expected, str]:
        """Return what training, or torch, has counted, and what the fp32 graph has come to; and why one is missing."""
        right = {name: round(found.values["accuracy"] * split.samples) for name, found in scores.items()}
        found = cls(transformed_right=right["fp32"], score=mean_score(outputs, split.samples))
        if split.places is not None:
            about = f"{split.samples} of {inputs.shards.splits['test'].samples} test samples: held against torch"
            return replace(found, torch_right=right["torch"]), about
        evaluation, missing = inputs.find_evaluation()
        if evaluation is None:
            return found, missing
        return replace(found, evaluation_right=round(evaluation.metrics["accuracy"] * evaluation.samples)), ""

    @classmethod
    def of_finished(cls, document: ExportManifest) -> Expected:
        """Return what a finished export has come to."""
        recorded = next((gate for gate in document.gates if gate.name == GATE_NAME), None)
        score = recorded.figures.get("mean_score") if recorded else None
        right = round(document.headline_values["fp32"] * document.measured_samples)
        return cls(transformed_right=right, score=score if isinstance(score, float) else None)

    @property
    def right(self) -> dict[str, Figure]:
        """Right answers by where they are from."""
        names = ("evaluation_right", "torch_right", "transformed_right")
        found = {name: getattr(self, name) for name in names}
        return {name: count for name, count in found.items() if count is not None}

    def undecidable(self, samples: int) -> str:
        """Return why nothing can be compared; empty: it can.

        Args:
            samples: Of the test split.
        """
        if not samples:
            return "the test split is empty"
        return "" if self.right else f"no {EVALUATION_NAME} to compare with"


@dataclass(frozen=True)
class Comparison:
    """What a gate says of answers besides how many there are."""

    figures: dict[str, Figure]
    limits: dict[str, float]
    reasons: list[str]
    """What is wrong."""


def compare_answers(
    expected: Expected, *, right: int, samples: int, mean_score: float | None, failed: bool
) -> Comparison:
    """Hold answers against what they should be.

    Args:
        expected: What they should be.
        right: Right answers.
        samples: All samples.
        mean_score: Average probability of the labels; None: there was no answer.
        failed: The program has failed: its own words say more than what it did not count.
    """
    difference = max(abs(right - int(count or 0)) for count in expected.right.values())
    figures: dict[str, Figure] = {"right": right, **expected.right, "right_difference": difference}
    limits, reasons = {"right_difference": 0.0}, []
    if difference and not failed:
        told = ", ".join(f"{name} is {count}" for name, count in expected.right.items())
        reasons.append(f"{right} of {samples} answers are right, {told}")
    if expected.score is not None:
        apart = None if mean_score is None else abs(mean_score - expected.score)
        figures |= {"expected_score": expected.score, "score_difference": apart}
        limits["score_difference"] = MAX_SCORE_DIFFERENCE
        if (apart is None or apart > MAX_SCORE_DIFFERENCE) and not failed:
            reasons.append(f"the average probability is {mean_score}, expected {expected.score}")
    return Comparison(figures, limits, reasons)


def add_reason(gate: Gate, reason: str) -> Gate:
    """Return a gate with one more reason, where there is one."""
    return gate.model_copy(update={"reason": "; ".join(part for part in (gate.reason, reason) if part)})


def mean_score(outputs: StoredArrays, samples: int) -> float:
    """Return the average over the first samples of the largest probability that logits [N, classes] give."""
    import numpy as np

    scores = []
    for batch in outputs.batches(_CHUNK, most=samples):
        (logits,) = batch.values()
        wide = logits.astype(np.float64)
        exponentials = np.exp(wide - wide.max(axis=1, keepdims=True))
        scores.append(exponentials.max(axis=1) / exponentials.sum(axis=1))
    return float(np.concatenate(scores).mean())
