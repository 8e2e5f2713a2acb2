"""Comparison of two manifests of shards: shares of the classes and of rejected files.

Used by the shard stage, and by the task of a pipeline that reports on it. Nothing here reads a sample.
"""

from __future__ import annotations

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, RunRecord, ShardManifest
from contracts.errors import ShardlineError
from contracts.previous import RUN_NAME
from contracts.result import RUNS_FOLDER, run_uri

# Differences that are worth a warning: half the sum of the changes of the classes' shares, and the share of rejected
# files, both between 0 and 1.
CLASS_DISTANCE, REJECTED_CHANGE = 0.1, 0.01
# Fewer training samples give shares that move by themselves.
_LEAST_SAMPLES = 200
_SHOWN_NAMES = 5
# Runs that are looked at, the newest first, for one that has ended with shards.
_TRIED = 20


def compare_with_previous(line: str, run_id: str, manifest: ShardManifest) -> list[str]:
    """Return warnings about differences between a run's shards and those of the run before it.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run.
        manifest: Of its shards.
    """
    names = (name for name in storage.list_names(storage.join(line, RUNS_FOLDER)) if name < run_id)
    # Beside the runs of this machine lie their locks, whose names begin with a dot.
    for other in sorted((name for name in names if not name.startswith(".")), reverse=True)[:_TRIED]:
        try:
            where = storage.join(run_uri(line, other), RUN_NAME)
            record = RunRecord.parse(storage.read_bytes(where), where=where)
            uri = next((stage.uri for stage in record.stages if stage.name == "shard" and stage.uri), None)
            if uri is not None and storage.exists(storage.join(uri, MANIFEST_NAME)):
                return [f"{text} (compared with run {other})" for text in compare(ShardManifest.load(uri), manifest)]
        except (OSError, ShardlineError):
            # Earlier shards that cannot be read are no reason to stop a run of new data.
            continue
    return []


def compare(before: ShardManifest, now: ShardManifest) -> list[str]:
    """Return in words how the training split's classes and the rejected files of two manifests differ."""
    if before.fingerprint == now.fingerprint:
        return []
    old, new = _count_classes(before), _count_classes(now)
    found = []
    for what, names in (("new", sorted(new.keys() - old.keys())), ("vanished", sorted(old.keys() - new.keys()))):
        if names and old and new:
            more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
            found.append(f"{what} classes: {', '.join(names[:_SHOWN_NAMES])}{more}")
    old_total, new_total = sum(old.values()), sum(new.values())
    if min(old_total, new_total) >= _LEAST_SAMPLES:
        changes = (abs(old.get(name, 0) / old_total - new.get(name, 0) / new_total) for name in {**old, **new})
        if (distance := sum(changes) / 2) > CLASS_DISTANCE:
            found.append(
                f"shares of classes moved: total variation distance {distance:.3f}, more than {CLASS_DISTANCE:g}"
            )
    if (change := _rejected_share(now) - _rejected_share(before)) > REJECTED_CHANGE:
        found.append(f"{_rejected_share(now):.1%} of the files were rejected, {change:.1%} more than before")
    return found


def _count_classes(manifest: ShardManifest) -> dict[str, int]:
    counts = zip(manifest.classes, manifest.splits["train"].samples_by_class, strict=False)
    return {name: samples for name, samples in counts if samples}


def _rejected_share(manifest: ShardManifest) -> float:
    files = sum(split.samples for split in manifest.splits.values()) + manifest.count_rejected
    return manifest.count_rejected / files if files else 0.0
