"""Answers to rows of files by an export: `shardline predict` for tables.

Rows and answers go through predict.py beside this file, of which the export holds a copy.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from contracts import storage
from contracts.errors import EXIT_OK, EXIT_USER_ERROR, ConfigError, StorageError
from contracts.process import threads_per_rank
from trainer.export.checked_folder import CheckedFolder
from trainer.export.predict_task import describe_graph, open_engine, refuse_lines
from trainer.tasks.tabular import predict
from trainer.tasks.tabular.predict import TABLE_NAME


def print_answers(folder: CheckedFolder, options: argparse.Namespace) -> int:
    """Print a line of JSON for each row; return the exit code: 2 where a row could not be used.

    Args:
        folder: Of the export.
        options: Of the command (trainer/export/predict_task.py).

    Raises:
        ConfigError: An option is not for tables.
        DataError: The export is damaged.
    """
    refuse_lines(options, "rows")
    if options.top is not None:
        raise ConfigError(
            f"--top {options.top}, and an answer to a row is its likeliest class, or a value",
            allowed="no --top for an export of a table's task",
            todo="leave it out",
        )
    try:
        table = predict.Table.read(folder.take(TABLE_NAME))
        ships = folder.document.graph().name
        if table.model != ships:
            raise folder.damaged(f"{TABLE_NAME} is for {table.model}, and {ships} ships")
        run, ran = _open_runner(folder, table)
        print(f"predict: {ran}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="shardline-rows-") as work:
            files = [_local(name, Path(work) / str(number)) for number, name in enumerate(options.files)]
            for said in predict.answer(table, run, predict.read_rows(files, table)):
                print(json.dumps(said, ensure_ascii=False))
    except predict.BadFolder as error:
        raise folder.damaged(str(error).partition("\n")[0]) from None
    except predict.BadInput as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    for note in predict.notes(table):
        print(note, file=sys.stderr)
    return EXIT_OK


def _open_runner(folder: CheckedFolder, table: predict.Table) -> tuple[predict.Runner, str]:
    """Return what answers, and its description."""
    engine, said = open_engine(folder)
    if engine is not None:
        return engine, said
    path, threads = folder.take(table.model), threads_per_rank(1)
    return predict.open_model(path, table, threads), describe_graph(path, threads, said)


def _local(name: str, folder: Path) -> str:
    """Return a path of a file; one in a bucket is copied first, under its own name.

    Raises:
        BadInput: It cannot be read.
    """
    if "://" not in name:
        return name
    folder.mkdir()
    copy = folder / name.rpartition("/")[2]
    try:
        copy.write_bytes(storage.read_bytes(storage.normalise(name)))
    except (StorageError, OSError) as error:
        reason = error.given if isinstance(error, StorageError) else error.strerror or "it is not there"
        raise predict.BadInput(
            f"{name} cannot be read: {reason}", allowed="a file of rows", todo="correct it"
        ) from None
    return str(copy)
