"""The first samples of a training as its network got them, where they are no images: a table of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from contracts.artifacts.evaluation import FIRST_ROWS_NAME, FirstRows
from trainer.tasks.optional import Taken
from trainer.tasks.protocol import Batch

MOST_ROWS, MOST_COLUMNS = 16, 64
# Of a cell; a text may have thousands of tokens.
MOST_CHARACTERS = 600
TAG = "first_slot"


class RowsSlot:
    """Keeps a copy of some samples on the device, until somebody has time to look at them.

    Args:
        columns: Heads of the table; of more than 64 the first ones are shown, and the last one, which is the label's.
        describe: Returns the cells of each sample of a batch that was kept.
    """

    def __init__(self, columns: Sequence[str], describe: Callable[[Batch], Sequence[Sequence[str]]]) -> None:
        self._columns, self._describe = columns, describe
        self._kept: Batch | None = None

    def keep(self, batch: Batch) -> None:
        """Keep the first samples of a slot; nothing waits for the device."""
        self._kept = {name: one[:MOST_ROWS].detach().clone() for name, one in batch.items() if torch.is_tensor(one)}

    def take(self) -> Taken | None:
        """Return what was kept, once; None where there is nothing. It waits for the device."""
        from torch.utils.tensorboard.summary import text

        if self._kept is None:
            return None
        kept, self._kept = {name: one.cpu() for name, one in self._kept.items()}, None
        columns, rows = _cut(self._columns), [_cut(row) for row in self._describe(kept)]
        found = FirstRows(columns=columns, rows=rows)
        # A block of code: nothing in it is Markdown.
        lines = "\n".join(f"    {'; '.join(row)}" for row in rows)
        summary = text(TAG, f"The first samples of step 1 as the network got them:\n\n{lines}")  # type: ignore[no-untyped-call]
        return Taken(summary, FIRST_ROWS_NAME, (found.model_dump_json(indent=1) + "\n").encode())


def _cut(cells: Sequence[str]) -> list[str]:
    shown = [*cells[:MOST_COLUMNS], cells[-1]] if len(cells) > MOST_COLUMNS + 1 else cells
    return [cell if len(cell) <= MOST_CHARACTERS else f"{cell[: MOST_CHARACTERS - 1]}\u2026" for cell in shown]
