"""Shared code of the programs predict.py of an export: ONNX Runtime session, batches of samples, output rows.

It ships beside predict.py as answers.py, and needs numpy and onnxruntime.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Runner = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Maps inputs of the model to its outputs, by name."""
Row = Sequence[Any]

EXIT_UNUSABLE = 2
# Larger batches take more memory and are no faster on a CPU.
_BATCH = 16
_MOST_PADDED = 60


def make_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that both programs have."""
    if hasattr(signal, "SIGPIPE"):
        # End silently when the reader closes the pipe (| head).
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--top", type=_positive, metavar="K", help="number of labels per sample")
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table", help="[table]")
    parser.add_argument("--model", metavar="FILE", help="another ONNX file of this folder")
    return parser


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: allowed are whole numbers from 1")
    return int(text)


def open_graph(path: Path, optimization: str) -> Runner:
    """Return a function that runs an ONNX file on the CPU."""
    # ONNX Runtime sends telemetry when it is imported.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime  # type: ignore[import-untyped]

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, optimization)
    settings.log_severity_level = 3  # errors: they are raised as well
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def softmax(logits: Array) -> npt.NDArray[np.float64]:
    """Map logits [B, classes] to the probability of each class."""
    powers: npt.NDArray[np.float64] = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def predict(
    model: Any,
    run: Runner,
    names: Sequence[str],
    read: Callable[[str], Any],
    top: int | None,
    unusable: list[str],
) -> Iterator[Row]:
    """Yield one row per sample, batch by batch.

    Args:
        model: With the methods `prepare`, `collate` and `answer` of `ImageModel` and `TextModel`.
        run: Runs its graph.
        names: Of the samples.
        read: Returns the argument of `prepare` for a name.
        top: Number of labels.
        unusable: Receives the names of unusable samples; stderr has the reasons.
    """

    def reject(name: str, reason: object) -> None:
        unusable.append(name)
        sys.stderr.write(f"error: {name}: {reason}\n")

    for start in range(0, len(names), _BATCH):
        usable, samples = [], []
        for name in names[start : start + _BATCH]:
            try:
                samples.append(model.prepare(read(name)))
                usable.append(name)
            except IsADirectoryError:
                reject(name, "the folder has no file that sharding takes")
            except (OSError, ValueError) as error:
                reject(name, getattr(error, "strerror", None) or error)
        answers = model.answer(run(model.collate(samples)), top) if samples else []
        for name, answer in zip(usable, answers, strict=True):
            if answer is None:
                reject(name, "the model's outputs for it are not finite")
            else:
                yield (name, *answer)


def write_rows(header: Sequence[str], rows: Iterable[Row], output: str) -> None:
    """Write rows to stdout: as one JSON document per line, as CSV, or as a padded table."""
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    if output == "json":
        for row in rows:
            sys.stdout.write(json.dumps(dict(zip(header, row, strict=True))) + "\n")
            sys.stdout.flush()
    elif output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([cell(value, ".9g") for value in row] for row in rows)
    else:
        table = [header, *([" ".join(cell(value, ".4f").split()) for value in row] for row in rows)]
        widths = [min(_MOST_PADDED, max(map(len, column))) for column in zip(*table, strict=True)]
        for row in table:
            line = "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True))
            sys.stdout.write(line.rstrip() + "\n")


def cell(value: Any, number: str) -> str:
    """Return a value of a row as text, entries of a list separated by `; `."""
    if isinstance(value, list):
        return "; ".join(cell(entry, number) for entry in value)
    return format(value, number) if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
