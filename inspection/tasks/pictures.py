"""Pictures and words of samples that an evaluation names."""

from __future__ import annotations

from typing import Any

from contracts.artifacts import EvaluationReport, ShardManifest
from inspection.run.door import HARM, Door
from inspection.run.pictures import draw, shard_uri
from inspection.run.view import PictureView

# Of a text, or of a row.
WORDS = 300
# Of the bytes of a sample: one with more is not read for the words at its beginning.
_MOST_BYTES = 32 << 20
_WORDED_KINDS = ("text", "category", "number", "numbers")


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
    """Return the beginning of a sample's text, else its fields that are no files; None: as for `picture_of`.

    Args: as for `picture_of`.
    """
    from inspection.payloads import read_payloads
    from records.fields import FieldReader

    fields = {name: entry.kind for name, entry in manifest.sample_fields.items() if name != manifest.label_field}
    wanted = [name for name, kind in fields.items() if kind == "text"]
    wanted = wanted or [name for name, kind in fields.items() if kind in _WORDED_KINDS]
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
        return ", ".join(f"{name}: {_shown(values[name])}" for name in wanted)[:WORDS]
    except HARM:
        return None


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{one:g}" for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


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
