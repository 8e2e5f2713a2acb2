"""Checks of a source before the first stage: its rows and labels, the given tokenizer; `-m sharding.sources.check`.

    python -m sharding.sources.check --config-json '{"sharding": {"source": "photos.csv"}, "task": {...}}'

The last line of stdout is a CheckAnswer (contracts/checked.py) as JSON. Two levels of folders are listed, or the first
rows of a manifest read; no image is looked at. Sharding itself takes more than a task can learn, e.g. lists of labels
for one that has one class a sample: only a line is refused for them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
from collections.abc import Iterable, Sequence

from contracts import storage
from contracts.artifacts.classification import TASKS as ONE_LABEL
from contracts.artifacts.evaluation import FORMER_TASK
from contracts.artifacts.multilabel import TASKS as SEVERAL_LABELS
from contracts.checked import Finding, Findings
from contracts.config import ShardingSection
from contracts.config.fields import OTHER_COLUMNS, find_rest
from contracts.errors import EXIT_OK, ConfigError, DataError, StorageError, TryAgain
from contracts.learnable import check_classes, check_targets
from contracts.process import end_with_parent, run_process
from contracts.resolve import read_stage_config, with_data_date
from records.tokenizer import tokenizer_uri
from sharding.limits import name_some
from sharding.sources.fields import Fields
from sharding.sources.layout import find_layout
from sharding.sources.names import is_ignored
from sharding.sources.rows import Row
from sharding.sources.tables import SUFFIXES, check_has_columns, is_vertex, no_rows, read_rows, require_source
from sharding.sources.tokenizer import read_tokenizer

# The task that learns numbers.
REGRESSION = "tabular_regression"
# Rows of a manifest that are read: a second or two.
MAX_ROWS = 10_000
# Fewer rows say little about how many labels there are.
_MIN_ROWS = 20
# Different labels, as a share of the rows, from which on it is asked whether they are classes, and that refuses them:
# hardly any image would share its class with another.
_MANY_DISTINCT, _MAX_DISTINCT = 0.5, 0.9


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m sharding.sources.check", description="Checks before sharding.")
    parser.add_argument("--config-json", required=True, help="the sections sharding and task, as JSON")
    parser.add_argument("--end-with-parent", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.end_with_parent:
        end_with_parent()
    config = with_data_date(read_stage_config(None, None, options.config_json), "")
    findings = check_source(config.sharding, config.task.name)
    print(findings.answer().model_dump_json(), flush=True)
    return EXIT_OK


def check_source(section: ShardingSection, task: str = FORMER_TASK) -> Findings:
    """Look at the labels of a source, as far as they are known before it is sharded.

    What the shard stage finds within its first seconds, e.g. that a source in a bucket is not there, is left to it.

    Args:
        section: The source.
        task: task.name, which says what labels are.
    """
    findings = Findings()
    _check_tokenizer(section, findings)
    if not section.source.strip():
        return findings
    try:
        uri = storage.normalise(section.source)
        check_has_columns(section, uri)
        if storage.is_local(uri):
            findings.files.add(str(storage.local_path(uri)))
            require_source(section, uri)
        if uri.lower().endswith(tuple(SUFFIXES)) and storage.exists(uri):
            _check_rows(section, task, uri, findings)
        else:
            _check_folders(section, task, uri, findings)
    except (ConfigError, DataError) as error:
        findings.problems.append(Finding.of(error))
    except (StorageError, TryAgain, OSError) as error:
        # Who submits need not be allowed to read what the line's account reads.
        findings.complete = False
        findings.leave_unchecked(f"the labels in {section.source}", f"it cannot be read ({str(error).splitlines()[0]})")
    return findings


def _check_tokenizer(section: ShardingSection, findings: Findings) -> None:
    """Read the tokenizer that is named, where it is on this machine."""
    if section.tokenizer is None or not section.tokenizer.file:
        return
    uri = tokenizer_uri(section.tokenizer.file)
    if not storage.is_local(uri):
        findings.leave_unchecked(f"sharding.tokenizer.file {uri}", "it is read before anything is written")
        return
    findings.files.add(str(storage.local_path(uri)))
    with findings.refusals():
        read_tokenizer(section)


def _check_rows(section: ShardingSection, task: str, uri: str, findings: Findings) -> None:
    rows = list(itertools.islice(read_rows(section, uri), MAX_ROWS + 1))
    if not rows:
        raise no_rows(storage.display(uri), is_plain=not section.fields)
    whole = len(rows) <= MAX_ROWS
    rows = rows[:MAX_ROWS]
    shown = f"sharding.source {storage.display(uri)}"
    if not whole:
        findings.leave_unchecked(f"labels of {shown} behind row {MAX_ROWS}", "no more rows are read before sharding")
    fields = Fields.of(section)
    if whole and rows and task == REGRESSION and fields is not None and "label" in fields.numbers:
        at = fields.numbers.index("label")
        targets = [row.values.numbers[at] for row in rows if row.values is not None]
        check_targets(min(targets), max(targets), f"{shown}, column {section.fields['label'].column!r},")
    if fields is not None and task.startswith("tabular_"):
        _check_categories(section, fields, rows, findings, shown, whole=whole)
    if fields is not None and fields.label is None:
        return
    distinct = dict.fromkeys(label for row in rows for label in row.labels)
    if whole:
        findings.num_classes = len(distinct)
        # Of rows without named fields the shard stage refuses it.
        if fields is not None and fields.label == "label" and rows:
            where = f"{shown}, column {section.fields[fields.label].column!r},"
            check_classes(task, [str(one) for one in distinct], where)
    # With named fields their kinds say what is a list, and the task whether it needs one.
    if fields is None:
        _check_form(section, task, uri, rows, whole=whole)
    if not any(row.is_list for row in rows):
        _check_classes(section, task, rows, findings, shown, whole=whole)


def _check_categories(
    section: ShardingSection, fields: Fields, rows: Sequence[Row], findings: Findings, shown: str, *, whole: bool
) -> None:
    """Refuse a category in which nearly every row has a value of its own: an identifier, of which nothing is learnt.

    Raises:
        DataError: There is one.
    """
    for name in fields.categories:
        at, column = fields.contents.index(name), section.fields[name].column
        values = [
            row.values.contents[at].decode() for row in rows if row.values is not None and row.values.contents[at]
        ]
        distinct = dict.fromkeys(values)
        if len(values) < _MIN_ROWS or len(distinct) <= _MANY_DISTINCT * len(values):
            continue
        many = (
            f"{shown}: column {column!r} (field {name}, category) has {len(distinct)} different values in "
            f"{len(values)} rows ({_shorten(distinct)})"
        )
        todo = f"remove sharding.fields.{name}"
        if find_rest(section.fields):
            todo += (
                f', or set its kind to text, which keeps the column out of columns: ["{OTHER_COLUMNS}"] and is no input'
            )
        if whole and len(distinct) > _MAX_DISTINCT * len(values):
            raise DataError(
                f"{many}: it looks like an identifier of the rows, and new rows have other values",
                allowed="categories with values that several rows share",
                todo=todo,
            )
        findings.warnings.append(f"{many}: if it is an identifier of the rows, {todo}")


def _check_form(section: ShardingSection, task: str, uri: str, rows: Sequence[Row], *, whole: bool) -> None:
    """Refuse lists of labels, or single ones, that are for another task.

    Raises:
        DataError: They are.
    """
    shown = f"sharding.source {storage.display(uri)}"
    several = next((row for row in rows if row.is_list), None)
    if several is not None and task in ONE_LABEL:
        raise DataError(
            f"{shown}, {several.place}: a list of labels, {_shorten(several.labels)}, and task {task} learns one label "
            "for each image",
            allowed=f"one label for each image, or task {SEVERAL_LABELS[0]}, which learns any number of them",
            todo=f"set task.name to {SEVERAL_LABELS[0]}, or choose one label for each image and write it without a "
            "list (or unset sharding.label_separator)",
        )
    # Vertex AI's forms show a list just where there are several labels.
    if several is None and task in SEVERAL_LABELS and (whole or not is_vertex(section, uri)):
        labels = _shorten(dict.fromkeys(label for row in rows for label in row.labels))
        raise DataError(
            f"{shown}: labels are single ones ({labels}), and task {task} learns any number of them for each image",
            allowed="a list of labels in each row",
            todo="write labels as lists, set sharding.label_separator to what stands between them, or set task.name to "
            f"{FORMER_TASK}",
        )


def _check_classes(
    section: ShardingSection, task: str, rows: Sequence[Row], findings: Findings, shown: str, *, whole: bool
) -> None:
    """Refuse single labels that are numbers, or nearly as many as there are rows.

    Raises:
        DataError: They are.
    """
    fields = Fields.of(section)
    setting, column, sample = "sharding.label_column", section.label_column, "image"
    if fields is not None:
        assert fields.label is not None, "without it nothing is looked at"
        setting, column = f"sharding.fields.{fields.label}.column", section.fields[fields.label].column
        sample = "row" if fields.image is None else sample
    labels = [row.labels[0] for row in rows]
    distinct = dict.fromkeys(labels)
    if len(rows) < _MIN_ROWS or len(distinct) <= _MANY_DISTINCT * len(rows):
        return
    examples = _shorten(distinct)
    if all(_is_number(label) for label in labels) and not all(float(label).is_integer() for label in labels):
        allowed, todo = f"a column with the class of each {sample} ({setting})", "name the column that holds classes"
        # Numbers are learnt from the columns of a table, not from a text.
        if task != "text_classification":
            allowed += f", or task {REGRESSION}, which learns numbers from the other columns of a table"
            todo = f"set task.name to {REGRESSION} and sharding.fields.label.kind to number, or {todo}"
        raise DataError(
            f"{shown}: column {column!r} holds numbers ({examples}), {len(distinct)} different ones in {len(rows)} "
            f"rows: task {task} learns classes, not numbers",
            allowed=allowed,
            todo=todo,
        )
    many = f"{shown}: {len(distinct)} different labels in {len(rows)} rows ({examples})"
    if whole and len(distinct) > _MAX_DISTINCT * len(rows):
        raise DataError(
            f"{many}: hardly any {sample} shares its class with another",
            allowed=f"a column with the class of each {sample} ({setting}), several {sample}s for each class",
            todo=f"name the column that holds classes, not names or numbers of {sample}s",
        )
    findings.warnings.append(f"{many}: is {setting}={column} the class of each {sample}?")


def _shorten(labels: Iterable[str | int]) -> str:
    return name_some([str(label) for label in labels])


def _is_number(label: str | int) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def _check_folders(section: ShardingSection, task: str, uri: str, findings: Findings) -> None:
    """Refuse folders that are neither classes nor splits; count the classes, where they are on this machine."""
    folders = _list_folders(uri, findings)
    if not folders:
        return
    if task in SEVERAL_LABELS:
        raise ConfigError(
            f"sharding.source {storage.display(uri)} is a folder, and task {task} learns any number of labels for each "
            "image: class folders give each image one",
            allowed=f"a manifest ({', '.join(SUFFIXES)}) with a list of labels in each row",
            todo=f"write such a manifest of the images, or set task.name to {FORMER_TASK}",
        )
    layout = find_layout(
        section,
        [os.fsencode(name) for name in folders],
        lambda name: [os.fsencode(one) for one in _list_folders(storage.join(uri, os.fsdecode(name)), findings)],
        f"sharding.source {storage.display(uri)}",
    )
    if storage.is_local(uri):
        findings.num_classes = len(layout.classes)


def _list_folders(uri: str, findings: Findings) -> list[str]:
    """Return the names of the folders directly below one; none where there is no folder."""
    if not storage.is_local(uri):
        return [name for name in storage.list_names(uri) if not is_ignored(name.encode())]
    path = storage.local_path(uri)
    if not path.is_dir():
        return []
    findings.files.add(str(path))
    with os.scandir(path) as entries:
        return [entry.name for entry in entries if not is_ignored(os.fsencode(entry.name)) and entry.is_dir()]


if __name__ == "__main__":
    run_process(main)
