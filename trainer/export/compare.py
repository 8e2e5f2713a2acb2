"""Gates `parity` and `metric`: outputs of an exported file against torch's on the same samples.

Here: `make_trials` and `judge_parity`; `judge_metric` compares the headline metric with torch's. The caller passes
the function that runs the file (engine.py). This module does not import torch.

On a CPU, parity of an fp16 graph checks only the rounding of its weights: ONNX Runtime computes in fp32.
`Gate.device` has the device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from contracts.artifacts import Gate, Headline
from contracts.artifacts.export import METRIC, PARITY, Figure
from contracts.artifacts.signature import OutputSpec, Signature
from contracts.errors import DataError
from trainer.export.arrays import Array, Arrays, fill
from trainer.export.engine import Runner


@dataclass(frozen=True)
class Limits:
    """Limits of a file's outputs."""

    relative_error: float
    """Largest difference divided by the range of torch's output."""
    min_cosine: float
    """Cosine similarity of a sample's output with torch's."""


# At least ten times the relative error of correct graphs of ResNet and ViT (fp32 7e-7, fp16 7e-4), and below that
# of one zeroed filter. int8 is judged by the metric: outputs of correct networks differ by 1e-2 to 8e-2.
LIMITS = {
    "fp32": Limits(relative_error=1e-4, min_cosine=0.9999),
    "fp16": Limits(relative_error=5e-3, min_cosine=0.9999),
    "int8": Limits(relative_error=float("inf"), min_cosine=0.9),
}
MAX_DROP = 0.005
"""Largest drop of the headline metric: absolute for a share, relative to torch's value for any other metric."""
_LEAST_DROP = 1e-4
# With fewer numbers per sample, the cosine is that of all samples together.
_LEAST_NUMBERS = 5
# Samples of the first batch that also run as batches of one.
_ALONE = 8


@dataclass(frozen=True)
class ModelFile:
    """A tested file and its runtime: fields of `Gate`."""

    precision: str
    file: str
    """Path below the export's folder."""
    ran: str
    """Package and version."""
    device: str = ""
    """GPU; empty: the CPU."""


@dataclass(frozen=True)
class Trial:
    """A batch that a file must run, with torch's outputs of it."""

    name: str
    """`batch 8`, `batch 64` or `length 16`. Trials with the same name have one result."""
    inputs: Arrays
    expected: Arrays
    place: int | None = None
    """Index of the batch in the proof; None: it is not one of the proof's batches."""


def make_trials(
    proof: Iterable[tuple[Arrays, Arrays]],
    ends: Iterable[tuple[str, Arrays, Arrays]],
    batches: tuple[int, int],
) -> Iterator[Trial]:
    """Yield the trials of a file: all samples, single samples, the largest batch, and the ends of dimensions.

    Args:
        proof: Inputs and torch's outputs, in batches of the tuned size; the last may be smaller.
        ends: Name of an end (`length 16`), inputs of that size and torch's outputs.
        batches: Tuned and largest batch size.
    """
    tuned, most = batches
    for place, (inputs, expected) in enumerate(proof):
        yield Trial(f"batch {tuned}", inputs, expected, place)
        if place:
            continue
        for row in range(min(_ALONE, len(next(iter(inputs.values())))) if tuned > 1 else 0):
            yield Trial("batch 1", _rows(inputs, row), _rows(expected, row))
        if most != tuned:
            yield Trial(f"batch {most}", fill(inputs, most), fill(expected, most))
    for name, inputs, expected in ends:
        yield Trial(name, inputs, expected)


def judge_parity(
    run: Runner,
    trials: Iterable[Trial],
    signature: Signature,
    model_file: ModelFile,
    *,
    observe: Callable[[Trial, Arrays], None] | None = None,
) -> Gate:
    """Return the gate `parity`: whether a file's outputs agree with torch's in every trial.

    Args:
        run: Runs the file.
        trials: At least one (`make_trials`).
        signature: Inputs and outputs of the file.
        model_file: The file.
        observe: Called with each trial and its outputs.

    Raises:
        DataError: torch's outputs are not finite, or all equal where they are classes.
    """
    by_name: dict[str, dict[str, _Difference]] = {}
    for trial in trials:
        outputs = run(trial.inputs)
        if observe is not None:
            observe(trial, outputs)
        differences = by_name.setdefault(
            trial.name, {name: _Difference(name, spec, trial.name) for name, spec in signature.outputs.items()}
        )
        for name, difference in differences.items():
            difference.add(trial.expected[name], outputs[name])
    limits = LIMITS[model_file.precision]
    all_samples = next(iter(by_name.values()))
    # The range of a few samples is smaller, and would make the same error larger.
    spans = {name: difference.span for name, difference in all_samples.items()}
    figures: dict[str, Figure] = {"samples": max(each.samples for each in all_samples.values())}
    reasons = []
    for trial_name, differences in by_name.items():
        errors = {name: each.relative_error(spans[name]) for name, each in differences.items()}
        error, cosine = max(errors.values()), min(each.min_cosine for each in differences.values())
        at = "" if differences is all_samples else f" at {trial_name}"
        figures |= {f"relative_error{at}": error, f"min_cosine{at}": cosine}
        # Written so that a NaN fails.
        if not (error <= limits.relative_error and cosine >= limits.min_cosine):
            worst = max(errors, key=lambda name: errors[name])
            reasons.append(f"{trial_name}: output {worst} differs from torch's")
    named = {"relative_error": limits.relative_error, "min_cosine": limits.min_cosine}
    return Gate(
        name=PARITY,
        **vars(model_file),
        status="failed" if reasons else "passed",
        figures=figures,
        limits={name: limit for name, limit in named.items() if np.isfinite(limit)},
        reason="; ".join(reasons),
    )


def judge_metric(
    expected: Mapping[str, float], actual: Mapping[str, float], headline: Headline, file: ModelFile, *, samples: int
) -> Gate:
    """Return the gate `metric`: whether the headline metric drops by at most `allowed_drop`.

    Args:
        expected: Metrics of torch's outputs by name.
        actual: Metrics of the file's outputs.
        headline: Metric and direction.
        file: The file.
        samples: Number of samples that both are of.
    """
    name, reference, value = headline.metric, expected.get(headline.metric), actual.get(headline.metric)
    figures: dict[str, Figure] = {"samples": samples, f"torch {name}": reference, name: value}
    limits: dict[str, float] = {}
    if reference is None or value is None:
        reason = f"{name} of {'torch' if reference is None else 'the file'} is not finite"
    else:
        allowed = allowed_drop(headline, reference, samples)
        drop = reference - value if headline.direction == "max" else value - reference
        figures["drop"], limits["drop"] = drop, allowed
        # Tolerates rounding: the drop of a share is a multiple of 1 / samples.
        reason = "" if drop <= allowed + 1e-9 else f"{name} is {value:.6g}, torch's is {reference:.6g}"
    return Gate(
        name=METRIC,
        **vars(file),
        status="failed" if reason else "passed",
        figures=figures,
        limits=limits,
        reason=reason,
    )


def allowed_drop(headline: Headline, reference: float, samples: int) -> float:
    """Return how much worse than torch's a headline metric may be.

    For a share: 0.005, at least one sample. For any other metric: 0.005 of its value, at least 1e-4.

    Args:
        headline: Metric and direction.
        reference: torch's value.
        samples: Number of samples.
    """
    if headline.direction == "max" and abs(reference) <= 1:
        return max(MAX_DROP, 1 / samples)
    return max(MAX_DROP * abs(reference), _LEAST_DROP)


def describe_failed(gates: Iterable[Gate]) -> str:
    """Return one line per failed gate with figures and limits; empty if none failed."""
    lines = []
    for gate in gates:
        if gate.status == "failed":
            limits = ", ".join(f"{name} {value:.3g}" for name, value in gate.limits.items())
            figures = ", ".join(
                f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in gate.figures.items()
            )
            lines.append(f"{gate.name} of {gate.file}: {gate.reason} (measured: {figures}; limits: {limits})")
    return "\n  ".join(lines)


def _rows(arrays: Arrays, row: int) -> Arrays:
    return {name: array[row : row + 1] for name, array in arrays.items()}


@dataclass
class _Difference:
    """Differences of one output, accumulated over batches."""

    name: str
    spec: OutputSpec
    trial: str
    samples: int = 0
    low: float = float("inf")
    high: float = float("-inf")
    largest: float = 0.0
    cosine: float = 1.0
    """The smallest of a sample."""
    products: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    """Sums of expected x actual, expected x expected, actual x actual."""

    def add(self, expected: Array, actual: Array) -> None:
        """Add a batch."""
        self.samples += len(expected)
        left, right = (np.asarray(array, np.float64) for array in (expected, actual))
        # Infinity and NaN in an output carry over to the figures.
        with np.errstate(all="ignore"):
            self.low, self.high = float(np.minimum(self.low, left.min())), float(np.maximum(self.high, left.max()))
            if left.shape != right.shape:
                self.largest = float("inf")
                return
            self.largest = float(np.maximum(self.largest, np.abs(right - left).max()))
            left, right = left.reshape(len(left), -1), right.reshape(len(right), -1)
            products = np.stack([(left * right).sum(1), (left * left).sum(1), (right * right).sum(1)])
            self.products += products.sum(axis=1)
            if left.shape[1] >= _LEAST_NUMBERS:
                self.cosine = float(np.minimum(self.cosine, min(map(_cosine, *products))))

    @property
    def min_cosine(self) -> float:
        """Smallest cosine of a sample; with few numbers per sample, the cosine of all samples."""
        cosine = min(self.cosine, _cosine(*self.products))
        return cosine if np.isfinite(cosine) else -1.0

    @property
    def span(self) -> float:
        """Range of torch's output; the absolute value of a constant.

        Raises:
            DataError: The output is not finite, or a classifier's output is constant.
        """
        span = self.high - self.low
        if not np.isfinite(span):
            raise self._not_finite()
        if not span and self.spec.compare == "classes":
            raise DataError(
                f"the model returns the same {self.name} for every sample of the test split",
                allowed="weights whose outputs differ",
                todo="training has collapsed: check the training loss, and train again",
            )
        return float(span or abs(self.low))

    def relative_error(self, span: float) -> float:
        """Return the largest difference divided by a range; the largest float if that is not finite.

        Raises:
            DataError: torch's own output is not finite.
        """
        if not np.isfinite(self.high - self.low):
            raise self._not_finite()
        if not self.largest:
            return 0.0
        error = self.largest / span if span else float("inf")
        return error if np.isfinite(error) else sys.float_info.max

    def _not_finite(self) -> DataError:
        return DataError(
            f"the trained model's output {self.name} is not finite on the test split ({self.trial})",
            allowed="weights with finite outputs",
            todo="training has diverged: check the training loss, and train again",
        )


def _cosine(product: float, left: float, right: float) -> float:
    """Return the cosine of two vectors from their products; 1 if both are zero, 0 if one is."""
    if not left or not right:
        return 1.0 if left == right else 0.0
    return float(product / (np.sqrt(left) * np.sqrt(right)))
