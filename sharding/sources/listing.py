"""The listing of a source: files of references in the order of their paths, and what is known of all of them."""

from __future__ import annotations

import hashlib
import unicodedata
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

from contracts.config import SPLITS, SplitFractions
from sharding.limits import MAX_EXAMPLES, encode_name, encode_path, name_some
from sharding.plan import find_split_ends
from sharding.sources.parts import (
    MAX_IGNORED,
    Changes,
    Fields,
    Names,
    Piece,
    Stretch,
    cut_into_parts,
    read_fields,
    read_file,
    repack,
)
from sharding.sources.reference import NO_CLASS, Reference
from sharding.sources.stratify import MAX_SAMPLES, Move, choose_moves, find_lacking

# Share of a split that may be off without a warning, and the samples of which one is no more than half of that.
_MOST_OFF, _LEAST_SAMPLES = 0.02, 100


@dataclass(frozen=True)
class Listing:
    """All files of a source. The references lie in files: this holds none of them."""

    uri: str
    """Folder that paths are relative to."""
    classes: tuple[bytes, ...]
    """Names of the classes; a label is a place here."""
    multi_label: bool
    """Whether the labels of an image are a list."""
    splits_given: bool
    """Whether the source itself decides about splits, by naming them or by its groups."""
    names_splits: bool
    """Whether the source names splits."""
    is_remote: bool
    """Whether any of it is in a bucket: a local manifest may name objects."""
    sha256: str
    """Hash over path, size and generation of every file, and over what the source says about it. What was ignored is
    not in it: a .DS_Store that comes or goes is no reason to shard again."""
    num_files: int
    total_bytes: int
    counts: tuple[list[int], ...]
    """For each split, the number of files of each class."""
    split_bytes: tuple[int, ...]
    ignored: tuple[bytes, ...]
    """Paths that are no images by their name or place, sorted; the first 10,000. A folder ends with a slash."""
    num_ignored: int
    """Number of all of them."""
    warnings: tuple[str, ...]
    """What is allowed but probably not meant."""
    split_files: tuple[int, ...]
    """For each split, the number of samples."""
    vocabularies: dict[str, tuple[bytes, ...]]
    """Names of the classes of each field of classes but the label."""
    parts: tuple[Path, ...]
    """Files of `PART_REFERENCES` references each (fewer where cells are long), the last one of the rest; sorted by
    path."""

    def part(self, number: int) -> list[Reference]:
        """Return the references of a part."""
        return read_file(self.parts[number])

    def references(self) -> Iterator[Reference]:
        """Yield all references in the order of their paths, holding one part."""
        for path in self.parts:
            yield from read_file(path)

    def samples(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield (path, split, bytes) of every file."""
        for part in self.parts:
            for path, _, split, size, _, _, _, *named in read_fields(part):
                yield path, split, size + named[1] if named else size


@dataclass
class Found:
    """What a kind of source has found, before it is one listing."""

    uri: str
    classes: tuple[bytes, ...]
    stretches: list[Stretch]
    """In the order of paths."""
    multi_label: bool = False
    splits_given: bool = False
    names_splits: bool = False
    is_remote: bool = False
    vocabularies: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    is_cut: bool = False
    """Whether the files of the stretches are the parts: one process has written all of them, in order."""
    keeps_empty: bool = True
    """Whether a class without a file is one: a bucket has no folders, only names."""
    warnings: tuple[str, ...] = ()


def assemble(found: Found, folder: Path, pool: Executor, *, fractions: SplitFractions | None) -> Listing:
    """Cut the stretches into parts, and hash them in their order.

    Args:
        found: What was found.
        folder: The parts go here.
        pool: Writes them.
        fractions: Of the splits, where classes are to get a sample in each; None: splits stay as they are.

    Raises:
        TryAgain: The source changed while it was listed.
    """
    counts = sum((stretch.counts for stretch in found.stretches), Counter[tuple[int, int]]())
    split_bytes = [sum(stretch.split_bytes[split] for stretch in found.stretches) for split in range(len(SPLITS))]
    split_files = [sum(stretch.split_files[split] for stretch in found.stretches) for split in range(len(SPLITS))]
    files = [file for stretch in found.stretches for file in stretch.files]
    parts = [[Piece(path, 0, count, True)] for path, count in files] if found.is_cut else cut_into_parts(files)
    warnings = list(found.warnings)
    moves: list[Move] = []
    if fractions is not None and found.classes and not found.multi_label:
        moves, warning = _stratify(found, counts, fractions)
        warnings += warning
    for move in moves:
        counts[move.old, move.label] -= 1
        counts[move.new, move.label] += 1
        split_bytes[move.old] -= move.size
        split_bytes[move.new] += move.size
        split_files[move.old] -= 1
        split_files[move.new] += 1
    classes, labels = _drop_empty(found, counts)
    total = hashlib.sha256(b"multi-label\0" if found.multi_label else b"")
    for name in classes:
        total.update(b"%b\0" % name)
    for field_name, names in found.vocabularies.items():
        total.update(b"\0%b\0" % field_name.encode() + b"\0".join(names))
    changes_path = None
    if labels or moves:
        # Of another name each time: a process that loads it keeps it.
        changes_path = folder / f"changes-{uuid.uuid4().hex}"
        Changes(labels, {move.path: move.new for move in moves}).save(changes_path)
    written = []
    for path in _write_parts(parts, folder, pool, changes_path):
        _update_hash(total, read_fields(path), with_split=found.splits_given)
        written.append(path)
    for stretch in found.stretches:
        for source, _ in stretch.files:
            source.unlink(missing_ok=True)
    by_split = tuple([0] * len(classes) for _ in SPLITS)
    for (split, label), count in counts.items():
        if label == NO_CLASS:
            continue
        by_split[split][labels[label] if labels else label] = count
    ignored = Names(MAX_IGNORED)
    for stretch in found.stretches:
        ignored.extend(stretch.ignored.first, stretch.ignored.count)
    return Listing(
        found.uri,
        classes,
        found.multi_label,
        found.splits_given,
        found.names_splits,
        found.is_remote,
        total.hexdigest(),
        sum(split_files),
        sum(split_bytes),
        by_split,
        tuple(split_bytes),
        tuple(ignored.sorted()),
        ignored.count,
        (*warnings, *_describe_outside(found)),
        tuple(split_files),
        found.vocabularies,
        tuple(written),
    )


def _stratify(
    found: Found, counts: Counter[tuple[int, int]], fractions: SplitFractions
) -> tuple[list[Move], list[str]]:
    ends = find_split_ends(fractions)
    lacking = find_lacking(counts, ends)
    num_samples = sum(count for (_, label), count in counts.items() if label in lacking)
    if num_samples > MAX_SAMPLES:
        too_many = f"{num_samples} samples, too many for sharding.stratify ({MAX_SAMPLES} at most)"
        return [], [f"{len(lacking)} classes lack a split; they have {too_many}"]
    if not lacking:
        return [], []
    # Only the stretches with such a class; of class folders these are few.
    files = [
        path
        for stretch in found.stretches
        if any(label in lacking for _, label in stretch.counts)
        for path, _ in stretch.files
    ]
    return choose_moves((one for path in files for one in read_file(path)), lacking, ends), []


def _drop_empty(found: Found, counts: Counter[tuple[int, int]]) -> tuple[tuple[bytes, ...], list[int]]:
    """Return the classes that count, and the new label of each old one; empty: labels stay."""
    used = {label for (_, label), count in counts.items() if count and label != NO_CLASS}
    if found.keeps_empty or len(used) == len(found.classes):
        return found.classes, []
    kept = sorted(used)
    labels = [0] * len(found.classes)
    for new, old in enumerate(kept):
        labels[old] = new
    return tuple(found.classes[label] for label in kept), labels


def _write_parts(
    parts: Sequence[Sequence[Piece]], folder: Path, pool: Executor, changes_path: Path | None
) -> Iterator[Path]:
    waiting = [
        pool.submit(repack, folder / f"references-{number:05d}", pieces, changes_path)
        for number, pieces in enumerate(parts)
    ]
    for future in waiting:
        yield future.result()


def _update_hash(total: hashlib._Hash, references: list[Fields], *, with_split: bool) -> None:
    # No path holds a zero byte: fields and lines cannot run into each other.
    rows = []
    for path, label, split, size, generation, _, more, *named in references:
        rows.append(b"\0%b\0%d\0%d\0%d" % (path, size, generation, label))
        rows += [b",%d" % other for other in more]
        if with_split:
            rows.append(b"\0%d" % split)
        if named:
            # JSON of ASCII: it holds no zero byte either.
            rows.append(b"\0" + named[0])
    total.update(b"".join(rows))


def _describe_outside(found: Found) -> list[str]:
    names = Names(10)
    for stretch in found.stretches:
        names.extend(stretch.outside.first, stretch.outside.count)
    if not names.count:
        return []
    shown = [encode_path(path) for path in names.sorted()]
    more = f" and {names.count - len(shown)} more" if names.count > len(shown) else ""
    images = f"{names.count} image{'s' * (names.count > 1)} outside of class folders"
    return [f"{images} left out: {', '.join(shown)}{more}"]


def describe_gaps(classes: Sequence[bytes], counts: Sequence[Sequence[int]], fractions: SplitFractions) -> list[str]:
    """Return a warning for each thing that is allowed but probably not meant."""
    warnings = []
    for split, name in enumerate(SPLITS):
        own = counts[split]
        if split == 0 or (getattr(fractions, name) == 0 and not any(own)):
            continue
        absent = [encode_name(classes[label]) for label, count in enumerate(own) if count == 0]
        if absent:
            warnings.append(f"the {name} split has no sample of class {name_some(absent)}")
    return warnings


def describe_lookalikes(classes: Sequence[bytes]) -> list[str]:
    """Return a warning for each two classes of one field whose names a reader takes for the same."""
    warnings = []
    by_lower: dict[str, str] = {}
    by_look: dict[str, str] = {}
    for name in map(encode_name, classes):
        other = by_lower.setdefault(name.lower(), name)
        alike = by_look.setdefault(_look_of(name), name)
        if other != name:
            warnings.append(f"classes {other} and {name} differ only in upper and lower case")
        elif alike != name:
            warnings.append(f"classes {alike!a} and {name!a} are the same to a reader, or nearly")
    return warnings


def _look_of(name: str) -> str:
    """Return what two names have in common that look the same: NFKC, one blank for several, nothing invisible."""
    text = unicodedata.normalize("NFKC", name)
    text = "".join(char for char in text if unicodedata.category(char) != "Cf")
    return unicodedata.normalize("NFKC", " ".join(text.split()).casefold())


def describe_shares(listing: Listing, fractions: SplitFractions) -> list[str]:
    """Return warnings about shares of splits, of all samples and of classes, that are off by more than two points."""
    if listing.names_splits:
        return []
    splits = _find_off([("", list(listing.split_files))], fractions)
    by_class = zip(map(encode_name, listing.classes), zip(*listing.counts, strict=True), strict=True)
    classes = _find_off([(name, list(counts)) for name, counts in by_class], fractions)
    warnings = []
    if splits:
        warnings.append(f"splits are not as large as sharding.splits says: {', '.join(splits)}")
    if classes:
        warnings.append(
            f"classes are not divided as sharding.splits says, by more than {_MOST_OFF * 100:g} points: "
            f"{name_some(classes, MAX_EXAMPLES)}"
        )
    return warnings


def _find_off(counted: Sequence[tuple[str, list[int]]], fractions: SplitFractions) -> list[str]:
    """Return in words which shares are off, the largest differences first.

    Args:
        counted: Name, and number of samples in each split.
        fractions: The shares that are asked for.
    """
    found = []
    for name, counts in counted:
        total = sum(counts)
        if total < _LEAST_SAMPLES:
            continue
        for split, count in zip(SPLITS, counts, strict=True):
            wanted = getattr(fractions, split)
            if abs(count - wanted * total) > _MOST_OFF * total:
                of = f"{name}: " if name else ""
                words = f"{of}{split} {100 * count / total:.1f} % instead of {100 * wanted:g} %"
                found.append((-abs(count / total - wanted), words))
    return [words for _, words in sorted(found)]
