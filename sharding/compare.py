"""Comparison of two manifests of shards: shares of the classes and of rejected files. Nothing here reads a sample."""

from __future__ import annotations

from collections.abc import Iterator

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, Document, RunRecord, ShardManifest
from contracts.config import ShardingSection
from contracts.errors import DataError, ShardlineError
from contracts.previous import RUN_NAME
from contracts.result import RUNS_FOLDER, run_uri
from sharding.names import join_names

# Differences that are worth a warning: half the sum of the changes of the classes' shares, and the change of the share
# of rejected files, both between 0 and 1.
CLASS_DISTANCE, REJECTED_CHANGE = 0.1, 0.01
# With fewer training samples the shares of classes vary by chance.
_LEAST_SAMPLES = 200
_SHOWN_NAMES = 5
# Earlier runs that are searched for shards, newest first.
_TRIED = 20


class Comparison(Document):
    """Difference between the data of two runs: the fields of the event `compared`."""

    run: str
    """Id of the earlier run."""
    class_distance: float | None
    """Total variation distance of the classes' shares of the training split, in [0, 1]; None: a run had no classes."""
    is_small: bool
    """Whether a run had fewer than 200 training samples, too few for a meaningful distance."""
    rejected: float
    """Share of the files that were rejected."""
    rejected_before: float
    new_classes: list[str]
    vanished_classes: list[str]

    def summarise(self) -> str:
        """Return all numbers in one line: the report's section on the data shows it."""
        distance = "not known" if self.class_distance is None else f"{self.class_distance:.3f}"
        return (
            f"Compared with run {self.run}: total variation distance of the classes' shares {distance}, "
            f"{self.rejected:.1%} of the files rejected ({self.rejected_before:.1%} before), "
            f"{len(self.new_classes)} new classes, {len(self.vanished_classes)} vanished classes."
        )

    def describe(self) -> Iterator[str]:
        """Yield warnings about large differences."""
        for kind, names in (("new", self.new_classes), ("vanished", self.vanished_classes)):
            if names:
                yield f"{kind} classes: {join_names(names, _SHOWN_NAMES)} (compared with run {self.run})"
        if self.class_distance is not None and self.class_distance > CLASS_DISTANCE and not self.is_small:
            yield (
                f"shares of classes moved: total variation distance {self.class_distance:.3f}, more than "
                f"{CLASS_DISTANCE:g} (compared with run {self.run})"
            )
        if (change := self.rejected - self.rejected_before) > REJECTED_CHANGE:
            yield (
                f"{self.rejected:.1%} of the files were rejected, {change:.1%} more than before "
                f"(compared with run {self.run})"
            )

    def check(self, section: ShardingSection) -> None:
        """Raise DataError where the data differs more than the configuration allows."""
        if self.new_classes and section.new_classes == "fail":
            raise DataError(
                f"new classes: {join_names(self.new_classes, _SHOWN_NAMES)} (compared with run {self.run})",
                allowed="the classes of the run before (sharding.new_classes is fail)",
                todo="correct the source, or set sharding.new_classes to warn",
            )
        limit = section.max_class_shift
        if limit is not None and self.class_distance is not None and self.class_distance > limit:
            raise DataError(
                f"shares of classes moved: total variation distance {self.class_distance:.3f} (compared with run "
                f"{self.run})",
                allowed=f"at most {limit:g} (sharding.max_class_shift)",
                todo="correct the source, or raise sharding.max_class_shift",
            )


def compare_with_previous(line: str, run_id: str, manifest: ShardManifest) -> Comparison | None:
    """Compare a run's shards with those of the newest earlier run that has shards; None if there is none.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run.
        manifest: Manifest of its shards.
    """
    names = (name for name in storage.list_names(storage.join(line, RUNS_FOLDER)) if name < run_id)
    # Names with a dot are lock files.
    for earlier_run in sorted((name for name in names if not name.startswith(".")), reverse=True)[:_TRIED]:
        try:
            record_uri = storage.join(run_uri(line, earlier_run), RUN_NAME)
            record = RunRecord.parse(storage.read_bytes(record_uri), where=record_uri)
            uri = next((stage.uri for stage in record.stages if stage.name == "shard" and stage.uri), None)
            if uri is not None and storage.exists(storage.join(uri, MANIFEST_NAME)):
                return compare(ShardManifest.load(uri), manifest, earlier_run)
        except (OSError, ShardlineError):
            # Unreadable shards of an earlier run must not stop this one.
            continue
    return None


def compare(earlier: ShardManifest, later: ShardManifest, run: str) -> Comparison:
    """Compare the training split's classes and the rejected files of two manifests.

    Args:
        earlier: Manifest of the earlier run.
        later: Manifest of the later run.
        run: Id of the earlier run.
    """
    old, new = _count_classes(earlier), _count_classes(later)
    old_total, new_total = sum(old.values()), sum(new.values())
    distance = None
    if old_total and new_total:
        changes = (abs(old.get(name, 0) / old_total - new.get(name, 0) / new_total) for name in {**old, **new})
        distance = sum(changes) / 2
    both_have_classes = bool(old and new)
    return Comparison(
        run=run,
        class_distance=distance,
        is_small=min(old_total, new_total) < _LEAST_SAMPLES,
        rejected=_rejected_share(later),
        rejected_before=_rejected_share(earlier),
        new_classes=sorted(new.keys() - old.keys()) if both_have_classes else [],
        vanished_classes=sorted(old.keys() - new.keys()) if both_have_classes else [],
    )


def _count_classes(manifest: ShardManifest) -> dict[str, int]:
    counts = zip(manifest.classes, manifest.splits["train"].samples_by_class, strict=False)
    return {name: samples for name, samples in counts if samples}


def _rejected_share(manifest: ShardManifest) -> float:
    files = sum(split.samples for split in manifest.splits.values()) + manifest.count_rejected
    return manifest.count_rejected / files if files else 0.0
