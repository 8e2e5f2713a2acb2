"""What an export of a table's task has beside graphs: table.json, predict.py, and their gate.

Here: the functions of trainer/export/bundles.py, and `try_program`, which runs the shipped predict.py as a user would,
on the rows of the test split, and compares its answers with what the graph gives for them. predict.py is copied from
this package byte for byte and knows nothing of it. The gate runs code of the folder that it is given: only a folder
whose checksums agree with its manifest is for it.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from contracts.artifacts import CheckpointManifest, ExportManifest, ShardManifest
from contracts.artifacts.export import Figure, Gate
from contracts.artifacts.signature import Signature
from contracts.config import DataSection, RunConfig
from trainer.export.arrays_bundle import hold_to_evaluation
from trainer.export.bundles import GATE_NAME, PREDICT_NAME
from trainer.export.scores import judge_scores
from trainer.export.shipped import ShippedFailed, lay_out_again, name_versions, run_shipped
from trainer.tasks.classes.accuracy import judge_accuracy
from trainer.tasks.classes.labels import write_json

if TYPE_CHECKING:
    from trainer.data.reader import ShardReader
    from trainer.export.arrays import Arrays, StoredArrays
    from trainer.export.bundles import Bundle
    from trainer.export.checked_folder import CheckedFolder
    from trainer.export.inputs import Inputs
    from trainer.export.proof import TestSplit
    from trainer.export.scores import Scores
    from trainer.tasks.protocol import Task
    from trainer.tasks.tabular.predict import Table

TABLE_NAME = "table.json"
LABEL = "label"
# The same graph in the same runtime; batches may be cut elsewhere.
MAX_DIFFERENCE = 1e-5
# Rows that are read, and whose outputs are compared, at a time.
_ROWS = 256
# Seconds that the program may take, and more for each row.
_LIMIT_S, _LIMIT_S_PER_ROW = 600.0, 0.02
# That the program needs.
_PACKAGES = ("onnxruntime", "numpy")
_NOISE_SEED = 0
# Of noise, cells that are missing.
_MISSING_SHARE = 0.1
# Of more columns or classes the model card lists the first ones; all of them are in table.json.
_MOST_SHOWN = 100
_BAR = r"\|"
_USE_TABLE = (
    "`table.json` names the columns and the values of categories. Raw values go in: imputation and normalisation are "
    "part of the model."
)


def check_checkpoint(config: RunConfig, checkpoint: CheckpointManifest) -> None:
    """Do nothing: all that prepares rows comes from the shards, whose fingerprint is compared."""


def make_noise(task: Task, samples: int) -> Arrays:
    """Return rows as columns could have them: numbers around their mean, any category, and some that are missing."""
    import numpy as np

    from trainer.tasks.tabular.inputs import CATEGORIES, NUMBERS, TableInputs

    inputs: TableInputs = task.inputs  # type: ignore[attr-defined]
    random, found = np.random.default_rng(_NOISE_SEED), {}
    if columns := inputs.statistics:
        mean, std = (np.array([getattr(column, name) or 0.0 for column in columns]) for name in ("mean", "std"))
        numbers = random.standard_normal((samples, len(columns))) * std + mean
        numbers[random.random(numbers.shape) < _MISSING_SHARE] = math.nan
        found[NUMBERS] = numbers.astype(np.float32)
    if sizes := inputs.vocabulary_sizes:
        found[CATEGORIES] = random.integers(0, np.array(sizes) + 1, (samples, len(sizes)))
    return cast("Arrays", found)


def judge_metric(*, precision: str, reference: Scores, found: Scores, samples: int, ran: str) -> Gate:
    """Hold right answers, which are counted, against those of fp32; of a regression its headline metric."""
    if "accuracy" not in reference.values:
        return judge_scores(precision=precision, reference=reference, found=found, samples=samples, ran=ran)
    right = [round(scores.values["accuracy"] * samples) for scores in (reference, found)]
    return judge_accuracy(
        precision=precision, reference_right=right[0], right=right[1], samples=samples, ran=ran, noun="rows"
    )


def write_bundle(folder: Path, inputs: Inputs, signature: Signature, *, model_name: str, max_batch: int) -> list[str]:
    """Write table.json and predict.py into a folder; return their names.

    Args:
        folder: Where the graphs lie.
        inputs: The checkpoint's columns, and its classes or target.
        signature: Name of the output.
        model_name: File name of the graph that ships.
        max_batch: Most rows at a time.
    """
    (output,), checkpoint = signature.outputs, inputs.checkpoint
    said: dict[str, Any] = {"format_version": 1, "model": model_name, "max_batch": max_batch, "output": output}
    said |= {"target": checkpoint.data["target"]} if "target" in checkpoint.data else {"labels": checkpoint.classes}
    write_json(folder / TABLE_NAME, said | {"fields": checkpoint.data["fields"]})
    (folder / PREDICT_NAME).write_bytes(Path(__file__).with_name(PREDICT_NAME).read_bytes())
    return [TABLE_NAME, PREDICT_NAME]


def check_bundle(
    folder: Path,
    inputs: Inputs,
    split: TestSplit,
    outputs: StoredArrays,
    scores: Scores,
    *,
    model_name: str,
    threads: int,
) -> Gate:
    """Run the shipped predict.py on the rows of the test split, and compare its answers with the graph's.

    What the graph is worth on them is held against what training found with these weights.
    """
    gate = try_program(
        folder,
        inputs.shards_uri,
        inputs.shards,
        outputs.batches(_ROWS, most=split.samples),
        model_name=model_name,
        data=inputs.config.data,
        threads=threads,
    )
    return hold_to_evaluation(gate, inputs, scores)


def check_again(
    folder: Path,
    document: ExportManifest,
    shards_uri: str,
    shards: ShardManifest,
    *,
    model_name: str,
    work: Path,
    threads: int,
) -> Gate:
    """Run this package's own predict.py on the folder's files, and compare its answers with the fp32 graph's."""
    from trainer.export import proof

    names = (model_name, TABLE_NAME, document.graph().name)
    tried = lay_out_again(folder, work / GATE_NAME, names, program=Path(__file__).with_name(PREDICT_NAME))
    given = read_inputs(folder, document, shards_uri, shards, work)
    found = proof.write_graph_outputs(
        folder / model_name, given, work / "test-outputs", batch_size=_ROWS, threads=threads
    )
    gate = try_program(
        tried,
        shards_uri,
        shards,
        found.batches(_ROWS),
        model_name=model_name,
        data=DataSection(),
        threads=threads,
    )
    return _hold_to_manifest(gate, document)


def read_inputs(
    folder: Path, document: ExportManifest, shards_uri: str, shards: ShardManifest, work: Path
) -> StoredArrays:
    """Return the rows of the test split as table.json says."""
    from trainer.export.arrays import store_arrays
    from trainer.tasks.tabular.predict import Row, Table

    table = Table.read(folder / TABLE_NAME)
    rows = (Row(f"row {n}", cells, is_text=False) for n, (cells, _) in enumerate(_rows(table, shards_uri, shards)))
    return store_arrays(work / "test-inputs", (table.arrays_of(batch) for batch in _chunks(rows, _ROWS)))


def find_contradictions(folder: Path, document: ExportManifest) -> list[str]:
    """Compare table.json with the manifest."""
    from trainer.tasks.tabular.predict import BadFolder, Table

    try:
        table = Table.read(folder / TABLE_NAME)
    except BadFolder as error:
        return [str(error).partition("\n")[0]]
    found = []
    if table.model != (ships := document.graph().name):
        found.append(f"{TABLE_NAME} names the model {table.model}, {ships} is what ships")
    said, spec = table.widths, document.model_signature
    if said != (widths := {name: one.shape[1] for name, one in spec.inputs.items()}):
        found.append(f"{TABLE_NAME} has inputs {said}, the manifest {widths}")
    if table.output not in spec.outputs:
        found.append(f"{TABLE_NAME} names the output {table.output}, the manifest has {', '.join(spec.outputs)}")
    return found


def read_labels(folder: Path) -> list[str] | None:
    """Return the names of the classes; None for a regression."""
    labels = json.loads((folder / TABLE_NAME).read_text(encoding="utf-8")).get("labels")
    return None if labels is None else [str(label) for label in labels]


def introduce(document: ExportManifest, checkpoint: CheckpointManifest | None) -> tuple[str, list[str]]:
    """Return what the model card calls the model, and what it says of it: columns, and classes or target."""
    is_regression = "value" in document.model_signature.outputs
    kind = "regression of a table" if is_regression else "classifier of table rows"
    answers = "one number (value) out" if is_regression else "one score (logit) for each class out"
    lines = [f"A row of a table in, {answers}."]
    if checkpoint is None:
        return kind, lines
    columns = [column for one in checkpoint.data["fields"] for column in one["columns"]]
    lines.append(f"{len(columns)} columns: {_listed(columns)} (`{TABLE_NAME}`).")
    if is_regression:
        lines.append(f"The value is that of column {_listed([checkpoint.data['target']])}, in its unit.")
    else:
        lines.append(f"{len(checkpoint.classes)} classes, in the order of the scores: {_listed(checkpoint.classes)}.")
    return kind, lines


def describe_use() -> list[str]:
    """Return what the model card says of predict.py and `shardline predict`."""
    return [
        "On any machine, with numpy and onnxruntime (CPU):",
        "    python predict.py ROWS.csv",
        "With shardline, on a GPU that an engine was built for with that engine, elsewhere with the graph:",
        "    shardline predict FOLDER ROWS.csv",
        _USE_TABLE,
    ]


def describe_limits() -> list[str]:
    """Return what the model card warns of."""
    return [
        "Metrics are those of rows like those of the test split; nothing is known of others.",
        "A category that training did not see counts as missing; a missing number counts as the column's mean.",
        "Scores of classes are not calibrated probabilities: a large one is no promise.",
    ]


def predict(folder: CheckedFolder, options: argparse.Namespace) -> int:
    """Print the answers to the rows of files."""
    # Here: it imports numpy.
    from trainer.tasks.tabular.answers import print_answers

    return print_answers(folder, options)


@dataclass
class _Findings:
    """What came back of the program."""

    rows: int = 0
    difference: float = 0.0
    """Largest difference of a score, or of a value over the range of all values."""
    right: int = 0
    absolute_errors: float = 0.0
    failure: str = ""


def try_program(
    folder: Path,
    shards_uri: str,
    shards: ShardManifest,
    outputs: Iterator[Arrays],
    *,
    model_name: str,
    data: DataSection,
    threads: int,
) -> Gate:
    """Run the shipped predict.py on the rows of the test split, and compare its answers with what the graph gives.

    The rows are written as a user would have them, half of them as CSV and half as JSON lines; numbers as the shards
    hold them.

    Args:
        folder: The export's folder on this machine.
        shards_uri: Folder of the shards.
        shards: Their manifest.
        outputs: Of the graph for the rows of the test split, in their order.
        model_name: File name of the graph to run; the fp32 one.
        data: How shards in a bucket are read.
        threads: Intra-op threads of ONNX Runtime.

    Returns:
        The gate. Figures: rows; difference (of a class's probability, or of a value over the range of all values);
        accuracy, or mae (mean absolute error).
    """
    from trainer.tasks.tabular.predict import Table

    table, samples = Table.read(folder / TABLE_NAME), shards.splits["test"].samples
    found, reasons = _Findings(), []
    # Not the names of table.json: those are part of what is tried.
    classes = None if table.labels is None else shards.classes
    with tempfile.TemporaryDirectory(prefix="shardline-bundle-") as name:
        work = Path(name)
        names, truths = _write_rows(work, table, shards_uri, shards, data)
        answers = work / "answers.jsonl"
        try:
            run_shipped(
                folder,
                names,
                work=work,
                model_name=model_name,
                threads=threads,
                limit_s=_LIMIT_S + samples * _LIMIT_S_PER_ROW,
                answers=answers,
            )
            with answers.open("rb") as lines:
                _compare(found, map(json.loads, lines), outputs, truths, classes)
        except (ShippedFailed, ValueError, LookupError, TypeError) as failure:
            found.failure = str(failure) or type(failure).__name__
    if found.failure:
        reasons.append(found.failure)
    elif found.rows != samples:
        reasons.append(f"{found.rows} of {samples} rows were answered")
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

    from trainer.tasks.tabular.predict import softmax

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


def _hold_to_manifest(gate: Gate, document: ExportManifest) -> Gate:
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


def _rows(
    table: Table, shards_uri: str, shards: ShardManifest, data: DataSection | None = None
) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield the cells of each row of the test split by column, None where one is missing, and its label."""
    reader = _open_reader(table, shards_uri, shards, data)
    with reader.read_ahead() as advance:
        for place in range(len(reader)):
            if place % _ROWS == 0:
                reader.prepare(list(range(place, min(place + _ROWS, len(reader)))))
                advance(place)
            sample = reader.sample(place)
            yield _cells_of(table, sample), sample[LABEL]


def _open_reader(table: Table, shards_uri: str, shards: ShardManifest, data: DataSection | None) -> ShardReader:
    # Here: it brings the cache of a bucket with it.
    from trainer.data.reader import ShardReader

    return ShardReader(shards_uri, shards, "test", data, fields=[*(one.name for one in table.fields), LABEL])


def _cells_of(table: Table, sample: Mapping[str, Any]) -> dict[str, Any]:
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
    work: Path, table: Table, shards_uri: str, shards: ShardManifest, data: DataSection
) -> tuple[list[str], list[float]]:
    """Write the rows of the test split into two files; return their names, and the labels of all rows."""
    names = ["rows.csv", "rows.jsonl"]
    truths: list[float] = []
    half = (shards.splits["test"].samples + 1) // 2
    with (
        (work / names[0]).open("w", encoding="utf-8", newline="") as first,
        (work / names[1]).open("w", encoding="utf-8") as second,
    ):
        writer = csv.writer(first)
        writer.writerow(table.columns)
        for cells, label in _rows(table, shards_uri, shards, data):
            if len(truths) < half:
                lists = {one.columns[0] for one in table.fields if one.is_list}
                writer.writerow([json.dumps(cells[name]) if name in lists else cells[name] for name in table.columns])
            else:
                second.write(json.dumps(cells) + "\n")
            truths.append(label)
    return names, truths


def _chunks(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    remaining = iter(rows)
    while chunk := list(islice(remaining, size)):
        yield chunk


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{' '.join(name.replace('|', _BAR).split())}`" for name in names[:_MOST_SHOWN])
    return shown + (f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else "")


if TYPE_CHECKING:
    from trainer.tasks.tabular import bundle

    _is_bundle: Bundle = bundle
