"""The named fields in the manifest: classes, statistics of numbers, vocabularies of categories, lengths of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from contracts.artifacts import ColumnStatistics, FieldEntry
from contracts.config import SPLITS, FieldKind
from records.field_statistics import NUMBER_KINDS, ColumnSums, FieldSums
from sharding.commit.kept import Kept
from sharding.job import OpenJob


def describe_fields(
    opened: OpenJob, sums: Sequence[Mapping[str, FieldSums]], kept: Kept | None
) -> dict[str, FieldEntry]:
    """Return the named fields; none where samples are an image and a label.

    A chain of increments keeps the statistics and vocabularies of its first manifest: weights that were trained on one
    of its manifests so keep their meaning on the next.

    Args:
        opened: The job.
        sums: Of each split, what was written.
        kept: What an increment takes over.
    """
    fields = opened.job.fields
    if fields is None:
        return {}
    classes = {name: list(names) for name, names in opened.job.vocabularies.items()}
    if fields.label is not None:
        classes[fields.label] = opened.planned.classes
    entries = {}
    for place, (name, kind) in enumerate(fields.kinds.items()):
        own = [one.get(name, FieldSums()) for one in sums]
        columns = _columns_of(opened, name)
        entry = FieldEntry(kind=kind, place=place, classes=classes.get(name, []), columns=columns)
        before = kept.manifest.fields.get(name) if kept is not None else None
        # A compaction writes every sample again: it counts by itself.
        counted = before if kept is not None and not kept.append.compacts else None
        entries[name] = entry.model_copy(update=_describe(opened, name, kind, own, before, counted))
    return entries


def _describe(
    opened: OpenJob,
    name: str,
    kind: FieldKind,
    sums: Sequence[FieldSums],
    first: FieldEntry | None,
    counted: FieldEntry | None,
) -> dict[str, object]:
    """Return what is known about the values of a field.

    Args:
        opened: The job.
        name: Of the field.
        kind: Its kind.
        sums: Of each split.
        first: The field in the chain's earlier manifests, which its statistics and vocabulary are those of.
        counted: The same, where its samples are not written again.
    """
    if kind in NUMBER_KINDS:
        return {"statistics": _statistics(opened, name, sums[0].columns) if first is None else first.statistics}
    if kind == "category":
        vocabulary = sorted(sums[0].values.keys() - {""}) if first is None else first.vocabulary
        known = {*vocabulary, ""}
        unseen = [sum(count for value, count in one.values.items() if value not in known) for one in sums]
        missing = [one.values.get("", 0) for one in sums]
        return {
            "vocabulary": vocabulary,
            "unseen": _by_split(unseen, counted.unseen if counted is not None else {}),
            "missing": _by_split(missing, counted.missing if counted is not None else {}),
        }
    if kind == "text":
        missing = [one.lengths[0] if one.lengths else 0 for one in sums]
        total = sum(sums, FieldSums(lengths=tuple(counted.lengths) if counted is not None else ()))
        return {
            "missing": _by_split(missing, counted.missing if counted is not None else {}),
            "lengths": list(total.lengths),
        }
    return {}


def _by_split(counts: Sequence[int], before: Mapping[str, int]) -> dict[str, int]:
    return {split: count + before.get(split, 0) for split, count in zip(SPLITS, counts, strict=True)}


def _columns_of(opened: OpenJob, name: str) -> list[str]:
    """Return the columns that a field is read from."""
    section = opened.planned.sharding.fields[name]
    return list(opened.planned.columns.get(name) or section.columns or [section.column])


def _statistics(opened: OpenJob, name: str, columns: tuple[ColumnSums, ...] | None) -> list[ColumnStatistics]:
    """Return an entry for each number; none of lists of different lengths."""
    section, names = opened.planned.sharding.fields[name], _columns_of(opened, name)
    if section.kind == "numbers" and section.column:
        names = [f"{section.column}[{at}]" for at in range(len(columns or ()))]
    return [
        ColumnStatistics(
            name=one,
            count=own.count,
            missing=own.missing,
            mean=own.mean if own.count else None,
            std=own.std if own.count else None,
            least=own.least if own.count else None,
            most=own.most if own.count else None,
        )
        for one, own in zip(names, columns or (), strict=bool(columns))
    ]
