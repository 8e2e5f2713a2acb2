"""The data report of a run: its shards beside those of the run before it, and what `validate` says to that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from contracts.artifacts import ShardManifest
from contracts.artifacts.data_report import DataComparison, DataReport, FieldReport, Verdict
from contracts.config import SPLITS, ValidateSection
from contracts.errors import DataError, ShardlineError
from records.drawn import load_drawn
from records.report.fields import LABEL, FieldData, check_limits, compare_field, read_fields, worst
from records.samples import open_samples

_SHOWN_CLASSES, _SHOWN_NAMES, _NAMED = 1000, 100, 5
# Records of the index that are read at a time.
_PIECE = 1 << 18
# Of all samples: sharding.stratify moves single ones of small classes as a source grows.
_MOVED_SHARE = 0.001
_VERDICT_OF: dict[str, Verdict] = {"fail": "fail", "warn": "warn", "ignore": "ok"}

Keys = npt.NDArray[np.uint64]


class Earlier(NamedTuple):
    """Data that new data is compared with."""

    of: str
    """In words: `run ID`."""
    uri: str
    """Folder of its shards; empty: it is not known."""
    lost: str = ""
    """Why it is not known."""


def make_report(
    uri: str, validate: ValidateSection, earlier: Iterable[Earlier], manifest: ShardManifest | None = None
) -> DataReport:
    """Return the report of finished shards.

    Args:
        uri: Their folder.
        validate: What is allowed.
        earlier: What they are compared with.
        manifest: Theirs, where the caller has it.

    Raises:
        DataError: A manifest, an index or drawn samples are missing or damaged.
    """
    manifest = manifest or ShardManifest.load(uri)
    fields = read_fields(manifest, load_drawn(manifest, uri))
    if unknown := sorted(validate.fields.keys() - fields.keys()):
        raise DataError(
            f"validate.fields names {', '.join(unknown[:_NAMED])}, which these samples have not",
            allowed=f"{', '.join(sorted(fields))}",
            todo="correct the name, or remove it",
        )
    own = [check_limits(field, validate) for field in fields.values()]
    found = [_try_to_compare(uri, manifest, fields, one, validate) for one in earlier]
    said = [(field.verdict, f"{field.name}: {words}") for field in own for words in field.said]
    for comparison in found:
        said += [
            (verdict, f"{words} (compared with {comparison.of})") for verdict, words in _remarks(comparison, validate)
        ]
    classes = zip(manifest.classes, manifest.splits["train"].samples_by_class, strict=False)
    return DataReport(
        shards=uri,
        samples=_samples(manifest),
        drawn=manifest.drawn.samples if manifest.drawn is not None else 0,
        rejected=manifest.count_rejected,
        copies=manifest.duplicates.copies if manifest.duplicates is not None else 0,
        classes=dict(list(classes)[:_SHOWN_CLASSES]),
        fields=own,
        comparisons=found,
        verdict=worst([verdict for verdict, _ in said]),
        problems=[words for verdict, words in said if verdict == "fail"],
        warnings=[words for verdict, words in said if verdict == "warn"],
    )


def _try_to_compare(
    uri: str, manifest: ShardManifest, fields: Mapping[str, FieldData], earlier: Earlier, validate: ValidateSection
) -> DataComparison:
    """Return the comparison; earlier data that cannot be read must not stop the run of new data."""
    if earlier.lost:
        return DataComparison(of=earlier.of, uri="", not_compared=earlier.lost)
    try:
        return _compare(uri, manifest, fields, earlier, validate)
    except (OSError, ShardlineError) as error:
        return DataComparison(of=earlier.of, uri=earlier.uri, not_compared=str(error).splitlines()[0])


def _compare(
    uri: str, manifest: ShardManifest, fields: Mapping[str, FieldData], earlier: Earlier, validate: ValidateSection
) -> DataComparison:
    before = manifest if earlier.uri == uri else ShardManifest.load(earlier.uri)
    same = before.fingerprint == manifest.fingerprint
    head = DataComparison(of=earlier.of, uri=earlier.uri, same=same, samples=_samples(before))
    if same:
        return head
    own, others = fields, read_fields(before, load_drawn(before, earlier.uri))
    new, vanished = _named(before, manifest), _named(manifest, before)
    judged: list[FieldReport] = []
    if validate.drift != "ignore":
        both = [name for name in own if name in others and own[name].kind == others[name].kind]
        judged = [compare_field(own[name], others[name], validate, len(both)) for name in both]
    moved = 0
    if validate.moved_samples != "ignore":
        moved = _count_moved(earlier.uri, before, uri, manifest)
    return head.model_copy(update={"new_classes": new, "vanished_classes": vanished, "moved": moved, "fields": judged})


def _remarks(found: DataComparison, validate: ValidateSection) -> Iterator[tuple[Verdict, str]]:
    """Yield (verdict, words) of all that is remarkable in a comparison."""
    for key, by_field in (("new_classes", found.new_classes), ("vanished_classes", found.vanished_classes)):
        word = getattr(validate, key)
        for name, classes in by_field.items():
            more = f" and {len(classes) - _NAMED} more" if len(classes) > _NAMED else ""
            what = "new" if key == "new_classes" else "vanished"
            yield _VERDICT_OF[word], f"{name}: {what} {', '.join(classes[:_NAMED])}{more} (validate.{key} is {word})"
    if found.not_compared:
        yield "warn", f"the data was not compared: {found.not_compared}"
    if found.moved:
        word = validate.moved_samples
        if word == "fail" and found.moved <= _MOVED_SHARE * sum(found.samples.values()):
            word = "warn"
        words = "1 sample is" if found.moved == 1 else f"{found.moved} samples are"
        yield (
            _VERDICT_OF[word],
            f"{words} in another split than before (validate.moved_samples is {validate.moved_samples})",
        )
    for field in found.fields:
        if field.verdict != "ok":
            yield from ((field.verdict, f"{field.name}: {words}") for words in field.said)


def _samples(manifest: ShardManifest) -> dict[str, int]:
    return {name: manifest.splits[name].samples for name in SPLITS}


def _named(one: ShardManifest, other: ShardManifest) -> dict[str, list[str]]:
    """Return the classes and categories in the training split of `other` that are not in that of `one`, by field."""
    found = {}
    for name, has in _names(other).items():
        had = _names(one).get(name)
        if had is not None and (missing := sorted(has - had)):
            found[name] = missing[:_SHOWN_NAMES]
    return found


def _names(manifest: ShardManifest) -> dict[str, set[str]]:
    counts = zip(manifest.classes, manifest.splits["train"].samples_by_class, strict=False)
    found = {LABEL: {name for name, count in counts if count}} if manifest.classes else {}
    for name, entry in manifest.fields.items():
        if entry.kind == "category":
            found[name] = set(entry.vocabulary)
    return found


def _count_moved(before_uri: str, before: ShardManifest, uri: str, manifest: ShardManifest) -> int:
    """Return the number of samples, by their keys, that are in another split than before.

    Only what is not in training is held in memory, 8 bytes for each sample; training samples are read in pieces.
    """
    sides = ((before, before_uri), (manifest, uri))
    held = [{name: np.sort(np.concatenate([*_keys(*side, name)])) for name in SPLITS[1:]} for side in sides]
    moved = 0
    for (side, side_uri), others in zip(sides, reversed(held), strict=True):
        for keys in _keys(side, side_uri, SPLITS[0]):
            moved += sum(_count_in(keys, other) for other in others.values())
    for one, other in (SPLITS[1:], SPLITS[:0:-1]):
        moved += _count_in(held[0][one], held[1][other])
    return moved


def _keys(manifest: ShardManifest, uri: str, split: str) -> Iterator[Keys]:
    """Yield half of the key of each sample of a split, in pieces; at least one, which may be empty."""
    samples, own = open_samples(manifest, uri), manifest.splits[split]
    yield np.empty(0, np.uint64)
    for first in range(own.first, own.first + own.samples, _PIECE):
        keys = samples[first : min(first + _PIECE, own.first + own.samples)]["key"]
        yield np.frombuffer(np.ascontiguousarray(keys).tobytes(), "<u8")[::2]


def _count_in(keys: Keys, sorted_keys: Keys) -> int:
    if not len(sorted_keys):
        return 0
    at = np.searchsorted(sorted_keys, keys)
    return int((sorted_keys[np.minimum(at, len(sorted_keys) - 1)] == keys).sum())
