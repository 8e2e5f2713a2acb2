"""Gates `parity` and `metric`: outputs of an exported file against torch's on the same samples.

Here: `make_trials` and `judge_parity`; `judge_metric` holds the headline metric against torch's. Whoever calls gives
the function that runs the file (engine.py). Nothing here needs torch.

Parity on a CPU proves of an fp16 graph the rounding of its weights: ONNX Runtime computes it in fp32. `Gate.device`
says what ran.
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
    """Of the largest difference over the range of torch's output."""
    min_cosine: float
    """Of a sample's numbers with torch's."""


# Ten times and more above what sound graphs of ResNet and ViT showed (fp32 7e-7, fp16 7e-4 relative error), and below
# what one zeroed filter does. int8 is judged by the metric: sound networks were seen 1e-2 to 8e-2 apart.
LIMITS = {
    "fp32": Limits(relative_error=1e-4, min_cosine=0.9999),
    "fp16": Limits(relative_error=5e-3, min_cosine=0.9999),
    "int8": Limits(relative_error=float("inf"), min_cosine=0.9),
}
MAX_DROP = 0.005
"""Largest drop of the headline metric: of a share in points, of any other metric as a part of torch's value."""
_LEAST_DROP = 1e-4
# A sample's outputs of fewer numbers have little direction: the cosine is then that of all samples together.
_LEAST_NUMBERS = 5
# Samples of the first batch that run alone.
_ALONE = 8


@dataclass(frozen=True)
class Subject:
    """A file that gates run, and what runs it: fields of `Gate`."""

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
    """What is tried: `batch 8`, `batch 64`, `length 16`. Trials of one name are judged together."""
    inputs: Arrays
    expected: Arrays
    place: int | None = None
    """Place of the batch in the proof; None: it is a part of one, or none of them."""


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
        for row in range(min(_ALONE, _samples_of(inputs)) if tuned > 1 else 0):
            yield Trial("batch 1", _rows(inputs, row), _rows(expected, row))
        if most != tuned:
            yield Trial(f"batch {most}", fill(inputs, most), fill(expected, most))
    for name, inputs, expected in ends:
        yield Trial(name, inputs, expected)


def judge_parity(
    run: Runner,
    trials: Iterable[Trial],
    signature: Signature,
    subject: Subject,
    *,
    observe: Callable[[Trial, Arrays], None] | None = None,
) -> Gate:
    """Return the gate `parity`: whether a file gives torch's outputs in every trial.

    Args:
        run: Runs the file.
        trials: At least one (`make_trials`).
        signature: Inputs and outputs of the file.
        subject: The file.
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
    limits = LIMITS[subject.precision]
    all_samples = next(iter(by_name.values()))
    # A few samples have a small range of their own, over which the same error is larger.
    spans = {name: difference.span for name, difference in all_samples.items()}
    figures: dict[str, Figure] = {"samples": max(one.samples for one in all_samples.values())}
    reasons = []
    for trial_name, differences in by_name.items():
        errors = {name: one.relative_error(spans[name]) for name, one in differences.items()}
        error, cosine = max(errors.values()), min(one.min_cosine for one in differences.values())
        at = "" if differences is all_samples else f" at {trial_name}"
        figures |= {f"relative_error{at}": error, f"min_cosine{at}": cosine}
        # Written so that a NaN fails.
        if not (error <= limits.relative_error and cosine >= limits.min_cosine):
            worst = max(errors, key=lambda name: errors[name])
            reasons.append(f"{trial_name}: output {worst} is not what torch computes")
    named = {"relative_error": limits.relative_error, "min_cosine": limits.min_cosine}
    return Gate(
        name=PARITY,
        **vars(subject),
        status="failed" if reasons else "passed",
        figures=figures,
        limits={name: limit for name, limit in named.items() if np.isfinite(limit)},
        reason="; ".join(reasons),
    )


def judge_metric(
    expected: Mapping[str, float], actual: Mapping[str, float], headline: Headline, subject: Subject, *, samples: int
) -> Gate:
    """Return the gate `metric`: whether the headline metric is hardly worse than torch's (`allowed_drop`).

    Args:
        expected: Metrics of torch's outputs by name.
        actual: Metrics of the file's outputs.
        headline: Metric and direction.
        subject: The file.
        samples: Number of samples that both are of.
    """
    name, reference, value = headline.metric, expected.get(headline.metric), actual.get(headline.metric)
    figures: dict[str, Figure] = {"samples": samples, f"torch {name}": reference, name: value}
    limits: dict[str, float] = {}
    if reference is None or value is None:
        reason = f"there is no {name} of {'torch' if reference is None else 'the file'}: it is no finite number"
    else:
        allowed = allowed_drop(headline, reference, samples)
        drop = reference - value if headline.direction == "max" else value - reference
        figures["drop"], limits["drop"] = drop, allowed
        # One sample of a share is no exact number.
        reason = "" if drop <= allowed + 1e-9 else f"{name} is {value:.6g}, torch's is {reference:.6g}"
    return Gate(
        name=METRIC,
        **vars(subject),
        status="failed" if reason else "passed",
        figures=figures,
        limits=limits,
        reason=reason,
    )


def allowed_drop(headline: Headline, reference: float, samples: int) -> float:
    """Return how much worse than torch's a headline metric may be.

    Of a share 0.005, but always one sample; of any other metric 0.005 of its value, and at least 1e-4.

    Args:
        headline: Metric and direction.
        reference: torch's value.
        samples: Number of samples.
    """
    if headline.direction == "max" and abs(reference) <= 1:
        return max(MAX_DROP, 1 / samples)
    return max(MAX_DROP * abs(reference), _LEAST_DROP)


def describe_failed(gates: Iterable[Gate]) -> str:
    """Return the gates that failed, a line each with figures and limits; empty: none did."""
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


def _samples_of(arrays: Arrays) -> int:
    return len(next(iter(arrays.values())))


def _rows(arrays: Arrays, row: int) -> Arrays:
    return {name: array[row : row + 1] for name, array in arrays.items()}


@dataclass
class _Difference:
    """Differences of one output, of batches taken in one after the other."""

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
        """Take in a batch."""
        self.samples += len(expected)
        left, right = (np.asarray(array, np.float64) for array in (expected, actual))
        # What is infinite or no number makes the figures so.
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
        """Smallest cosine of a sample's numbers; of few numbers, that of all samples."""
        cosine = min(self.cosine, _cosine(*self.products))
        return cosine if np.isfinite(cosine) else -1.0

    @property
    def span(self) -> float:
        """Range of torch's output; of a constant, its size.

        Raises:
            DataError: The output is not finite, or all equal where classes are read off it.
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
        """Return the largest difference over a range; one that is no number is as large as can be.

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
            f"the model's own output {self.name} is not finite on the test split ({self.trial})",
            allowed="weights with finite outputs",
            todo="training has diverged: check the training loss, and train again",
        )


def _cosine(product: float, left: float, right: float) -> float:
    """Return the cosine of two vectors of these products: 1 of two zeros, 0 of one."""
    if not left or not right:
        return 1.0 if left == right else 0.0
    return float(product / (np.sqrt(left) * np.sqrt(right)))
