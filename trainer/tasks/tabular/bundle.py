"""What an export of a table's task has beside graphs: table.json, predict.py, and their gate.

Here: the functions of trainer/export/bundle/bundles.py. predict.py is copied from this package byte for byte and knows
nothing of it; gate.py runs it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from contracts.artifacts import CheckpointManifest, ExportManifest
from contracts.artifacts.export import Gate
from contracts.artifacts.signature import Signature
from contracts.config import RunConfig
from trainer.export.bundle.arrays_bundle import hold_to_evaluation
from trainer.export.bundle.bundles import PREDICT_NAME
from trainer.export.bundle.shipped import Answers, Shipped, lay_out_again, write_program
from trainer.export.gates.samples import samples_of
from trainer.export.gates.scores import judge_scores
from trainer.tasks.classes.accuracy import judge_accuracy
from trainer.tasks.classes.labels import list_names, write_json
from trainer.tasks.tabular.gate import ROWS, TABLE_NAME, answer_rows, hold_to_manifest, read_rows, try_program

if TYPE_CHECKING:
    from trainer.export.bundle.bundles import Bundle
    from trainer.export.gates.arrays import Arrays, StoredArrays
    from trainer.export.gates.proof import TestSplit
    from trainer.export.gates.scores import Scores
    from trainer.export.inputs import Inputs
    from trainer.predict.checked_folder import CheckedFolder
    from trainer.tasks.protocol import Task

_NOISE_SEED = 0
# Of noise, cells that are missing.
_MISSING_SHARE = 0.1
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
    return [TABLE_NAME, *write_program(folder, Path(__file__).with_name(PREDICT_NAME))]


def check_bundle(
    shipped: Shipped, inputs: Inputs, split: TestSplit, outputs: StoredArrays, scores: Mapping[str, Scores]
) -> Gate:
    """Run the shipped predict.py on the rows of the test split, and compare its answers with the graph's.

    What the graph is worth on them is held against what training found with these weights.
    """
    gate = try_program(shipped, outputs.batches(ROWS, most=split.samples))
    return hold_to_evaluation(gate, inputs, split, scores)


def check_again(shipped: Shipped, document: ExportManifest, work: Path) -> Gate:
    """Run this package's own predict.py on the folder's files, and compare its answers with the fp32 graph's."""
    from trainer.export.gates import proof

    tried = _lay_out_again(shipped, document, work)
    given, graph = read_inputs(shipped, document, work), shipped.folder / shipped.model_name
    found = proof.write_graph_outputs(graph, given, work / "test-outputs", batch_size=ROWS, threads=shipped.threads)
    return hold_to_manifest(try_program(tried, found.batches(ROWS)), document)


def answer_split(shipped: Shipped, document: ExportManifest, work: Path) -> Answers:
    """Return the class or value of each row, and what the program says."""
    return answer_rows(replace(_lay_out_again(shipped, document, work), places=shipped.places))


def _lay_out_again(shipped: Shipped, document: ExportManifest, work: Path) -> Shipped:
    return lay_out_again(shipped, document, work, [TABLE_NAME], program=Path(__file__).with_name(PREDICT_NAME))


def read_inputs(shipped: Shipped, document: ExportManifest, work: Path) -> StoredArrays:
    """Return the rows that the gates took of the test split, as table.json says."""
    from trainer.export.gates.arrays import store_arrays
    from trainer.predict.serving import Asked
    from trainer.tasks.tabular.predict import Table

    table = Table.read(shipped.folder / TABLE_NAME)
    places = samples_of(document, shipped.shards_uri, shipped.shards)
    found = read_rows(table, replace(shipped, places=places))
    rows = (table.prepare(Asked(f"row {number}", cells)) for number, (cells, _) in enumerate(found))
    return store_arrays(work / "test-inputs", (table.arrays_of(batch) for batch in _chunks(rows, ROWS)))


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
    lines.append(f"{len(columns)} columns: {list_names(columns)} (`{TABLE_NAME}`).")
    if is_regression:
        lines.append(f"The value is that of column {list_names([checkpoint.data['target']])}, in its unit.")
    else:
        lines.append(
            f"{len(checkpoint.classes)} classes, in the order of the scores: {list_names(checkpoint.classes)}."
        )
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
    from trainer.predict.predict_task import answer_samples
    from trainer.tasks.tabular.predict import KIND, open_files

    return answer_samples(folder, options, KIND, open_files)


def _chunks(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    remaining = iter(rows)
    while chunk := list(islice(remaining, size)):
        yield chunk


if TYPE_CHECKING:
    from trainer.tasks.tabular import bundle

    _is_bundle: Bundle = bundle
