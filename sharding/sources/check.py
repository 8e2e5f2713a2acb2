"""Checks of a source before the first stage: its rows and labels, the given tokenizer; `-m sharding.sources.check`.

    python -m sharding.sources.check --config-json '{"sharding": {"source": "photos.csv"}}'

The last line of stdout is a CheckAnswer (contracts/checked.py) as JSON. Two levels of folders are listed, or the first
rows of a manifest read; no image is looked at. Sharding itself takes more than can be trained on, e.g. lists of labels:
only a line is refused for them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os

from contracts import storage
from contracts.checked import Finding, Findings
from contracts.config import ShardingSection
from contracts.errors import EXIT_OK, ConfigError, DataError, StorageError, TryAgain
from contracts.process import end_with_parent, run_process
from contracts.resolve import read_stage_config, with_data_date
from records.tokenizer import tokenizer_uri
from sharding.limits import name_some
from sharding.sources.fields import Fields
from sharding.sources.layout import find_layout
from sharding.sources.names import is_ignored
from sharding.sources.rows import Row
from sharding.sources.tables import SUFFIXES, check_has_columns, read_rows
from sharding.sources.tokenizer import read_tokenizer

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
    parser.add_argument("--config-json", required=True, help="the section sharding, as JSON")
    parser.add_argument("--end-with-parent", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.end_with_parent:
        end_with_parent()
    config = with_data_date(read_stage_config(None, None, options.config_json), "")
    findings = check_source(config.sharding)
    print(findings.answer().model_dump_json(), flush=True)
    return EXIT_OK


def check_source(section: ShardingSection) -> Findings:
    """Look at the labels of a source, as far as they are known before it is sharded.

    What the shard stage finds within its first seconds, e.g. that a source is not there, is left to it.
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
        if uri.lower().endswith(tuple(SUFFIXES)) and storage.exists(uri):
            _check_rows(section, uri, findings)
        else:
            _check_folders(section, uri, findings)
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


def _check_rows(section: ShardingSection, uri: str, findings: Findings) -> None:
    rows = list(itertools.islice(read_rows(section, uri), MAX_ROWS + 1))
    whole = len(rows) <= MAX_ROWS
    rows = rows[:MAX_ROWS]
    shown = f"sharding.source {storage.display(uri)}"
    if not whole:
        findings.leave_unchecked(f"labels of {shown} behind row {MAX_ROWS}", "no more rows are read before sharding")
    fields = Fields.of(section)
    setting = "sharding.label_column"
    if fields is not None:
        # What the fields are for is the task's to say; here rows are of the kinds that they are said to be.
        if fields.label is None or fields.kinds[fields.label] != "class":
            return
        setting = f"sharding.fields.{fields.label}.column"
        section = section.model_copy(update={"label_column": section.fields[fields.label].column})
    several = next((row for row in rows if row.is_list), None)
    if several is not None:
        raise DataError(
            f"{shown}, {several.place}: a list of labels, {_shorten(several)}: data that has several labels per image "
            "cannot be trained yet",
            allowed="one label per image; `shardline shard` makes shards of lists too, for other trainers",
            todo="choose one label for each image, and write it without a list (or unset sharding.label_separator)",
        )
    labels = [row.labels[0] for row in rows]
    distinct = dict.fromkeys(labels)
    if whole:
        findings.num_classes = len(distinct)
    if len(rows) < _MIN_ROWS or len(distinct) <= _MANY_DISTINCT * len(rows):
        return
    examples = name_some([str(label) for label in distinct])
    if all(_is_number(label) for label in labels) and not all(float(label).is_integer() for label in labels):
        raise DataError(
            f"{shown}: column {section.label_column!r} holds numbers ({examples}), {len(distinct)} different ones in "
            f"{len(rows)} rows: classes are trained, not numbers (regression)",
            allowed=f"a column with the class of each image ({setting})",
            todo="name the column that holds classes, or turn the numbers into a few classes",
        )
    many = f"{shown}: {len(distinct)} different labels in {len(rows)} rows ({examples})"
    if whole and len(distinct) > _MAX_DISTINCT * len(rows):
        raise DataError(
            f"{many}: hardly any image shares its class with another",
            allowed=f"a column with the class of each image ({setting}), several images for each class",
            todo="name the column that holds classes, not names or numbers of images",
        )
    findings.warnings.append(f"{many}: is {setting}={section.label_column} the class of each image?")


def _shorten(row: Row) -> str:
    return name_some([str(label) for label in row.labels])


def _is_number(label: str | int) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def _check_folders(section: ShardingSection, uri: str, findings: Findings) -> None:
    """Refuse folders that are neither classes nor splits; count the classes, where they are on this machine."""
    folders = _list_folders(uri, findings)
    if not folders:
        return
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
