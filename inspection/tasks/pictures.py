"""Pictures, words and file names of samples that an evaluation names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

from contracts import storage
from contracts.artifacts import EvaluationReport, FieldEntry, ShardManifest
from inspection.run.door import HARM, Door, as_object
from inspection.run.pictures import draw, shard_uri
from inspection.run.view import PictureView

# Of a text, or of a row.
WORDS = 300
# Of the bytes of a sample: one with more is not read for the words at its beginning.
_MOST_BYTES = 32 << 20
# Of a path: beyond what object stores allow for a name.
PATH = 1100
# How paths of rows without a file begin, and names of tables that list files.
_ROW, _TABLES = "row:", (".csv", ".jsonl", ".parquet")
_WORDED_KINDS = ("text", "category", "number", "numbers")
# The field that is learnt: its name is fixed (docs/decisions/0017-tasks-of-the-tool.md).
_LABEL = "label"


def picture_of(
    door: Door, folder_uri: str, manifest: ShardManifest, evaluation: EvaluationReport, place: int, key: str
) -> PictureView | None:
    """Return the picture of a sample; None: it cannot be read, or is another one by now.

    Args:
        door: Of the line.
        folder_uri: Of the shards.
        manifest: Theirs.
        evaluation: That names the sample.
        place: Of the sample in the split.
        key: Of the sample.
    """
    try:
        record = _find_record(folder_uri, manifest, evaluation, place, key)
        return None if record is None else draw(door, folder_uri, manifest, [record], evaluation.split)[0]
    except HARM:
        return None


def words_of(
    door: Door, folder_uri: str, manifest: ShardManifest, evaluation: EvaluationReport, place: int, key: str
) -> str | None:
    """Return the beginning of a sample's text, else its columns that are no files; None: as for `picture_of`.

    The label is not among them: who shows the words shows it too.

    Args: as for `picture_of`.
    """
    from records.fields import FieldReader
    from records.payloads import read_payloads

    labels = (_LABEL, manifest.label_field)
    fields = {name: entry for name, entry in manifest.sample_fields.items() if name not in labels}
    wanted = [name for name, entry in fields.items() if entry.kind == "text"]
    wanted = wanted or [name for name, entry in fields.items() if entry.kind in _WORDED_KINDS]
    try:
        record = _find_record(folder_uri, manifest, evaluation, place, key)
        if record is None or not wanted or int(record["size"]) > _MOST_BYTES:
            return None
        uri = shard_uri(folder_uri, manifest, record)
        door.require(uri)
        (stored,) = read_payloads([(uri, record)])
        values = FieldReader(manifest, wanted).read(stored, int(record["label"]))
        if len(wanted) == 1 and isinstance(text := values[wanted[0]], str):
            return text[:WORDS]
        return ", ".join(part for name in wanted for part in _shown(name, fields[name], values[name]))[:WORDS]
    except HARM:
        return None


def path_of(
    door: Door, folder_uri: str, manifest: ShardManifest, evaluation: EvaluationReport, place: int, key: str
) -> str:
    """Return the path of a sample's file in the source, as its shard has it; empty: it has none, or as `picture_of`.

    Args: as for `picture_of`.
    """
    from records.description import read_path

    try:
        record = _find_record(folder_uri, manifest, evaluation, place, key)
        if record is None:
            return ""
        uri = shard_uri(folder_uri, manifest, record)
        door.require(uri)
        found = read_path(uri, record, whole_format=manifest.format if manifest.whole_samples else None) or ""
        return "" if found.startswith(_ROW) else found[:PATH]
    except HARM:
        return ""


def file_uri(config: Mapping[str, Any], path: str) -> str:
    """Return the URI of a sample's file; empty: not known.

    Args:
        config: The run's configuration, which names the source.
        path: In the source, percent-encoded where it is not plain text.
    """
    source, plain = as_object(config.get("sharding")).get("source"), unquote(path)
    if not plain or plain.startswith("gs://"):
        return plain
    if plain.startswith("/"):
        return storage.normalise(plain)
    if not isinstance(source, str) or not source.startswith(("gs://", "file://", "/")):
        return ""
    folder = source.rpartition("/")[0] if source.lower().endswith(_TABLES) else source.rstrip("/")
    return f"{folder}/{plain}" if folder.startswith("gs://") else f"{storage.normalise(folder)}/{quote(plain)}"


def _shown(field: str, entry: FieldEntry, value: Any) -> Iterator[str]:
    """Yield a field's columns, each with its value: a list as one of numbers where its columns are not known."""
    values = value if isinstance(value, list) else [value]
    names = [one.name for one in entry.statistics] or entry.columns
    if len(names) != len(values):
        yield f"{field}: {' '.join(map(_value, values))}"
        return
    yield from (f"{name}: {_value(one)}" for name, one in zip(names, values, strict=True))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return "missing" if math.isnan(value) else f"{value:.6g}"
    return str(value) or "missing"


def _find_record(
    folder_uri: str, manifest: ShardManifest, evaluation: EvaluationReport, place: int, key: str
) -> Any | None:
    """Return a sample's element of the index; None: it is another one by now."""
    from records.index import key_of
    from records.samples import open_samples

    split = manifest.splits[evaluation.split]
    if manifest.fingerprint != evaluation.shards_fingerprint or not 0 <= place < split.samples:
        return None
    record = open_samples(manifest, folder_uri)[split.first + place]
    return record if key_of(record) == key else None
