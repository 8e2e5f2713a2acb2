"""The details of an evaluation of a regression: residuals, values against targets, and the worst samples.

Nothing but the tasks that learn a number for each sample, and the pages that show them, reads them.
"""

from __future__ import annotations

from contracts.artifacts.document import Document
from contracts.artifacts.task_details import TaskDetails

TASKS = ("tabular_regression",)
"""Names of the tasks whose samples have one number each."""


class WorstValue(Document):
    """A sample whose value is far from its target."""

    shard: str
    """Path of its shard, seen from the shards' folder."""
    key: str
    """Its key in the shard."""
    place: int
    """Its place in the split."""
    target: float
    value: float
    """What the model said."""


class RegressionDetails(TaskDetails):
    """Residuals (value less target), values against targets, and the worst samples, all in the target's unit."""

    OF_TASKS = TASKS

    target: str
    """Name of the target's column."""
    mean: float
    """Of the targets of the training split."""
    std: float
    """Of the targets of the training split; 1 where all are alike."""
    residual_width: float
    """Of a bin of `residuals`."""
    residuals: list[tuple[int, int]]
    """Bins that are not empty: number and samples, in ascending order. Bin n has residuals from (n - 0.5) to (n + 0.5)
    widths; the first and the last that there are hold all beyond."""
    most_bin: int
    """Number of the last bin that there is; the first one is its negative."""
    least: float
    """Where the first row and column of `cells` begin: the smallest target of the training split."""
    cell_width: float
    """Of a row or column of `cells`; those at the ends hold all beyond."""
    num_cells: int
    """Number of rows, and of columns, of `cells`."""
    cells: list[tuple[int, int, int]]
    """Cells that are not empty: place of the target, place of the value, samples. In this order."""
    worst: list[WorstValue]
    """The samples with the largest residuals, the largest first."""
