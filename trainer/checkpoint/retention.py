"""Retention of checkpoints, and the best one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from contracts import storage
from contracts.artifacts import LOSS, MANIFEST_NAME, CheckpointManifest, Direction, Headline, find_damage
from contracts.config import CheckpointSection
from trainer.checkpoint.discovery import CheckpointFolder, FoundCheckpoint, Listing, find_first, read_checkpoint

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
