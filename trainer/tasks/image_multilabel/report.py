"""What a task with several labels shows of the test split: every class at its threshold, and the worst samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from contracts.artifacts import EvaluationReport
from contracts.artifacts.multilabel import LabelOutcome, LabelScore, MultilabelDetails, WorstSample
from trainer.tasks.classes.losses import PerSample
from trainer.tasks.image_multilabel.passing import average_precision
from trainer.tasks.image_multilabel.scores import SplitScores
from trainer.tasks.images.predict import sigmoid
from trainer.tasks.protocol import Batch

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

# Samples named in the document, and classes of one of them.
WORST_SAMPLES = 50
MOST_LABELS = 20


@dataclass(frozen=True)
class _Said:
    """What was said of a sample."""

    loss: float
    place: int
    labels: list[int]
    missed: list[tuple[int, float]]
    wrong: list[tuple[int, float]]


class MultilabelReport:
    """The report on a split of one rank, and with `merge` that of all (trainer/tasks/optional.py, SplitReport).

    Args:
        classes: Names of the classes.
        thresholds: Probability of each class from which on a sample is said to have it.
        device: Where the logits are.
        exact: Whether all scores of the split are gathered.
        loss: Of each sample.
    """

    def __init__(
        self,
        classes: Sequence[str],
        thresholds: Sequence[float],
        device: torch.device,
        *,
        exact: bool,
        loss: PerSample,
    ) -> None:
        self._classes, self._loss = classes, loss
        self._thresholds = np.array(thresholds, np.float64)
        self._scores = SplitScores(len(classes), device, exact=exact)
        # [3, classes]: samples of each class, said to have it, and both.
        self._counts = np.zeros((3, len(classes)), np.int64)
        self._exact = 0
        self._worst: list[_Said] = []

    def add(self, outputs: torch.Tensor, batch: Batch, *, first_place: int) -> None:
        """Take in logits [B, classes] float32 and their labels."""
        labels = batch["label"] > 0.5
        self._scores.add(outputs, labels, first_place=first_place)
        losses = self._loss(outputs, batch["label"]).tolist()
        is_class, probabilities = labels.cpu().numpy(), sigmoid(outputs.cpu().numpy())
        is_said = probabilities >= self._thresholds
        self._counts += [is_class.sum(axis=0), is_said.sum(axis=0), (is_class & is_said).sum(axis=0)]
        self._exact += int((is_class == is_said).all(axis=1).sum())
        worst = sorted(range(len(losses)), key=lambda row: (-losses[row], row))[:WORST_SAMPLES]
        self._keep_worst(
            _Said(
                losses[row],
                first_place + row,
                np.flatnonzero(is_class[row])[:MOST_LABELS].tolist(),
                _ranked(probabilities[row], is_class[row] & ~is_said[row]),
                _ranked(probabilities[row], is_said[row] & ~is_class[row], falling=True),
            )
            for row in worst
        )

    def _keep_worst(self, said: Any) -> None:
        self._worst = sorted([*self._worst, *said], key=lambda one: (-one.loss, one.place))[:WORST_SAMPLES]

    def merge(self) -> None:
        """Take in the reports of all ranks, at the first rank; all must call this."""
        self._scores.merge()
        parts: list[tuple[npt.NDArray[np.int64], int, list[_Said]]] | None = None
        own = (self._counts, self._exact, self._worst)
        if dist.get_rank() == 0:
            parts = [own] * dist.get_world_size()
        dist.gather_object(own, parts, dst=0)
        if parts is None:
            return
        self._counts = np.sum([counts for counts, _, _ in parts], axis=0)
        self._exact = sum(exact for _, exact, _ in parts)
        self._worst = []
        self._keep_worst(one for _, _, worst in parts for one in worst)

    def places(self) -> list[int]:
        """Return the places of the worst samples in the split."""
        return [said.place for said in self._worst]

    def details(self, origins: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Return every class at its threshold, and the worst samples.

        Args:
            origins: Shard and key of each sample of `places`.
        """
        scores = self._scores.by_class()
        assert scores is not None, "a report is made of a split with samples"
        outcomes = [
            LabelOutcome(
                name=name,
                threshold=threshold,
                positives=positives,
                predicted=predicted,
                right=right,
                precision=right / predicted if predicted else None,
                recall=right / positives if positives else None,
                f1=2 * right / (predicted + positives) if predicted + positives else None,
                average_precision=average_precision(one.ranking),
            )
            for name, threshold, positives, predicted, right, one in zip(
                self._classes, self._thresholds.tolist(), *self._counts.tolist(), scores, strict=True
            )
        ]
        worst = [
            WorstSample(
                shard=shard,
                key=key,
                place=said.place,
                loss=said.loss,
                labels=said.labels,
                missed=[LabelScore(label=label, probability=score) for label, score in said.missed],
                wrong=[LabelScore(label=label, probability=score) for label, score in said.wrong],
            )
            for said, (shard, key) in zip(self._worst, origins, strict=True)
        ]
        return MultilabelDetails(classes=outcomes, exact=self._exact, worst=worst).model_dump(mode="json")

    def show(self, writer: SummaryWriter, report: EvaluationReport, step: int) -> None:
        """Show nothing besides the scalars of the result."""


def _ranked(
    probabilities: npt.NDArray[np.float64], chosen: npt.NDArray[np.bool_], *, falling: bool = False
) -> list[tuple[int, float]]:
    """Return the chosen classes with their probabilities, the lowest or the highest first."""
    places = np.flatnonzero(chosen)
    order = np.argsort(-probabilities[places] if falling else probabilities[places], kind="stable")[:MOST_LABELS]
    return [(int(place), float(probabilities[place])) for place in places[order]]
