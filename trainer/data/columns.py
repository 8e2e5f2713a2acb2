"""Slots of rows that a task takes as columns: all their fields at once, or out of a split that is held in memory.

Rows of a table are small and many: one by one, each costs more in Python than all of its bytes. Whichever way is taken,
the batch is the same to the bit; what is wrong with a row is said by the way that takes it alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from contracts.errors import ConfigError, UserError
from trainer.data.order.cursor import SlotRequest
from trainer.data.reader import ShardReader
from trainer.tasks.load import describe_failure
from trainer.tasks.optional import columns_collator
from trainer.tasks.protocol import Batch, Task

# Of a split's rows as arrays, by each process that reads them: two million rows of thirty numbers.
MOST_HELD_BYTES = 256 << 20
# Rows that are made into arrays at a time, and their bytes in the shards: rows of few bytes stay in the processor's
# cache, and of long ones there are not many in memory.
_ROWS, PART_BYTES = 8192, 32 << 20


def collate_columns(
    task: Task, reader: ShardReader, places: Sequence[int], request: SlotRequest | None = None
) -> Batch | None:
    """Have a task make a batch of columns; None where it takes samples one by one, or these have to be taken so.

    Args:
        task: The task.
        reader: Of the split.
        places: Of the samples in the split.
        request: That the samples are of, in training.

    Raises:
        DataError: A sample is damaged, where that is seen before it is taken.
        ConfigError: The task fails, or makes no batch of tensors.
    """
    make = columns_collator(task)
    if make is None:
        return None
    reader.prepare(list(places), request)
    columns = reader.columns(places)
    if columns is None:
        return None
    try:
        batch = make(columns)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # the user's code: whatever it raises is theirs to mend
        raise _error(f"failed on {len(places)} samples: {describe_failure(error)}") from error
    if batch is not None:
        _check(batch, len(places))
    return batch


def _check(batch: object, samples: int) -> None:
    if not isinstance(batch, dict):
        raise _error(f"returned a {type(batch).__name__}")
    for name, tensor in batch.items():
        if not isinstance(tensor, torch.Tensor) or not tensor.ndim or len(tensor) != samples:
            shape = f"a tensor {list(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise _error(f"returned {name} as {shape} for {samples} samples")


def _error(found: str) -> ConfigError:
    return ConfigError(
        f"the task's collate_columns {found}",
        allowed="a dictionary of tensors [B, ...], or None for samples that are to be taken one by one",
        todo="correct collate_columns, or leave it out (docs/tasks.md)",
    )


class HeldRows:
    """The rows of a split that were read before, as one batch; slots are rows of it.

    Of local shards the whole split is read when the first slot is asked for: side by side, a row costs a third. Bytes
    of a bucket come as they are needed: the first slot is not to wait for all, and what is here is not read again.

    Args:
        task: The task.
        reader: Of the split.
    """

    def __init__(self, task: Task, reader: ShardReader) -> None:
        self._task, self._reader = task, reader
        self._is_possible = columns_collator(task) is not None
        self._whole: dict[str, torch.Tensor] = {}
        self._is_here = torch.zeros(0, dtype=torch.bool)

    def take(self, places: Sequence[int], request: SlotRequest) -> Batch | None:
        """Return the batch of the samples of a request; None where they are not held, nor can be."""
        if not self._is_possible:
            return None
        rows = torch.tensor(places)
        if not self._whole or not self._is_here[rows].all():
            if self._reader.is_local:
                self._is_possible = self._read_whole()
            elif not self._keep((rows[~self._is_here[rows]] if self._whole else rows).unique(), request):  # type: ignore[no-untyped-call]
                return None
        if not self._is_possible:
            self._whole = {}
            return None
        return {name: tensor[rows] for name, tensor in self._whole.items()}

    def _read_whole(self) -> bool:
        """Read all rows; return False where not all of them come as columns, or they are too large."""
        return all(self._keep(torch.arange(part.start, part.stop), None) for part in self._parts())

    def _parts(self) -> Iterator[range]:
        """Yield the rows that are read at a time; at least one, whatever its bytes."""
        samples = len(self._reader)
        for first in range(0, samples, _ROWS):
            last = min(first + _ROWS, samples)
            ends = self._reader.sizes(range(first, last)).cumsum()
            done = 0
            while done < len(ends):
                limit = PART_BYTES + (ends[done - 1] if done else 0)
                count = max(1, int(np.searchsorted(ends, limit, side="right")) - done)
                yield range(first + done, first + done + count)
                done += count

    def _keep(self, rows: torch.Tensor, request: SlotRequest | None) -> bool:
        """Read rows; return False where they do not come as columns, or all rows would be too large."""
        part = collate_columns(self._task, self._reader, rows.tolist(), request)
        if part is None:
            return False
        if not self._whole:
            samples = len(self._reader)
            if sum(tensor[0].nbytes for tensor in part.values()) * samples > MOST_HELD_BYTES:
                self._is_possible = False
                return False
            # The system gives memory as rows come in.
            self._whole = {name: tensor.new_empty(samples, *tensor.shape[1:]) for name, tensor in part.items()}
            self._is_here = torch.zeros(samples, dtype=torch.bool)
        for name, tensor in part.items():
            self._whole[name][rows] = tensor
        self._is_here[rows] = True
        return True
