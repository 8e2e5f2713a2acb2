"""Slots of rows that a task takes as columns: all their fields at once, or out of a split that is held in memory.

Rows of a table are small and many: one by one, each costs more in Python than all of its bytes. Whichever way is taken,
the batch is the same to the bit; what is wrong with a row is said by the way that takes it alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from contracts.errors import ConfigError, UserError
from trainer.data.order.cursor import SlotRequest
from trainer.data.reader import ShardReader
from trainer.tasks.load import describe_failure
from trainer.tasks.optional import columns_collator
from trainer.tasks.protocol import Batch, Task

# Of a split's rows as arrays, by each process that reads them: two million rows of thirty numbers.
MOST_HELD_BYTES = 256 << 20
# Rows that are made into arrays at a time: their bytes stay in the processor's cache.
_ROWS = 8192


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
    """A split of local shards as one batch, made when the first slot is asked for; slots are rows of it.

    Args:
        task: The task.
        reader: Of the split.
    """

    def __init__(self, task: Task, reader: ShardReader) -> None:
        self._task, self._reader = task, reader
        self._is_made = False
        self._whole: dict[str, torch.Tensor] | None = None

    def take(self, places: Sequence[int]) -> Batch | None:
        """Return the batch of samples; None where the split is not held."""
        if not self._is_made:
            self._is_made = True
            self._whole = self._make()
        if self._whole is None:
            return None
        rows = torch.tensor(places)
        return {name: tensor[rows] for name, tensor in self._whole.items()}

    def _make(self) -> dict[str, torch.Tensor] | None:
        """Return the batch of the whole split; None where it is too large, or not all of it comes as columns."""
        samples = len(self._reader)
        if columns_collator(self._task) is None or not self._reader.is_local:
            # Bytes of a bucket come as they are needed: the first slot is not to wait for all.
            return None
        whole: dict[str, torch.Tensor] = {}
        for first in range(0, samples, _ROWS):
            part = collate_columns(self._task, self._reader, range(first, min(first + _ROWS, samples)))
            if part is None:
                return None
            if not whole:
                if sum(tensor[0].nbytes for tensor in part.values()) * samples > MOST_HELD_BYTES:
                    return None
                whole = {name: tensor.new_empty(samples, *tensor.shape[1:]) for name, tensor in part.items()}
            for name, tensor in part.items():
                whole[name][first : first + len(tensor)] = tensor
        return whole
