"""Labels that the shipped predict.py gives to the test split, held against what training counted: the gate `bundle`.

Whatever is wrong with inputs or names on that way shows there; parity with torch, on tensors, sees none of it.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from contracts.artifacts import EVALUATION_NAME, ExportManifest
from contracts.artifacts.export import Figure, Gate
from trainer.export.bundles import GATE_NAME, PREDICT_NAME

if TYPE_CHECKING:
    from trainer.export.arrays import StoredArrays
    from trainer.export.inputs import Inputs
    from trainer.export.proof import TestSplit
    from trainer.export.scores import Scores

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
    transformed_right: int | None = None
    """Right answers of the same graph on the trainer's own inputs of the same samples."""
    score: float | None = None
    """Average of the largest probability of each sample, on the trainer's inputs, or as an earlier gate found it: it
    sees what moves no answer."""

    @classmethod
    def of_export(cls, inputs: Inputs, split: TestSplit, outputs: StoredArrays, scores: Scores) -> tuple[Expected, str]:
        """Return what training has counted, and what the fp32 graph has come to; and why one of both is missing."""
        evaluation, missing = inputs.find_evaluation()
        found = cls(
            None if evaluation is None else round(evaluation.metrics["accuracy"] * evaluation.samples),
            round(scores.values["accuracy"] * split.samples),
            mean_score(outputs, split.samples),
        )
        return found, missing

    @classmethod
    def of_finished(cls, document: ExportManifest) -> Expected:
        """Return what a finished export has come to."""
        recorded = next((gate for gate in document.gates if gate.name == GATE_NAME), None)
        score = recorded.figures.get("mean_score") if recorded else None
        right = round(document.headline_values["fp32"] * document.test_samples)
        return cls(None, right, score if isinstance(score, float) else None)

    @property
    def right(self) -> dict[str, Figure]:
        """Right answers by where they are from."""
        found = {"evaluation_right": self.evaluation_right, "transformed_right": self.transformed_right}
        return {name: count for name, count in found.items() if count is not None}


@dataclass
class ShippedAnswers:
    """What came back."""

    noun: str
    """What samples are called: images, texts."""
    samples: int = 0
    right: int = 0
    unanswered: int = 0
    first_error: str = ""
    failure: str = ""
    """Why the program came to no end."""
    predicted: set[str] = field(default_factory=set)
    scores: float = 0.0

    @property
    def mean_score(self) -> float | None:
        """The average probability of the labels."""
        answered = self.samples - self.unanswered
        return self.scores / answered if answered else None

    def add(self, truth: str, label: str, score: float) -> None:
        """Take in an answer: the label of a sample, and its probability."""
        self.samples += 1
        self.predicted.add(label)
        self.right += label == truth
        self.scores += score

    def add_error(self, words: str) -> None:
        """Take in that a sample got no answer."""
        self.samples += 1
        self.unanswered += 1
        self.first_error = self.first_error or words

    def figures(self) -> dict[str, Figure]:
        """Return what the gate says of them."""
        return {
            self.noun: self.samples,
            "right": self.right,
            "classes_predicted": len(self.predicted),
            "unanswered": self.unanswered,
            "mean_score": self.mean_score,
        }


def find_undecidable(samples: int, expected: Expected, *, precision: str) -> Gate | None:
    """Return the gate where there is nothing to compare with; None: there is.

    Args:
        samples: Of the test split.
        expected: What the program should come to.
        precision: Of the graph.
    """
    if expected.right and samples:
        return None
    reason = f"no {EVALUATION_NAME} to compare with" if samples else "the test split is empty"
    return Gate(name=GATE_NAME, precision=precision, status="not decidable", ran=f"not run: {reason}", reason=reason)


def judge_answers(
    found: ShippedAnswers, expected: Expected, *, precision: str, packages: Sequence[str], more: Mapping[str, Figure]
) -> Gate:
    """Return the gate.

    Figures: how many samples, right answers, classes_predicted, mean_score, unanswered; what was expected, and the
    differences that limits are for.

    Args:
        found: What the program has answered.
        expected: What it should come to.
        precision: Of the graph.
        packages: Distributions that the program needs.
        more: Further figures.
    """
    figures = found.figures() | expected.right | dict(more)
    reasons = [found.failure] if found.failure else []
    if found.unanswered:
        reasons.append(f"{found.unanswered} {found.noun} got no answer, the first: {found.first_error}")
    limits = {"right_difference": 0.0}
    difference = max(abs(found.right - int(count or 0)) for count in expected.right.values())
    figures["right_difference"] = difference
    # Of a program that failed, its own words say more than what it did not count.
    if difference and not found.failure:
        told = ", ".join(f"{name} is {count}" for name, count in expected.right.items())
        reasons.append(f"{found.right} of {found.samples} answers are right, {told}")
    if expected.score is not None:
        apart = None if found.mean_score is None else abs(found.mean_score - expected.score)
        figures |= {"expected_score": expected.score, "score_difference": apart}
        limits["score_difference"] = MAX_SCORE_DIFFERENCE
        if (apart is None or apart > MAX_SCORE_DIFFERENCE) and not found.failure:
            reasons.append(f"the average probability is {found.mean_score}, expected {expected.score}")
    status: Literal["passed", "failed", "not decidable"] = "failed" if reasons else "passed"
    if not reasons and len(found.predicted) < 2:
        status = "not decidable"
        reasons.append(f"every answer names one class: it says nothing about {found.noun}")
    return Gate(
        name=GATE_NAME,
        precision=precision,
        status=status,
        ran=f"the shipped {PREDICT_NAME} with {_versions(packages)}, on the source's {found.noun}",
        figures=figures,
        limits=limits,
        reason="; ".join(reasons),
    )


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


def _versions(packages: Sequence[str]) -> str:
    named = {}
    for package in packages:
        try:
            named[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            # onnxruntime-gpu and others bring the same module.
            named[package] = "of another distribution"
    return ", ".join(f"{name} {version}" for name, version in named.items())
