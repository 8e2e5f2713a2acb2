"""Pictures, words and file names of samples that an evaluation names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

from contracts import storage
from contracts.artifacts import EvaluationReport, ShardManifest
from contracts.config.sharding import ROW_PREFIX
from inspection.run.door import HARM, Door, as_object
from inspection.run.pictures import draw, open_index
from inspection.run.view import PictureView

if TYPE_CHECKING:
    from records.index import SampleIndex

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
        return self._attempt(place, key, lambda index, at: draw(self.door, self.folder_uri, index, [at], split)[0])

    def words(self, place: int, key: str) -> str | None:
        """Return the beginning of a sample's text, else its columns that are no files.

        The label is not among them: who shows the words shows it too.
        """
        return self._attempt(place, key, self._words)

    def path(self, place: int, key: str) -> str:
        """Return the path of a sample's file in the source, as its shard has it; empty: it has none of its own."""
        return self._attempt(place, key, self._path) or ""

    def _attempt(self, place: int, key: str, read: Callable[[SampleIndex, int], T | None]) -> T | None:
        """Return what `read` returns of the index and a sample's place in it; None where there is nothing to show."""
        split = self.manifest.splits[self.evaluation.split]
        is_other = self.manifest.fingerprint != self.evaluation.shards_fingerprint
        if not self.shown or is_other or not 0 <= place < split.samples:
            return None
        try:
            from records.index import key_of

            index = open_index(self.door, self.folder_uri, self.manifest)
            at = split.first + place
            # Of another key it is another sample by now.
            return read(index, at) if key_of(index[at]) == key else None
        except HARM:
            return None

    def _words(self, index: SampleIndex, at: int) -> str | None:
        from records.fields import FieldReader

        labels = (_LABEL, self.manifest.label_field)
        fields = {name: entry for name, entry in self.manifest.sample_fields.items() if name not in labels}
        wanted = [name for name, entry in fields.items() if entry.kind == "text"]
        wanted = wanted or [name for name, entry in fields.items() if entry.kind in _WORDED_KINDS]
        if not wanted or int(index[at]["size"]) > _MOST_BYTES:
            return None
        values = FieldReader(self.manifest, wanted).read(self._stored(index, at), int(index[at]["label"]))
        if len(wanted) == 1 and isinstance(text := values[wanted[0]], str):
            return text[:WORDS]
        return ", ".join(f"{fields[name].column or name}: {_value(values[name])}" for name in wanted)[:WORDS]

    def _path(self, index: SampleIndex, at: int) -> str | None:
        from records.fields import path_in

        path = path_in(self._stored(index, at), self.manifest.format) or ""
        return None if path.startswith(ROW_PREFIX) else path[:PATH]

    def _stored(self, index: SampleIndex, at: int) -> bytes:
        from records.index import read_samples

        self.door.require(self.manifest.shards[self.manifest.shards.locate(at)[0]].uri(self.folder_uri))
        (stored,) = read_samples(index, self.folder_uri, [at])
        return stored


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
