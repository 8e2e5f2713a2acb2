"""Pictures, words and file names of samples that an evaluation names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from contracts import storage
from contracts.artifacts import EvaluationReport, ShardManifest
from contracts.config.sharding import ROW_PREFIX
from inspection.run.door import HARM, Door, as_object
from inspection.run.pictures import draw, shard_uri
from inspection.run.view import PictureView

# Of a text, or of a row.
WORDS = 300
# Of the bytes of a sample: one with more is not read for the words at its beginning.
_MOST_BYTES = 32 << 20
# Of a path: beyond what object stores allow for a name.
PATH = 1100
# Names of tables that list files.
_TABLES = (".csv", ".jsonl", ".parquet")
_WORDED_KINDS = ("text", "number")
# The field that is learnt: its name is fixed (docs/decisions/0017-tasks-of-the-tool.md).
_LABEL = "label"
T = TypeVar("T")


@dataclass(frozen=True)
class NamedSamples:
    """Samples that an evaluation names, as the shards hold them.

    Of one that cannot be read, is another one by now, or is not to be shown, there is nothing. `place` is its place in
    the split.
    """

    door: Door
    """Of the line."""
    folder_uri: str
    """Of the shards."""
    manifest: ShardManifest
    """Theirs."""
    evaluation: EvaluationReport
    shown: bool = True
    """Whether to read what samples hold."""

    def picture(self, place: int, key: str) -> PictureView | None:
        """Return the picture of a sample."""
        split = self.evaluation.split
        return self._attempt(place, key, lambda one: draw(self.door, self.folder_uri, self.manifest, [one], split)[0])

    def words(self, place: int, key: str) -> str | None:
        """Return the beginning of a sample's text, else its columns that are no files.

        The label is not among them: who shows the words shows it too.
        """
        return self._attempt(place, key, self._words)

    def path(self, place: int, key: str) -> str:
        """Return the path of a sample's file in the source, as its shard has it; empty: it has none of its own."""
        return self._attempt(place, key, self._path) or ""

    def _attempt(self, place: int, key: str, read: Callable[[Any], T | None]) -> T | None:
        try:
            record = self._find_record(place, key) if self.shown else None
            return None if record is None else read(record)
        except HARM:
            return None

    def _words(self, record: Any) -> str | None:
        from records.fields import FieldReader
        from records.payloads import read_payloads

        labels = (_LABEL, self.manifest.label_field)
        fields = {name: entry for name, entry in self.manifest.sample_fields.items() if name not in labels}
        wanted = [name for name, entry in fields.items() if entry.kind == "text"]
        wanted = wanted or [name for name, entry in fields.items() if entry.kind in _WORDED_KINDS]
        if not wanted or int(record["size"]) > _MOST_BYTES:
            return None
        (stored,) = read_payloads([(self._shard(record), record)])
        values = FieldReader(self.manifest, wanted).read(stored, int(record["label"]))
        if len(wanted) == 1 and isinstance(text := values[wanted[0]], str):
            return text[:WORDS]
        return ", ".join(f"{fields[name].column or name}: {_value(values[name])}" for name in wanted)[:WORDS]

    def _path(self, record: Any) -> str | None:
        from records.description import read_path

        whole_format = self.manifest.format if self.manifest.whole_samples else None
        found = read_path(self._shard(record), record, whole_format=whole_format) or ""
        return None if found.startswith(ROW_PREFIX) else found[:PATH]

    def _shard(self, record: Any) -> str:
        uri = shard_uri(self.folder_uri, self.manifest, record)
        self.door.require(uri)
        return uri

    def _find_record(self, place: int, key: str) -> Any | None:
        """Return a sample's element of the index; None: it is another one by now."""
        from records.index import key_of
        from records.samples import open_samples

        split = self.manifest.splits[self.evaluation.split]
        is_other = self.manifest.fingerprint != self.evaluation.shards_fingerprint
        if is_other or not 0 <= place < split.samples:
            return None
        record = open_samples(self.manifest, self.folder_uri)[split.first + place]
        return record if key_of(record) == key else None


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


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
