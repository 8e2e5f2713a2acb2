"""The gate `bundle` of a table's task: the shipped predict.py on rows of the test split, as a user would run it.

Here: `try_program`, and what reads rows back out of shards. Its answers are compared with what the graph gives for the
same rows. It runs code of the folder that it is given: only a folder whose checksums agree with its manifest is for it.
"""

from __future__ import annotations

import csv
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.artifacts import ExportManifest
from contracts.artifacts.export import Figure, Gate
from trainer.export.bundle.bundles import GATE_NAME, PREDICT_NAME
from trainer.export.bundle.shipped import Answers, Shipped, ShippedFailed, ShippedProgram, name_versions
from trainer.export.gates.samples import SPLIT, each_sample

if TYPE_CHECKING:
    from trainer.data.reader import ShardReader
    from trainer.export.gates.arrays import Arrays
    from trainer.tasks.tabular.predict import Table

TABLE_NAME = "table.json"
LABEL = "label"
# The same graph in the same runtime; batches may be cut elsewhere.
MAX_DIFFERENCE = 1e-5
# Rows that are read, and whose outputs are compared, at a time.
ROWS = 256
# That the program needs.
_PACKAGES = ("onnxruntime", "numpy")


@dataclass
class _Findings:
    """What came back of the program."""

    rows: int = 0
    difference: float = 0.0
    """Largest difference of a score, or of a value over the range of all values."""
    right: int = 0
    absolute_errors: float = 0.0
    failure: str = ""


def try_program(shipped: Shipped, outputs: Iterator[Arrays]) -> Gate:
    """Run the shipped predict.py on the rows of the test split, and compare its answers with what the graph gives.

    The rows are written as a user would have them, half of them as CSV and half as JSON lines; numbers as the shards
    hold them.

    Args:
        shipped: The export, and the rows.
        outputs: Of the graph for these rows, in their order.

    Returns:
        The gate. Figures: rows; difference (of a class's probability, or of a value over the range of all values);
        accuracy, or mae (mean absolute error).
    """
    from trainer.tasks.tabular.predict import Table

    table, shards = Table.read(shipped.folder / TABLE_NAME), shipped.shards
    samples = shards.splits[SPLIT].samples if shipped.places is None else len(shipped.places)
    found, reasons = _Findings(), []
    # Not the names of table.json: those are part of what is tried.
    classes = None if table.labels is None else shards.classes
    with tempfile.TemporaryDirectory(prefix="shardline-bundle-") as name:
        work = Path(name)
        names, truths = _write_rows(work, table, read_rows(table, shipped), samples)
        try:
            with ShippedProgram(shipped, names, work=work) as program:
                rows = [f"row {number}" for number in range(1, samples + 1)]
                with closing(program.answers(rows)) as answers:
                    _compare(found, _without_errors(answers), outputs, truths, classes)
                program.finish()
        except (ShippedFailed, ValueError, LookupError, TypeError) as failure:
            found.failure = str(failure) or type(failure).__name__
    if found.failure:
        reasons.append(found.failure)
    # Written so that a NaN fails.
    elif not found.difference <= MAX_DIFFERENCE:
        reasons.append("its answers are not those of the graph")
    score = found.absolute_errors if classes is None else found.right
    figures: dict[str, Figure] = {"rows": found.rows, "difference": found.difference}
    figures["mae" if classes is None else "accuracy"] = score / found.rows if found.rows else None
    return Gate(
        name=GATE_NAME,
        precision="fp32",
        status="failed" if reasons else "passed",
        ran=f"the shipped {PREDICT_NAME} with {name_versions(_PACKAGES)}, on rows of the test split",
        figures=figures,
        limits={"difference": MAX_DIFFERENCE},
        reason="; ".join(reasons),
    )


def answer_rows(shipped: Shipped) -> Answers:
    """Ask the program about rows of the test split; return their classes by name or values, and what it said.

    Raises:
        ShippedFailed: It came to no end.
    """
    from trainer.tasks.tabular.predict import Table

    table, classes = Table.read(shipped.folder / TABLE_NAME), shipped.shards.classes
    samples = shipped.shards.splits[SPLIT].samples if shipped.places is None else len(shipped.places)
    with tempfile.TemporaryDirectory(prefix="shardline-bundle-") as name:
        work = Path(name)
        names, truths = _write_rows(work, table, read_rows(table, shipped), samples)
        with ShippedProgram(shipped, names, work=work) as program:
            answered = program.answers([f"row {number}" for number in range(1, samples + 1)])
            said = [one.get("label", one.get("value")) for one in answered]
            program.finish()
    return Answers(truths if table.labels is None else [classes[int(place)] for place in truths], said)


def _without_errors(answers: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, answer in enumerate(answers, start=1):
        if "error" in answer:
            raise ShippedFailed(f"row {number} got no answer: {answer['error']}")
        yield answer


def _compare(
    found: _Findings,
    answers: Iterator[Any],
    outputs: Iterator[Arrays],
    truths: Sequence[float],
    classes: Sequence[str] | None,
) -> None:
    """Compare answers with the outputs of a graph, both in the order of the split.

    Args:
        found: Gets what differs.
        answers: Of the program.
        outputs: Of the graph.
        truths: Labels of all rows.
        classes: Names of the classes; None: a regression.
    """
    import numpy as np

    from trainer.predict.runtimes import softmax

    differences, least, most = [0.0], math.inf, -math.inf
    places = {label: place for place, label in enumerate(classes or ())}
    for batch in outputs:
        (given,) = batch.values()
        said = list(islice(answers, len(given)))
        own = np.array(truths[found.rows : found.rows + len(said)])
        found.rows += len(said)
        if not said:
            break
        if classes is None:
            values = np.array([one["value"] for one in said], np.float64)
            differences.append(float(np.abs(values - given[: len(said)]).max()))
            found.absolute_errors += float(np.abs(values - own).sum())
            least, most = min(least, float(given.min())), max(most, float(given.max()))
        else:
            labels = np.array([places[one["label"]] for one in said])
            scores = softmax(given)[np.arange(len(said)), labels]
            # The probability that the graph gives to the program's answer: two that are alike may change places.
            differences.append(float(np.abs(scores - [one["score"] for one in said]).max()))
            found.right += int((labels == own).sum())
    scale = most - least if classes is None and most > least else 1.0
    found.difference = float(np.max(differences)) / scale


def hold_to_manifest(gate: Gate, document: ExportManifest) -> Gate:
    """Add to the gate whether accuracy, or mean absolute error, is what the export has measured."""
    name = "accuracy" if "accuracy" in gate.figures else "mae"
    measured, found = document.metrics.get("fp32", {}).get(name), gate.figures[name]
    if measured is None or not isinstance(found, float):
        return gate
    apart = abs(found - measured) / (1.0 if name == "accuracy" else max(abs(measured), 1e-30))
    update: dict[str, object] = {
        "figures": gate.figures | {f"manifest {name}": measured, "manifest_difference": apart},
        "limits": gate.limits | {"manifest_difference": MAX_DIFFERENCE},
    }
    if not apart <= MAX_DIFFERENCE:
        reason = f"{name} of the program's answers is {found}, and {measured} in the manifest"
        update |= {"status": "failed", "reason": "; ".join(part for part in (gate.reason, reason) if part)}
    return gate.model_copy(update=update)


def read_rows(table: Table, shipped: Shipped) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield the cells of rows of the test split by column, None where one is missing, and their labels."""
    reader = open_reader(table, shipped)
    for sample in each_sample(reader, shipped.places, ROWS):
        yield cells_of(table, sample), sample[LABEL]


def open_reader(table: Table, shipped: Shipped) -> ShardReader:
    """Return what reads the columns and the labels of the test split."""
    # Here: it brings the cache of a bucket with it.
    from trainer.data.reader import ShardReader

    names = [*(one.name for one in table.fields), LABEL]
    return ShardReader(shipped.shards_uri, shipped.shards, SPLIT, shipped.data, fields=names)


def cells_of(table: Table, sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of a sample by column; None where one is missing."""
    cells: dict[str, Any] = {}
    for one in table.fields:
        value = sample[one.name]
        if one.kind == "numbers" and not one.is_list:
            cells |= zip(one.columns, map(_known, value), strict=True)
        else:
            cells[one.columns[0]] = list(map(_known, value)) if one.is_list else _known(value)
    return cells


def _known(value: Any) -> Any:
    """Return a value; None for one that is missing."""
    return None if value != value or value == "" else value


def _write_rows(
    work: Path, table: Table, rows: Iterator[tuple[dict[str, Any], float]], samples: int
) -> tuple[list[str], list[float]]:
    """Write rows into two files; return their names, and the labels of all rows."""
    names = ["rows.csv", "rows.jsonl"]
    truths: list[float] = []
    half = (samples + 1) // 2
    with (
        (work / names[0]).open("w", encoding="utf-8", newline="") as first,
        (work / names[1]).open("w", encoding="utf-8") as second,
    ):
        writer = csv.writer(first)
        writer.writerow(table.columns)
        for cells, label in rows:
            if len(truths) < half:
                lists = {one.columns[0] for one in table.fields if one.is_list}
                writer.writerow([json.dumps(cells[name]) if name in lists else cells[name] for name in table.columns])
            else:
                second.write(json.dumps(cells) + "\n")
            truths.append(label)
    return names, truths
