"""The task's metrics of exported graphs on the test split, and what a smaller precision may cost of them.

Here: `measure_scores`, `judge_scores` and `judge_evaluation`. Parity (parity.py) is about outputs; this is about what
they are worth, and needs what else the test split's batches hold. torch and torchmetrics are imported where a graph is
measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from contracts.artifacts import EVALUATION_NAME, LOSS, Gate, Headline
from contracts.artifacts.export import Figure

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from trainer.export.gates.arrays import StoredArrays
    from trainer.export.gates.proof import TestSplit
    from trainer.export.inputs import Inputs
    from trainer.tasks.task import Task

# What a graph may lose of the headline: 0.005 of a metric that is better when higher and at most 1 (a share), else that
# part of its value in fp32.
MAX_LOSS = 0.005


@dataclass(frozen=True)
class Scores:
    """The metrics of a graph."""

    values: Mapping[str, float]
    """By name, `loss` among them; without those that are no finite number."""
    headline: Headline

    @property
    def headline_value(self) -> float | None:
        """The headline metric."""
        return self.values.get(self.headline.metric)


def measure_scores(task: Task, config: RunConfig, split: TestSplit, outputs: StoredArrays, kind: str) -> Scores:
    """Return the metrics of outputs on the test split.

    Args:
        task: The task.
        config: The configuration.
        split: The test split.
        outputs: Of the split's inputs, in their order; those of noise behind them are left out.
        kind: What the model returns (`tensors.kind_of`).
    """
    import torch

    from trainer.export.gates.tensors import restore_outputs
    from trainer.tasks.loading import calling
    from trainer.tasks.metrics import SplitMetrics
    from trainer.tasks.on_device import checked_loss
    from trainer.tasks.task import Mode

    within = partial(calling, config)
    metrics, mode = SplitMetrics(task, torch.device("cpu"), within), Mode(training=False)
    total = count = 0.0
    with torch.inference_mode():
        batches = zip(split.rest, split.inputs.split(split.sizes), outputs.split(split.sizes), strict=False)
        for rest, inputs, found in batches:
            batch = torch.load(rest, weights_only=True)
            batch |= {name: torch.from_numpy(array) for name, array in inputs.items()}
            given = restore_outputs(found, kind)
            metrics.update(given, batch)
            with within("loss"):
                loss, counted = checked_loss(task.loss(given, batch, mode), config)
            total, count = total + float(loss), count + float(counted)
    values = metrics.values() | ({LOSS: total / count} if count else {})
    return Scores(values, metrics.headline)


def allowed_loss(headline: Headline, value: float) -> float:
    """Return how far a graph may fall behind a value of the headline metric."""
    return MAX_LOSS if headline.direction == "max" and abs(value) <= 1 else MAX_LOSS * abs(value)


def judge_scores(*, precision: str, reference: Scores, found: Scores, samples: int, ran: str) -> Gate:
    """Hold the headline metric of a graph against that of fp32 on the same samples.

    Args:
        precision: Of the graph.
        reference: Metrics of the fp32 graph.
        found: Metrics of this graph.
        samples: Of the test split.
        ran: What computed the outputs.

    Returns:
        The gate `metric`. It fails where there is no such number.
    """
    name, direction = reference.headline.metric, reference.headline.direction
    expected, value = reference.headline_value, found.headline_value
    figures: dict[str, Figure] = {"samples": samples, f"fp32 {name}": expected, name: value}
    reason, limits = "", {}
    if expected is None or value is None:
        reason = f"{name} is no finite number"
    else:
        loss = (expected - value) if direction == "max" else (value - expected)
        allowed = allowed_loss(reference.headline, expected)
        figures["loss"], limits = loss, {"loss": allowed}
        if loss > allowed:
            reason = f"{name} is {value:.6g}, and {expected:.6g} in fp32; at most {allowed:.6g} may be lost"
    return Gate(
        name="metric",
        precision=precision,
        status="failed" if reason else "passed",
        ran=ran,
        figures=figures,
        limits=limits,
        reason=reason,
    )


def judge_evaluation(inputs: Inputs, split: TestSplit, scores: Mapping[str, Scores], ran: str) -> Gate:
    """Hold the headline metric of the fp32 graph against training's evaluation.json, be it better or worse.

    On a part of the test split, which evaluation.json does not count, it is held against torch's.

    Args:
        inputs: Of the export.
        split: The samples of the test split.
        scores: Metrics of these samples, of torch and of the fp32 graph.
        ran: What computed the graph's outputs.

    Returns:
        The gate `evaluation`.
    """
    headline = scores["fp32"].headline
    name, value = headline.metric, scores["fp32"].headline_value
    if split.places is None:
        evaluation, missing = inputs.find_evaluation()
        if evaluation is None:
            return Gate(
                name="evaluation", precision="fp32", status="not run", ran=f"not run: {missing}", reason=missing
            )
        expected, origin = evaluation.value(name), EVALUATION_NAME
    else:
        expected, origin = scores["torch"].headline_value, "torch"
    apart = None if expected is None or value is None else abs(value - expected)
    limit = None if expected is None else allowed_loss(headline, expected)
    passed = apart is not None and limit is not None and apart <= limit
    return Gate(
        name="evaluation",
        precision="fp32",
        status="passed" if passed else "failed",
        ran=ran,
        figures={"samples": split.samples, name: value, f"{origin} {name}": expected, "difference": apart},
        limits={} if limit is None else {"difference": limit},
        reason="" if passed else f"{name} of the graph is {value}, and {expected} in {origin}",
    )
