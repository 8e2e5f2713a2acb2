"""The proof: outputs of the exported graphs and of torch on the same inputs, compared and held against limits.

Here: `open_graph` (ONNX Runtime), `compare`, `judge`. Run by trainer/export/task.py.

What ONNX Runtime's CPU provider proves of an fp16 graph is the rounding of its weights: it drops the casts and computes
in fp32, so an activation that overflows in fp16 stays unseen. `Parity.ran` says so; only an engine on a GPU shows more.
Nothing here is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from contracts.artifacts import Gate, Parity
from contracts.artifacts.export import LEAST_OTHER_ANSWERS, Figure, OutputParity
from contracts.artifacts.signature import OutputSpec, Signature
from contracts.errors import DataError
from contracts.serving import graph_level
from trainer.export.gates.arrays import Array, Arrays, StoredArrays
from trainer.export.gates.sessions import open_session

Runner = Callable[[Mapping[str, Array]], Arrays]
"""Maps inputs by name to outputs by name; the first dimension of all is the batch."""

REFERENCE = "torch"
# Samples whose outputs are compared at a time: it decides memory.
_AT_A_TIME = 64


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
    # An fp32 graph on a GPU whose provider computes in TF32, which has fp16's 10 bits.
    "tf32": Limits(relative_error=5e-3, min_cosine=0.9999, top1_agreement=0.995),
    # Scales for a whole tensor err most at its ends, so the largest difference says little; accuracy is a gate beside.
    "int8": Limits(relative_error=float("inf"), min_cosine=0.99, top1_agreement=0.98),
}
# A sample's outputs of fewer numbers have little direction: two classes that are nearly as likely are a vector of
# almost no length, which any rounding turns.
LEAST_NUMBERS = 5
# Of answers that are many in a sample (an image's pixels): among millions some scores are as close as fp32's last
# digits.
MANY_ANSWERS_AGREEMENT = 0.9999


def open_graph(path: Path, *, threads: int, precision: str = "fp32") -> Runner:
    """Return a function that runs an ONNX file on the CPU with ONNX Runtime, optimised as Triton is told to.

    Args:
        path: The ONNX file.
        threads: Intra-op threads.
        precision: Of the graph: it decides the level (contracts.serving.graph_level).
    """
    session = open_session(path, threads=threads, level=graph_level(precision))
    names = [item.name for item in session.get_outputs()]

    def run(inputs: Mapping[str, Array]) -> Arrays:
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))

    return run


def name_of_onnx(precision: str) -> str:
    """Return what `open_graph` runs with, and what that proves, for `Parity.ran`."""
    import onnxruntime  # type: ignore[import-untyped]

    name = f"onnxruntime {onnxruntime.__version__} CPUExecutionProvider, {graph_level(precision)}"
    return name if precision == "fp32" else f"{name}; computes in fp32: proves the weights' rounding only"


@dataclass
class _Compared:
    """One output, of which batches are taken in one after the other."""

    spec: OutputSpec
    low: float = float("inf")
    high: float = float("-inf")
    difference: float = 0.0
    min_cosine: float = 1.0
    products: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    """Of outputs with few numbers a sample: sums of the product, and of either one's square."""
    answers: int = 0
    agreed: int = 0
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Answers of the reference by class."""
    finite: bool = True

    @property
    def decides(self) -> bool:
        """Whether it has classes to compare."""
        return self.spec.compare == "classes" and len(self.spec.shape) > 1

    @property
    def span(self) -> float:
        return self.high - self.low

    def add(self, expected: Array, found: Array) -> None:
        # What is infinite or no number is seen at the end.
        with np.errstate(all="ignore"):
            self._add(expected.astype(np.float64), found.astype(np.float64))

    def _add(self, expected: npt.NDArray[np.float64], found: npt.NDArray[np.float64]) -> None:
        # A NaN makes the least and the largest number one.
        self.low = float(np.minimum(self.low, expected.min()))
        self.high = float(np.maximum(self.high, expected.max()))
        self.finite &= bool(np.isfinite(found).all())
        self.difference = float(np.maximum(self.difference, np.abs(found - expected).max()))
        if self.decides:
            answers = expected.argmax(axis=1)
            self.agreed += int((answers == found.argmax(axis=1)).sum())
            self.answers += answers.size
            counts = np.bincount(answers.ravel(), minlength=expected.shape[1])
            self.counts = self.counts + counts if len(self.counts) else counts
        left, right = expected.reshape(len(expected), -1), found.reshape(len(found), -1)
        if left.shape[1] < LEAST_NUMBERS:
            self.products += [
                float((one * other).sum()) for one, other in ((left, right), (left, left), (right, right))
            ]
        else:
            self.min_cosine = float(np.minimum(self.min_cosine, _cosines(left, right).min()))

    def finish(self, name: str) -> OutputParity:
        """Return the figures.

        Raises:
            DataError: The reference is not finite, or all its numbers are one and answers are read off them.
        """
        is_constant = self.span == 0 and self.spec.compare == "values"
        if not is_constant and (not self.span > 0 or not np.isfinite(self.span)):
            raise DataError(
                f"the checkpoint's own {name} are {'all equal' if self.span == 0 else 'not finite'}",
                allowed="weights whose outputs can be compared",
                todo="look at the training run's loss; train again",
            )
        # What is one number has no range: it is held against itself, and zero must stay zero.
        span, min_cosine = abs(self.low) if is_constant else self.span, self.min_cosine
        relative_error = self.difference / span if span else sys.float_info.max if self.difference else 0.0
        if self.products[1] > 0:
            # The samples' numbers together are the vector.
            norms = float(np.sqrt(self.products[1] * self.products[2]))
            min_cosine = float(self.products[0]) / norms if norms > 0 else 0.0
        elif is_constant and not span and self.difference:
            # Zeros have no direction either.
            min_cosine = -1.0
        if not self.finite:
            # Neither is a number in JSON; both are as wrong as can be.
            relative_error, min_cosine = sys.float_info.max, -1.0
        return OutputParity(
            relative_error=relative_error,
            min_cosine=min_cosine,
            top1_agreement=self.agreed / self.answers if self.answers else None,
            reference_classes=int((self.counts > 0).sum()) if self.answers else None,
            answers=self.answers or None,
            reference_others=self.answers - int(self.counts.max()) if self.answers else None,
            many_answers=self.decides and len(self.spec.shape) > 2,
        )


def compare(
    reference: Iterable[Mapping[str, Array]],
    candidate: Iterable[Mapping[str, Array]],
    *,
    outputs: Mapping[str, OutputSpec],
    ran: str,
    precision: str,
) -> Parity:
    """Compare outputs with torch's, and hold them against the limits of `precision`.

    Each output is compared on its own, a sample's numbers as one vector, where there are at least `LEAST_NUMBERS` (else
    those of all samples); the worst of them counts.

    Args:
        reference: Batches of torch's outputs by name.
        candidate: Batches of the same samples.
        outputs: The signature's.
        ran: What computed the candidate.
        precision: Of the candidate.

    Raises:
        DataError: The reference itself is not finite, or all numbers of its classes are one number.
    """
    compared, samples = {name: _Compared(spec) for name, spec in outputs.items()}, 0
    for expected, found in zip(reference, candidate, strict=True):
        samples += len(next(iter(expected.values())))
        for name, one in compared.items():
            one.add(expected[name], found[name])
    figures = {name: one.finish(name) for name, one in compared.items()}
    deciding = [one for one in figures.values() if one.top1_agreement is not None]
    least = min(deciding, key=lambda one: one.top1_agreement or 0.0, default=None)
    return Parity(
        ran=ran,
        samples=samples,
        relative_error=max(one.relative_error for one in figures.values()),
        min_cosine=min(one.min_cosine for one in figures.values()),
        top1_agreement=None if least is None else least.top1_agreement,
        reference_classes=None if least is None else least.reference_classes,
        answers=None if least is None else least.answers,
        reference_others=None if least is None else least.reference_others,
        passed=all(_keeps(one, precision) and _agrees(one, precision) is not False for one in figures.values()),
        outputs=figures if len(figures) > 1 or any(one.many_answers for one in figures.values()) else {},
    )


def compare_stored(
    reference: StoredArrays,
    candidate: StoredArrays,
    signature: Signature,
    *,
    ran: str,
    precision: str,
    most: int | None = None,
) -> Parity:
    """Compare outputs that lie on disk, as `compare` does; the candidate's are those of the first `most` samples."""
    batches = reference.batches(_AT_A_TIME, most=most), candidate.batches(_AT_A_TIME)
    return compare(*batches, outputs=signature.outputs, ran=ran, precision=precision)


def _keeps(found: Parity | OutputParity, precision: str) -> bool:
    """Whether the numbers keep to the limits; written so that a NaN fails."""
    limits = LIMITS[precision]
    assert found.relative_error is not None and found.min_cosine is not None
    return found.relative_error <= limits.relative_error and found.min_cosine >= limits.min_cosine


def _agrees(found: OutputParity, precision: str) -> bool | None:
    """Whether the answers are the reference's; None where there are none, or where that says nothing.

    It says nothing where a graph that always gave the most frequent answer would pass, or hardly fail.
    """
    limit, others = _least_agreement(found, precision), found.reference_others or 0
    if found.top1_agreement is None or others < LEAST_OTHER_ANSWERS or others <= (1 - limit) * (found.answers or 0):
        return None
    return found.top1_agreement >= limit


def _least_agreement(found: OutputParity, precision: str) -> float:
    limit = LIMITS[precision].top1_agreement
    return min(limit, MANY_ANSWERS_AGREEMENT) if found.many_answers else limit


def judge(found: Parity, precision: str) -> list[Gate]:
    """Return the gates of a comparison: `parity` for the numbers; `top1` for the answers, where there are any."""
    if found.passed is None:
        return [
            Gate(name=name, precision=precision, status="not run", ran=found.ran, reason=found.ran)
            for name in ("parity", "top1")
        ]
    gates = [_judge_numbers(found, precision)]
    whole = OutputParity(**found.model_dump(include=set(OutputParity.model_fields) - {"many_answers"}))
    by_name = found.outputs or {"": whole}
    if deciding := {name: one for name, one in by_name.items() if one.top1_agreement is not None}:
        gates.append(_judge_answers(found, deciding, precision))
    return gates


def _judge_numbers(found: Parity, precision: str) -> Gate:
    limits = LIMITS[precision]
    keeps = _keeps(found, precision)
    figures: dict[str, Figure] = {
        "samples": found.samples,
        "relative_error": found.relative_error,
        "min_cosine": found.min_cosine,
    }
    if len(found.outputs) > 1:
        for name, one in found.outputs.items():
            figures |= {f"relative_error of {name}": one.relative_error, f"min_cosine of {name}": one.min_cosine}
    return Gate(
        name="parity",
        precision=precision,
        status="passed" if keeps else "failed",
        ran=found.ran,
        figures=figures,
        limits={
            **({} if np.isinf(limits.relative_error) else {"relative_error": limits.relative_error}),
            "min_cosine": limits.min_cosine,
        },
        reason="" if keeps else "it does not compute what torch computes",
    )


def _judge_answers(found: Parity, deciding: Mapping[str, OutputParity], precision: str) -> Gate:
    verdicts = {name: _agrees(one, precision) for name, one in deciding.items()}
    # What counts is the worst: an output that fails, else one that can be decided.
    worst = min(deciding, key=lambda name: {False: 0, True: 1, None: 2}[verdicts[name]])
    one, agrees = deciding[worst], verdicts[worst]
    figures: dict[str, Figure] = {
        "agreement": one.top1_agreement,
        "reference_classes": one.reference_classes,
        "other_answers": one.reference_others,
    }
    if len(deciding) > 1:
        figures |= {f"agreement of {name}": each.top1_agreement for name, each in deciding.items()}
    return Gate(
        name="top1",
        precision=precision,
        status="not decidable" if agrees is None else "passed" if agrees else "failed",
        ran=found.ran,
        figures=figures,
        limits={"agreement": _least_agreement(one, precision)},
        reason=f"{one.reference_others} of torch's {one.answers} answers are not its most frequent one: at least "
        f"{LEAST_OTHER_ANSWERS}, and more than may be others than torch's, are needed to say anything"
        if agrees is None
        else ""
        if agrees
        else "it gives other answers than torch",
    )


def _cosines(left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the cosine of each row; 1 where both rows are zero, 0 where one is."""
    left_norm, right_norm = np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1)
    product = left_norm * right_norm
    cosines: npt.NDArray[np.float64] = np.divide(
        (left * right).sum(axis=1), product, out=np.zeros_like(product), where=product != 0
    )
    cosines[(left_norm == 0) & (right_norm == 0)] = 1.0
    return cosines
