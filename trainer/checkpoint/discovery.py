"""Checkpoints of a training folder: attempt records, newest and best valid checkpoint, retention.

    checkpoints/attempt-000002.json              create-only: the step from which attempt 2 resumed
    checkpoints/step-00000120.000002/            a checkpoint of attempt 2
        manifest.json, model.safetensors, ...

Create-only manifests do not fence zombie processes: one that was cut off at step 130 may still commit while its
successor resumes from step 120. So every attempt first takes the next number and records the step from which it
resumes. Checkpoints newer than the step from which a later attempt resumed are ignored.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from contracts import storage
from contracts.artifacts import LOSS, MANIFEST_NAME, CheckpointManifest, Direction, Headline, find_damage
from contracts.artifacts.document import Document
from contracts.config import CheckpointSection
from contracts.errors import DataError, UserError

_CHECKPOINT = re.compile(r"step-(\d{8,15})\.(\d{6})")
_RECORD = re.compile(r"attempt-(\d{6})\.json")


class Superseded(UserError):
    """A later attempt works on the same folder."""


class AttemptRecord(Document):
    """Record of an attempt's start."""

    attempt: str
    """Attempt id, as in its events."""
    step: int
    """Step of the checkpoint it resumed from; 0: none."""
    process: str
    """Random id, so that records differ and only one process can take a number."""


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder with a checkpoint name."""

    uri: str
    step: int
    attempt: int


@dataclass(frozen=True)
class FoundCheckpoint:
    """Result of a search for a checkpoint."""

    uri: str
    manifest: CheckpointManifest | None
    """None: there is no valid checkpoint."""
    skipped: list[str]
    """Skipped checkpoints, with reasons."""


@dataclass(frozen=True)
class Listing:
    """Listing of a checkpoint folder."""

    places: list[CheckpointFolder]
    """Sorted by step and attempt, descending."""
    resumed_at: dict[int, int]
    """Step at which each attempt resumed, by number; -1 if its record is unreadable."""
    damaged_records: list[str]

    @property
    def newest_attempt(self) -> int:
        """Number of the latest attempt; 0 if none."""
        return max(self.resumed_at, default=0)

    def left_behind_by(self, place: CheckpointFolder) -> int | None:
        """Return the number of a later attempt that resumed from an earlier step; None if the checkpoint counts."""
        for number, step in sorted(self.resumed_at.items()):
            if number > place.attempt and 0 <= step < place.step:
                return number
        return None


def checkpoint_name(step: int, attempt: int) -> str:
    """Return the folder name of a checkpoint."""
    return f"step-{step:08d}.{attempt:06d}"


def list_checkpoints(folder_uri: str, recorded_steps: dict[str, int] | None = None) -> Listing:
    """List a checkpoint folder; `recorded_steps` caches the steps of attempt records by name."""
    recorded_steps = {} if recorded_steps is None else recorded_steps
    names = storage.list_names(folder_uri)
    records = {name: int(match[1]) for name in names if (match := _RECORD.fullmatch(name))}
    for name, record in _read_records(folder_uri, [name for name in records if name not in recorded_steps]).items():
        recorded_steps[name] = -1 if record is None else record.step
    matches = [match for name in names if (match := _CHECKPOINT.fullmatch(name))]
    places = [CheckpointFolder(storage.join(folder_uri, match[0]), int(match[1]), int(match[2])) for match in matches]
    places.sort(key=lambda place: (place.step, place.attempt), reverse=True)
    resumed_at = {number: recorded_steps[name] for name, number in records.items()}
    return Listing(places, resumed_at, [name for name in records if recorded_steps[name] < 0])


def find_newest(folder_uri: str, listing: Listing, *, on_piece: Callable[[], object] = lambda: None) -> FoundCheckpoint:
    """Return the newest valid checkpoint; arguments as in `find_first`."""
    result = find_first(listing, listing.places, on_piece=on_piece)
    unread = [f"{storage.display(storage.join(folder_uri, name))} cannot be read" for name in listing.damaged_records]
    return replace(result, skipped=unread + result.skipped)


def find_first(
    listing: Listing,
    places: Iterable[CheckpointFolder],
    *,
    groups: Sequence[str] = (),
    on_piece: Callable[[], object] = lambda: None,
) -> FoundCheckpoint:
    """Return the first valid checkpoint of `places`.

    Verifies the crc32c of the files of `groups` (empty: all) and the sizes of other files. `on_piece` is called after
    each piece read.
    """
    skipped: list[str] = []
    for place in places:
        manifest, problem = read_checkpoint(place)
        if manifest is not None:
            number = listing.left_behind_by(place)
            if number is None:
                files = [file for group in groups or manifest.groups for file in manifest.files_of(group)]
                problem = find_damage(place.uri, manifest.files, checksums=False)
                problem = problem or find_damage(place.uri, files, on_piece=on_piece)
            else:
                problem = f"attempt {number} resumed from step {listing.resumed_at[number]}, so later steps of attempt "
                problem += f"{place.attempt} do not count"
        if problem is None:
            return FoundCheckpoint(place.uri, manifest, skipped)
        skipped.append(f"{storage.display(place.uri)}: {problem}")
    return FoundCheckpoint("", None, skipped)


def read_checkpoint(place: CheckpointFolder) -> tuple[CheckpointManifest | None, str | None]:
    """Return (manifest, None), or (None, problem)."""
    if not storage.exists(storage.join(place.uri, MANIFEST_NAME)):
        return None, f"it has no {MANIFEST_NAME}: it was not finished"
    try:
        manifest = CheckpointManifest.load(place.uri)
    except DataError as error:
        return None, error.given
    except RecursionError:
        return None, f"its {MANIFEST_NAME} is nested too deeply"
    if (manifest.step, manifest.attempt) != (place.step, place.attempt):
        return None, f"its {MANIFEST_NAME} is of step {manifest.step}, attempt {manifest.attempt}"
    if not manifest.files:
        return None, f"its {MANIFEST_NAME} names no files"
    return manifest, None


def require_same_inputs(uri: str, manifest: CheckpointManifest, made_from: dict[str, str]) -> None:
    """Raise DataError for a checkpoint of another model, other shards or another configuration."""
    changed = sorted(name for name in made_from if manifest.made_from.get(name, made_from[name]) != made_from[name])
    if changed:
        raise DataError(
            f"checkpoint {storage.display(uri)} was made from another {', '.join(changed)}",
            allowed="a checkpoint of the same model, shards and training",
            todo="take another folder, or train again with --fresh",
        )


def record_attempt(folder_uri: str, attempt: str, resumed: FoundCheckpoint) -> int:
    """Record the step this attempt resumes from under the next free number; return the number."""
    step = resumed.manifest.step if resumed.manifest is not None else 0
    record = AttemptRecord(attempt=attempt, step=step, process=uuid.uuid4().hex).model_dump_json().encode()
    numbers = [int(match[1]) for name in storage.list_names(folder_uri) if (match := _RECORD.fullmatch(name))]
    number = max(numbers, default=0) + 1
    while True:
        try:
            storage.publish(storage.join(folder_uri, f"attempt-{number:06d}.json"), record)
            return number
        except storage.AlreadyPublished:
            number += 1


def require_newest(folder_uri: str, listing: Listing, number: int) -> None:
    """Raise Superseded if a later attempt than `number` has started."""
    newest = listing.newest_attempt
    if newest <= number:
        return
    record = _read_record(storage.join(folder_uri, f"attempt-{newest:06d}.json"))
    # An attempt id starts with its run id.
    run = "another run" if record is None else f"run {record.attempt.partition('.')[0]}"
    raise Superseded(
        f"attempt {newest} has begun since, at step {listing.resumed_at[newest]}: {run} trains the same, and what this "
        "process writes counts no more",
        allowed="one run at a time in a training folder",
        todo=f"wait for {run}, or cancel it; the same command then finds its weights, or goes on from its checkpoints",
    )


def _read_records(folder_uri: str, names: Sequence[str]) -> dict[str, AttemptRecord | None]:
    """Return records by name; None for unreadable ones."""
    # In parallel: there may be thousands, and each is a request.
    with ThreadPoolExecutor(max_workers=16) as pool:
        return dict(zip(names, pool.map(lambda name: _read_record(storage.join(folder_uri, name)), names), strict=True))


def _read_record(uri: str) -> AttemptRecord | None:
    try:
        return AttemptRecord.model_validate_json(storage.read_bytes(uri))
    except (ValueError, ValidationError, RecursionError, FileNotFoundError):
        return None


Score = tuple[float, float]
"""Score of an evaluation and its tie-break; higher is better."""


@dataclass(frozen=True)
class Best:
    """The best committed checkpoint."""

    step: int = 0
    """0: none evaluated yet."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics on the validation split; empty without one."""

    @classmethod
    def of(cls, manifest: CheckpointManifest) -> Best:
        """Return the best checkpoint recorded in a manifest."""
        return cls(manifest.best_step, manifest.best_metrics)

    def or_better(self, manifest: CheckpointManifest, metric: str) -> Best:
        """Return the new checkpoint if it is strictly better, else self.

        Without a validation split, the last checkpoint at the end of an epoch is the best.
        """
        if manifest.evaluated is None:
            return self
        candidate = score_of(manifest, metric)
        if candidate is None:
            return self if manifest.metrics else Best(manifest.step)
        best = score(self.metrics, metric, manifest.headline, manifest.directions)
        return self if best is not None and candidate <= best else Best(manifest.step, manifest.metrics)


def score_of(manifest: CheckpointManifest, metric: str) -> Score | None:
    """Return the score of a checkpoint; None if its weights were not evaluated."""
    if manifest.evaluated is None:
        return None
    return score(manifest.metrics, metric, manifest.headline, manifest.directions)


def score(
    metrics: Mapping[str, float], metric: str, headline: Headline | None, directions: Mapping[str, Direction]
) -> Score | None:
    """Return the score of an evaluation; None if the metric is missing or not finite.

    `metrics` are validation_loss and validation_NAME. `metric` is checkpoint.best_metric. `headline` is None before the
    first evaluation.
    """
    if headline is None:
        return None
    name = metric.removeprefix("validation_") or headline.metric
    # Ties are decided by the loss, ties of the loss by the headline.
    ranked = (name, LOSS) if name != LOSS else (LOSS, headline.metric)
    directions = {**directions, headline.metric: headline.direction, LOSS: "min"}
    signed = [
        metrics.get(f"validation_{key}", math.nan) * (1 if directions.get(key) == "max" else -1) for key in ranked
    ]
    first, second = (value if math.isfinite(value) else -math.inf for value in signed)
    return (first, second) if math.isfinite(first) else None


def find_best(
    listing: Listing, best: Best, metric: str, *, groups: Sequence[str], on_piece: Callable[[], object]
) -> FoundCheckpoint:
    """Return the best valid checkpoint; the newest if none was evaluated.

    `groups` and `on_piece` as in `find_first`.
    """
    scores: dict[CheckpointFolder, Score] = {}
    for place in listing.places:
        manifest, _ = read_checkpoint(place)
        if manifest is not None and (value := score_of(manifest, metric)) is not None:
            scores[place] = value
    # Stable sorts: equal scores by earlier step, equal steps by later attempt; unscored ones newest first.
    places = sorted(listing.places, key=lambda place: place.step if place in scores else 0)
    places.sort(key=lambda place: (place.step == best.step, place in scores, scores.get(place, ())), reverse=True)
    return find_first(listing, places, groups=groups, on_piece=on_piece)


def choose_retained(
    scores: Mapping[CheckpointFolder, Score | None], keep_last: int, *, best_step: int
) -> set[CheckpointFolder]:
    """Return the checkpoints to keep: the newest `keep_last`, the one of `best_step`, and the best scored one.

    Only the latest attempt's checkpoint of a step is kept.
    """
    by_step: dict[int, CheckpointFolder] = {}
    for place in sorted(scores, key=lambda place: (place.step, place.attempt), reverse=True):
        by_step.setdefault(place.step, place)
    newest_first = list(by_step.values())
    retained = {place for place in newest_first if place.step == best_step} | set(newest_first[:keep_last])
    # max() returns the earliest of equal scores.
    scored = [place for place in reversed(newest_first) if scores[place] is not None]
    return retained | ({max(scored, key=lambda place: scores[place] or ())} if scored else set())


def retain(listing: Listing, newest: CheckpointManifest, rules: CheckpointSection) -> list[str]:
    """Delete old checkpoints after `newest` was committed; return the deleted unfinished ones.

    Only valid checkpoints up to its step count: after a resume from an older one, damaged newer ones must not displace
    good ones. Unfinished checkpoints of earlier attempts are deleted too.
    """
    scores: dict[CheckpointFolder, Score | None] = {}
    unfinished = []
    for place in listing.places:
        manifest, _ = read_checkpoint(place)
        if manifest is None:
            has_manifest = storage.exists(storage.join(place.uri, MANIFEST_NAME))
            if place.attempt < newest.attempt and place.attempt in listing.resumed_at and not has_manifest:
                unfinished.append(place.uri)
        # Sizes only: reading all files after each checkpoint is too slow.
        elif (
            place.step <= newest.step
            and listing.left_behind_by(place) is None
            and find_damage(place.uri, manifest.files, checksums=False) is None
        ):
            scores[place] = score_of(manifest, rules.best_metric)
    retained = choose_retained(scores, rules.keep_last, best_step=newest.best_step)
    if not retained:
        return []
    for uri in unfinished + [place.uri for place in scores if place not in retained]:
        # The manifest first, then data.
        storage.delete_tree(uri, manifest_name=MANIFEST_NAME)
    return unfinished
