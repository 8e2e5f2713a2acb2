"""Per-sample outcomes of the test split, gathered from all ranks and written as test-predictions.parquet.

Rank 0 keeps them in memory: about 350 bytes per sample for classification, so 1 GB is enough for three million.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from contracts.config import RunConfig
from trainer.data.evaluation import EvaluationBatch
from trainer.parallel.process_group import Rank
from trainer.tasks.loading import calling, task_error
from trainer.tasks.task import Columns, Outputs, Task

_NAMED_COLUMNS = ("label", "answer")
_COLUMNS = (*_NAMED_COLUMNS, "probability")


@dataclass(frozen=True)
class SplitOutcomes:
    """Outcomes of all samples of a split, in split order."""

    columns: Columns
    """Columns of the task's `outcomes`, plus `shard` and `key`."""
    paths: list[str | None]
    """Source path of each sample, or the beginning of its row; None: unknown or hidden."""

    def to_parquet(self, classes: Sequence[str]) -> bytes:
        """Return the Parquet file: key, path, and the task's columns label, answer and probability.

        Class indices become class names. Columns of other types than numbers, strings and their lists become JSON.

        Raises:
            TypeError, ValueError: A column has values without a JSON form.
        """
        import pyarrow as pa  # type: ignore[import-untyped]
        from pyarrow import parquet

        columns = {"key": pa.array(self.columns["key"], pa.string()), "path": pa.array(self.paths, pa.string())}
        for name in (name for name in _COLUMNS if name in self.columns):
            values = [plain(value) for value in self.columns[name]]
            if classes and name in _NAMED_COLUMNS:
                values = [class_names(value, classes) for value in values]
            try:
                columns[name] = pa.array(values)
                is_plain = all(map(_is_plain, values))
            except (pa.ArrowException, OverflowError):
                is_plain = False
            if not is_plain:
                columns[name] = pa.array([json.dumps(value, ensure_ascii=False) for value in values])
        stream = io.BytesIO()
        parquet.write_table(pa.table(columns), stream, compression="zstd")
        return stream.getvalue()


class OutcomeCollector:
    """Collects outcomes of one rank; `gather` returns those of all ranks."""

    def __init__(self, task: Task, config: RunConfig) -> None:
        self._task, self._config = task, config
        self._batches: list[tuple[int, Columns, list[str | None]]] = []

    def add(self, outputs: Outputs, batch: EvaluationBatch) -> None:
        """Add the outcomes of a batch.

        Raises:
            ConfigError: The task's `outcomes` fails, or does not return one value per sample.
        """
        samples = len(batch.places)
        with calling(self._config, "outcomes"):
            columns = {name: _on_host(values) for name, values in self._task.outcomes(outputs, batch.tensors).items()}
            sizes = {name: len(values) for name, values in columns.items() if len(values) != samples}
        if sizes or columns.keys() & {"shard", "key"}:
            raise task_error(
                self._config,
                "outcomes",
                f"returned {sizes or ', '.join(columns)} for {samples} samples",
                allowed="an array or a list with a value for each sample, by a name other than shard and key",
            )
        columns |= {name: [getattr(origin, name) for origin in batch.origins] for name in ("shard", "key")}
        self._batches.append((batch.places.start, columns, [origin.path for origin in batch.origins]))

    def gather(self, rank: Rank) -> SplitOutcomes | None:
        """Return the outcomes of all ranks on rank 0, None on others; collective.

        Raises:
            ConfigError: Batches have different columns.
        """
        gathered = [self._batches] * rank.ranks if rank.is_first else None
        dist.gather_object(self._batches, gathered, dst=0)
        if gathered is None:
            return None
        self._batches = sorted((batch for part in gathered for batch in part), key=lambda batch: batch[0])
        return self.join()

    def join(self) -> SplitOutcomes:
        """Return the outcomes of the added or gathered batches, and clear the collector.

        Raises:
            ConfigError: Batches have different columns.
        """
        batches, self._batches = self._batches, []
        if any(columns.keys() != batches[0][1].keys() for _, columns, _ in batches):
            raise task_error(
                self._config, "outcomes", "returned different columns for two batches", allowed="always the same ones"
            )
        # pop() frees each part as it is joined.
        columns = {name: _joined([columns.pop(name) for _, columns, _ in batches]) for name in list(batches[0][1])}
        return SplitOutcomes(columns, [path for _, _, paths in batches for path in paths])


def _on_host(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values


def _joined(parts: list[Any]) -> Any:
    """Concatenate arrays of equal sample shapes; otherwise return a list."""
    if all(isinstance(part, np.ndarray) and part.shape[1:] == parts[0].shape[1:] for part in parts):
        return np.concatenate(parts)
    return [value for part in parts for value in part]


def plain(value: Any) -> Any:
    """Convert numpy and torch values to Python values."""
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def class_names(value: Any, classes: Sequence[str]) -> Any:
    """Replace class indices by class names."""
    if isinstance(value, list):
        return [class_names(part, classes) for part in value]
    is_place = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(classes)
    return classes[value] if is_place else value


def _is_plain(value: Any) -> bool:
    parts = value if isinstance(value, list) else [value]
    return all(part is None or isinstance(part, int | float | str) for part in parts)
