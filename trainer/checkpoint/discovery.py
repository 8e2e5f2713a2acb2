"""Checkpoints of a training folder: records of attempts, the newest valid one, the best one, and which are kept.

    checkpoints/attempt-000002.json              create-only: the step from which attempt 2 resumed
    checkpoints/step-00000120.000002/            a checkpoint of attempt 2
        manifest.json, model.safetensors, ...

A create-only manifest does not stop a process that was thought dead: cut off at step 130, it commits freely while its
successor works from step 120. So every attempt takes the next number, with a record of the step from which it resumes,
before it saves anything. Checkpoints newer than the step from which a later attempt resumed are ignored.
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
    """Start of an attempt."""

    attempt: str
    """Id of the attempt, as its events carry it."""
    step: int
    """Step of the checkpoint that it resumed from; 0 from the beginning."""
    process: str
    """Random: no two records are equal, so of two processes that take a number one loses."""


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder with the name of a checkpoint."""

    uri: str
    step: int
    attempt: int


@dataclass(frozen=True)
class FoundCheckpoint:
    """Result of a search."""

    uri: str
    manifest: CheckpointManifest | None
    """None: there is no valid checkpoint."""
    skipped: list[str]
    """Checkpoints that were passed over, with reasons."""


@dataclass(frozen=True)
class Listing:
    """Contents of a folder of checkpoints at one moment."""

    places: list[CheckpointFolder]
    """Newest step first; of one step the latest attempt first."""
    resumed_at: dict[int, int]
    """Step at which each attempt resumed, by its number; -1 where its record cannot be read."""
    damaged_records: list[str]

    @property
    def newest_attempt(self) -> int:
        """Number of the latest attempt; 0 when there was none."""
        return max(self.resumed_at, default=0)

    def left_behind_by(self, place: CheckpointFolder) -> int | None:
        """Return the number of an attempt that resumed from before a checkpoint; None if the checkpoint counts."""
        for number, step in sorted(self.resumed_at.items()):
            if number > place.attempt and 0 <= step < place.step:
                return number
        return None


def checkpoint_name(step: int, attempt: int) -> str:
    """Return the folder name of a checkpoint."""
    return f"step-{step:08d}.{attempt:06d}"


def list_checkpoints(folder_uri: str, known: dict[str, int] | None = None) -> Listing:
    """List a folder of checkpoints; `known` are steps of records that were read before, by name, and is added to."""
    known = {} if known is None else known
    names = storage.list_names(folder_uri)
    records = {name: int(match[1]) for name in names if (match := _RECORD.fullmatch(name))}
    for name, record in _read_records(folder_uri, [name for name in records if name not in known]).items():
        known[name] = -1 if record is None else record.step
    matches = [match for name in names if (match := _CHECKPOINT.fullmatch(name))]
    places = [CheckpointFolder(storage.join(folder_uri, match[0]), int(match[1]), int(match[2])) for match in matches]
    places.sort(key=lambda place: (place.step, place.attempt), reverse=True)
    resumed_at = {number: known[name] for name, number in records.items()}
    return Listing(places, resumed_at, [name for name in records if known[name] < 0])


def find_newest(folder_uri: str, listing: Listing, *, on_piece: Callable[[], object] = lambda: None) -> FoundCheckpoint:
    """Return the newest checkpoint that counts and whose files are whole; arguments as of `find_first`."""
    found = find_first(listing, listing.places, on_piece=on_piece)
    unread = [f"{storage.display(storage.join(folder_uri, name))} cannot be read" for name in listing.damaged_records]
    return replace(found, skipped=unread + found.skipped)


def find_first(
    listing: Listing,
    places: Iterable[CheckpointFolder],
    *,
    groups: Sequence[str] = (),
    on_piece: Callable[[], object] = lambda: None,
) -> FoundCheckpoint:
    """Return the first of some checkpoints that counts and whose files are whole.

    The crc32c of the files of `groups` is compared (empty: of all), and `on_piece` is called after each piece that is
    read; of other files only the size is.
    """
    skipped: list[str] = []
    for place in places:
        manifest, why = read_checkpoint(place)
        if manifest is not None:
            number = listing.left_behind_by(place)
            if number is None:
                used = [file for group in groups or manifest.groups for file in manifest.files_of(group)]
                why = find_damage(place.uri, manifest.files, checksums=False)
                why = why or find_damage(place.uri, used, on_piece=on_piece)
            else:
                why = f"attempt {number} resumed from step {listing.resumed_at[number]}, so later steps of attempt "
                why += f"{place.attempt} do not count"
        if why is None:
            return FoundCheckpoint(place.uri, manifest, skipped)
        skipped.append(f"{storage.display(place.uri)}: {why}")
    return FoundCheckpoint("", None, skipped)


def read_checkpoint(place: CheckpointFolder) -> tuple[CheckpointManifest | None, str | None]:
    """Return (manifest, None), or (None, what is wrong with it)."""
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
    """Refuse a checkpoint of another model, other shards or another configuration (DataError)."""
    changed = sorted(name for name in made_from if manifest.made_from.get(name, made_from[name]) != made_from[name])
    if changed:
        raise DataError(
            f"checkpoint {storage.display(uri)} was made from another {', '.join(changed)}",
            allowed="a checkpoint of the same model, shards and training",
            todo="take another folder, or train again with --fresh",
        )


def record_attempt(folder_uri: str, attempt: str, found: FoundCheckpoint) -> int:
    """Take the next number with a record of what this attempt resumes from; return the number."""
    step = found.manifest.step if found.manifest is not None else 0
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
    """Refuse to go on with attempt `number` once a later one has begun (Superseded)."""
    newest = listing.newest_attempt
    if newest <= number:
        return
    record = _read_record(storage.join(folder_uri, f"attempt-{newest:06d}.json"))
    # The id of a run's attempt begins with the id of the run.
    run = "another run" if record is None else f"run {record.attempt.partition('.')[0]}"
    raise Superseded(
        f"attempt {newest} has begun since, at step {listing.resumed_at[newest]}: {run} trains the same, and what this "
        "process writes counts no more",
        allowed="one run at a time in a training folder",
        todo=f"wait for {run}, or cancel it; the same command then finds its weights, or goes on from its checkpoints",
    )


def _read_records(folder_uri: str, names: Sequence[str]) -> dict[str, AttemptRecord | None]:
    """Return records by name; None for one that cannot be read."""
    # A job that was preempted a thousand times has as many; in a bucket each is a request.
    with ThreadPoolExecutor(max_workers=16) as pool:
        return dict(zip(names, pool.map(lambda name: _read_record(storage.join(folder_uri, name)), names), strict=True))


def _read_record(uri: str) -> AttemptRecord | None:
    try:
        return AttemptRecord.model_validate_json(storage.read_bytes(uri))
    except (ValueError, ValidationError, RecursionError, FileNotFoundError):
        return None


Score = tuple[float, float]
"""Of an evaluation; higher is better."""


@dataclass(frozen=True)
class Best:
    """The best committed checkpoint."""

    step: int = 0
    """0: none was evaluated yet."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """On the validation split; empty where there is none."""

    @classmethod
    def of(cls, manifest: CheckpointManifest) -> Best:
        """Return what a checkpoint records."""
        return cls(manifest.best_step, manifest.best_metrics)

    def or_better(self, manifest: CheckpointManifest, metric: str) -> Best:
        """Return the checkpoint that is about to be committed if it is better; of equal ones the earlier is the best.

        Without a validation split the newest at the end of an epoch is the best.
        """
        if manifest.evaluated is None:
            return self
        new = score_of(manifest, metric)
        if new is None:
            return self if manifest.metrics else Best(manifest.step)
        known = score(self.metrics, metric, manifest.headline, manifest.directions)
        return self if known is not None and new <= known else Best(manifest.step, manifest.metrics)


def score_of(manifest: CheckpointManifest, metric: str) -> Score | None:
    """Return the score of a checkpoint; None where its weights were not evaluated."""
    if manifest.evaluated is None:
        return None
    return score(manifest.metrics, metric, manifest.headline, manifest.directions)


def score(
    metrics: Mapping[str, float], metric: str, headline: Headline | None, directions: Mapping[str, Direction]
) -> Score | None:
    """Return the score of an evaluation; None where it has no such metric, or no finite one.

    `metrics` are validation_loss and validation_NAME of each metric, `metric` is checkpoint.best_metric; without a
    headline nothing was evaluated.
    """
    if headline is None:
        return None
    name = metric.removeprefix("validation_") or headline.metric
    # The loss decides between equal ones, the headline between equal losses.
    ranked = (name, LOSS) if name != LOSS else (LOSS, headline.metric)
    known = {**directions, headline.metric: headline.direction, LOSS: "min"}
    signed = [metrics.get(f"validation_{each}", math.nan) * (1 if known.get(each) == "max" else -1) for each in ranked]
    first, second = (value if math.isfinite(value) else -math.inf for value in signed)
    return (first, second) if math.isfinite(first) else None


def find_best(
    listing: Listing, best: Best, metric: str, *, groups: Sequence[str], on_piece: Callable[[], object]
) -> FoundCheckpoint:
    """Return the best checkpoint that counts and is whole, or the next best; the newest where none was evaluated.

    `groups` and `on_piece` as of `find_first`.
    """
    scores: dict[CheckpointFolder, Score] = {}
    for place in listing.places:
        manifest, _ = read_checkpoint(place)
        if manifest is not None and (found := score_of(manifest, metric)) is not None:
            scores[place] = found
    # Stable sorts: of equal scores the earlier step, of equal steps the later attempt; then the newest.
    places = sorted(listing.places, key=lambda place: place.step if place in scores else 0)
    places.sort(key=lambda place: (place.step == best.step, place in scores, scores.get(place, ())), reverse=True)
    return find_first(listing, places, groups=groups, on_piece=on_piece)


def choose_kept(
    scores: Mapping[CheckpointFolder, Score | None], keep_last: int, *, best_step: int
) -> set[CheckpointFolder]:
    """Return the checkpoints that stay: the newest `keep_last`, the one of the best step, and the best that is there.

    Of several of one step only the latest attempt's stays.
    """
    by_step: dict[int, CheckpointFolder] = {}
    for place in sorted(scores, key=lambda place: (place.step, place.attempt), reverse=True):
        by_step.setdefault(place.step, place)
    newest_first = list(by_step.values())
    kept = {place for place in newest_first if place.step == best_step} | set(newest_first[:keep_last])
    # Of equal scores the earlier one: nothing better came since.
    scored = [place for place in reversed(newest_first) if scores[place] is not None]
    return kept | ({max(scored, key=lambda place: scores[place] or ())} if scored else set())


def retain(listing: Listing, newest: CheckpointManifest, rules: CheckpointSection) -> list[str]:
    """Delete the checkpoints that need not stay beside `newest`, which was just committed by the latest attempt.

    Only whole ones up to its step are looked at: after a resume from an older checkpoint, damaged newer ones must not
    push out good ones. Nothing else is touched, except what earlier attempts left without a manifest; that is returned.
    """
    scores: dict[CheckpointFolder, Score | None] = {}
    unfinished = []
    for place in listing.places:
        manifest, _ = read_checkpoint(place)
        if manifest is None:
            has_manifest = storage.exists(storage.join(place.uri, MANIFEST_NAME))
            if place.attempt < newest.attempt and place.attempt in listing.resumed_at and not has_manifest:
                unfinished.append(place.uri)
        # Sizes only: to read all of it after each checkpoint would cost more than it is worth.
        elif (
            place.step <= newest.step
            and listing.left_behind_by(place) is None
            and find_damage(place.uri, manifest.files, checksums=False) is None
        ):
            scores[place] = score_of(manifest, rules.best_metric)
    kept = choose_kept(scores, rules.keep_last, best_step=newest.best_step)
    if not kept:
        return []
    for uri in unfinished + [place.uri for place in scores if place not in kept]:
        # The manifest first, then data.
        storage.delete_tree(uri, manifest_name=MANIFEST_NAME)
    return unfinished
