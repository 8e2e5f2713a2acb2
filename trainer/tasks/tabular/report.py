"""What a regression shows of the test split: residuals, values against targets, and the worst samples.

All are counts, or a selection by value, so parts of ranks add up to the same whatever their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from contracts.artifacts import EvaluationReport
from contracts.artifacts.regression import RegressionDetails, WorstValue
from contracts.artifacts.shards import ColumnStatistics
from trainer.tasks.protocol import Batch, Sample
from trainer.tasks.tabular.inputs import LABEL
from trainer.tasks.tabular.network import deviation_of

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

# Bins on either side of 0, and how far they reach in standard deviations of the target. Of a model with an R2 of 0.9999
# nearly all residuals are in the ten bins in the middle; pages join bins where they are scattered wider.
MOST_BIN, MOST_DEVIATIONS = 2000, 4.0
# Rows and columns of values against targets.
NUM_CELLS = 48
# Samples named in the document.
WORST_SAMPLES = 50

Integers = npt.NDArray[np.int64]


class RegressionReport:
    """The report on a split of one rank, and with `merge` that of all (trainer/tasks/optional.py, SplitReport).

    Args:
        target: Statistics of the targets of the training split.
        column: Name of their column.
    """

    def __init__(self, target: ColumnStatistics, column: str) -> None:
        self._column, self._mean, self._std = column, target.mean or 0.0, deviation_of(target)
        self._bin_width = MOST_DEVIATIONS * self._std / MOST_BIN
        least, most = target.least or 0.0, target.most or 0.0
        self._least, self._cell_width = least, (most - least) / NUM_CELLS or 1.0
        self._residuals = np.zeros(2 * MOST_BIN + 1, np.int64)
        self._cells = np.zeros((NUM_CELLS, NUM_CELLS), np.int64)
        # Place in the split, target and value of each.
        self._worst: list[tuple[int, float, float]] = []

    def add(self, outputs: torch.Tensor, batch: Batch, *, first_place: int) -> None:
        """Take in values [B] float32 and their targets."""
        values, targets = (tensor.double().cpu().numpy() for tensor in (outputs, batch[LABEL]))
        bins = np.rint(np.nan_to_num((values - targets) / self._bin_width)).clip(-MOST_BIN, MOST_BIN)
        np.add.at(self._residuals, bins.astype(np.int64) + MOST_BIN, 1)
        np.add.at(self._cells, (self._place(targets), self._place(values)), 1)
        places = range(first_place, first_place + len(values))
        self._keep_worst(zip(places, targets.tolist(), values.tolist(), strict=True))

    def _place(self, values: npt.NDArray[np.float64]) -> Integers:
        found = np.floor(np.nan_to_num((values - self._least) / self._cell_width))
        return found.clip(0, NUM_CELLS - 1).astype(np.int64)

    def _keep_worst(self, found: Any) -> None:
        # Of equal ones the first: the choice hangs on nothing else.
        self._worst = sorted([*self._worst, *found], key=lambda one: (-abs(one[2] - one[1]), one[0]))[:WORST_SAMPLES]

    def merge(self) -> None:
        """Take in the reports of all ranks, at the first rank; all must call this."""
        own = (self._residuals, self._cells, self._worst)
        parts: list[tuple[Integers, Integers, list[tuple[int, float, float]]]] | None = None
        if dist.get_rank() == 0:
            parts = [own] * dist.get_world_size()
        dist.gather_object(own, parts, dst=0)
        if parts is None:
            return
        self._residuals = sum((part[0] for part in parts[1:]), parts[0][0])
        self._cells = sum((part[1] for part in parts[1:]), parts[0][1])
        self._worst = []
        self._keep_worst(one for part in parts for one in part[2])

    def places(self) -> list[int]:
        """Return the places of the worst samples in the split."""
        return [place for place, _, _ in self._worst]

    def details(self, origins: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Return residuals, values against targets, and the worst samples.

        Args:
            origins: Shard and key of each sample of `places`.
        """
        (bins,), (rows, columns) = self._residuals.nonzero(), self._cells.nonzero()
        found = RegressionDetails(
            target=self._column,
            mean=self._mean,
            std=self._std,
            residual_width=self._bin_width,
            residuals=list(zip((bins - MOST_BIN).tolist(), self._residuals[bins].tolist(), strict=True)),
            most_bin=MOST_BIN,
            least=self._least,
            cell_width=self._cell_width,
            num_cells=NUM_CELLS,
            cells=list(zip(rows.tolist(), columns.tolist(), self._cells[rows, columns].tolist(), strict=True)),
            worst=[
                WorstValue(shard=shard, key=key, place=place, target=target, value=value)
                for (place, target, value), (shard, key) in zip(self._worst, origins, strict=True)
            ],
        )
        return found.model_dump(mode="json")

    def show(self, writer: SummaryWriter, report: EvaluationReport, samples: Sequence[Sample], step: int) -> None:
        """Write the histogram of residuals for TensorBoard.

        Args:
            writer: Of the result.
            report: The evaluation.
            samples: The first samples of `places`.
            step: Of the checkpoint.
        """
        (bins,) = self._residuals.nonzero()
        centres, counts = (bins - MOST_BIN) * self._bin_width, self._residuals[bins]
        writer.add_histogram_raw(
            "test/residuals",
            min=float(centres[0] - self._bin_width / 2),
            max=float(centres[-1] + self._bin_width / 2),
            num=int(counts.sum()),
            sum=float((counts * centres).sum()),
            sum_squares=float((counts * centres**2).sum()),
            bucket_limits=(centres + self._bin_width / 2).tolist(),
            bucket_counts=counts.tolist(),
            global_step=step,
        )
