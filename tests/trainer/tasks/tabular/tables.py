"""Tables for tests: manifests that nobody has written, and shards of a small table with all kinds of columns."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts import storage
from contracts.artifacts import ColumnStatistics, ShardManifest
from contracts.artifacts.shards import FieldEntry
from contracts.config import RunConfig
from contracts.stage import run_stage
from sharding.task import shard
from tests.trainer.tasks.for_tests import planned_manifest
from trainer.tasks.load import load_task

TOWNS = {"Lima": 1.5, "Oslo": -1.0, "Ulm": 0.25}
COLUMNS = ["age", "town", "income", "pulse", "price", "buys"]
FIELDS: dict[str, Any] = {
    "town": {"column": "town", "kind": "category", "missing": "keep"},
    "numbers": {"columns": ["age", "income"], "kind": "numbers", "missing": "keep"},
    "pulse": {"column": "pulse", "kind": "numbers"},
}
LABELS: dict[str, Any] = {
    "tabular_regression": {"column": "price", "kind": "number"},
    "tabular_classification": {"column": "buys", "kind": "class"},
}


def column(name: str = "x", *, mean: float | None = 2.0, std: float | None = 4.0, **changes: Any) -> ColumnStatistics:
    """Return statistics of a column."""
    found = {"count": 10, "missing": 0, "least": mean, "most": mean, **changes}
    return ColumnStatistics(name=name, mean=mean, std=std, **found)


def numbers(*columns: ColumnStatistics, **changes: Any) -> FieldEntry:
    """Return a field of several numbers."""
    return FieldEntry(kind="numbers", statistics=list(columns), columns=[one.name for one in columns], **changes)


def category(*vocabulary: str, **changes: Any) -> FieldEntry:
    """Return a field of a category."""
    return FieldEntry(kind="category", vocabulary=sorted(vocabulary), **changes)


def manifest(label: FieldEntry | None = None, **fields: FieldEntry) -> ShardManifest:
    """Return the manifest of shards that nobody has written; the label is a class of two unless it is given."""
    label = label or FieldEntry(kind="class", classes=["class 0", "class 1"], columns=["y"])
    ordered = {**fields, "label": label}
    placed = {name: entry.model_copy(update={"place": place}) for place, (name, entry) in enumerate(ordered.items())}
    return planned_manifest(2 if label.kind == "class" else 0, fields=placed)


def target(**changes: Any) -> FieldEntry:
    """Return the field of a regression's target."""
    return FieldEntry(kind="number", statistics=[column("y", **changes)], columns=["y"])


def table_task(name: str, shards: ShardManifest, *, model: dict[str, Any] | None = None, **arguments: Any) -> Any:
    """Return a task of a table."""
    values = {"task": {"name": name, "arguments": arguments}, "model": {"architecture": "mlp", **(model or {})}}
    return load_task(RunConfig.model_validate(values), shards)


def make_rows(count: int) -> list[list[Any]]:
    """Return rows in the order of COLUMNS, None where a value is missing; the last town is seen once."""
    source, rows = random.Random(3), []
    for number in range(count):
        town, age, income = source.choice(list(TOWNS)), source.uniform(18, 80), source.lognormvariate(10, 1)
        pulse = [source.gauss(70, 5) for _ in range(3)]
        score = TOWNS[town] + 0.05 * (age - 50) + 0.5 * (math.log(income) - 10) + 0.1 * (pulse[0] - pulse[1])
        price = 5000 + 300 * (score + source.gauss(0, 0.1))
        if number % 11 == 0:
            age = None
        if number % 7 == 0:
            town = None
        rows.append(
            [age, town if number % 13 else f"only {number}", income, pulse, price, "yes" if score > 0 else "no"]
        )
    return rows


def write_table(path: Path, rows: Sequence[Sequence[Any]], more: Sequence[str] = ()) -> Path:
    """Write rows as CSV; `more` are names of further columns."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow([*COLUMNS, *more])
        for row in rows:
            writer.writerow(["" if one is None else json.dumps(one) if isinstance(one, list) else one for one in row])
    return path


def write_shards(
    folder: Path, task: str, *, count: int = 120, label: dict[str, Any] | None = None, **sharding: Any
) -> str:
    """Shard a small table for a task; return the URI of the shards."""
    folder.mkdir()
    source = write_table(folder / "table.csv", make_rows(count))
    section = {
        "source": str(source),
        "fields": {**FIELDS, "label": label or LABELS[task]},
        "splits": {"train": 0.5, "validation": 0.2, "test": 0.3},
        **sharding,
    }
    output = folder / "shards"
    text = json.dumps({"sharding": section})
    assert run_stage("shard", shard, ["--output", str(output), "--config-json", text]) == 0
    return storage.normalise(output)
