"""Which checkpoints stay, and which is the best.

Deleting is careful: manifest first, then data; and nothing that does not count, is damaged or carries another name is
touched, except what an attempt before this one left without a manifest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from contracts import storage
from contracts.artifacts import LOSS, MANIFEST_NAME, CheckpointManifest, Direction, Headline, find_damage
from contracts.config import CheckpointSection
from trainer.checkpoint.discovery import CheckpointFolder, FoundCheckpoint, Listing, find_first, read_checkpoint


@dataclass(frozen=True)
class Candidate:
    """A whole checkpoint that counts."""

    step: int
    attempt: int = 0
    score: tuple[float, ...] | None = None
    """Higher is better; None: its weights were not evaluated."""


def choose_kept(candidates: Iterable[Candidate], rules: CheckpointSection, *, best_step: int) -> set[Candidate]:
    """Return the checkpoints that stay; of several of one step only the latest attempt's.

    Args:
        candidates: What there is.
        rules: keep_last.
        best_step: The best committed step so far, which stays in any case.
    """
    newest_first = sorted(candidates, key=lambda candidate: (candidate.step, candidate.attempt), reverse=True)
    by_step: dict[int, Candidate] = {}
    for candidate in newest_first:
        by_step.setdefault(candidate.step, candidate)
    steps = list(by_step.values())
    kept = set(steps[: rules.keep_last])
    kept |= {candidate for candidate in steps if candidate.step == best_step}
    # Of equal scores the earlier one: nothing better came since.
    scored = [candidate for candidate in reversed(steps) if candidate.score is not None]
    kept |= {max(scored, key=lambda candidate: candidate.score or ())} if scored else set()
    return kept


@dataclass(frozen=True)
class Best:
    """The best committed checkpoint; what could not be committed never is."""

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
        found = score_of(manifest, metric)
        if found is None:
            return self if manifest.metrics else Best(manifest.step)
        own = score(self.metrics, metric, manifest.headline, manifest.directions)
        return self if own is not None and found <= own else Best(manifest.step, manifest.metrics)


def find_best(
    listing: Listing, best: Best, metric: str, *, groups: Sequence[str], on_piece: Callable[[], object]
) -> FoundCheckpoint:
    """Return the best checkpoint that counts and is whole, or the next best; the newest where none was evaluated.

    Args:
        listing: What is there.
        best: The first choice.
        metric: Decides between the others, as `score_of`.
        groups: Groups of tensors that will be read; of other files only the size is compared.
        on_piece: Called after each piece of a file that is read for its crc32c.
    """
    scores: dict[CheckpointFolder, tuple[float, ...]] = {}
    for place in listing.places:
        manifest, _ = read_checkpoint(place)
        if manifest is not None and (found := score_of(manifest, metric)) is not None:
            scores[place] = found
    # Stable sorts: of equal scores the earlier step, of equal steps the later attempt; then the newest.
    places = sorted(listing.places, key=lambda place: place.step if place in scores else 0)
    places.sort(key=lambda place: (place.step == best.step, place in scores, scores.get(place, ())), reverse=True)
    return find_first(listing, places, groups=groups, on_piece=on_piece)


def score_of(manifest: CheckpointManifest, metric: str) -> tuple[float, ...] | None:
    """Return what a checkpoint is ranked by, higher is better; None when its weights were not evaluated."""
    if manifest.evaluated is None:
        return None
    return score(manifest.metrics, metric, manifest.headline, manifest.directions)


def score(
    metrics: Mapping[str, float], metric: str, headline: Headline | None, directions: Mapping[str, Direction]
) -> tuple[float, float] | None:
    """Return what an evaluation is ranked by, higher is better; None where it has no such metric, or no finite one.

    Args:
        metrics: validation_NAME of each metric, and validation_loss.
        metric: checkpoint.best_metric.
        headline: Of the task; None: nothing was evaluated.
        directions: Of the metrics, by name.
    """
    if headline is None:
        return None
    name = metric.removeprefix("validation_") or headline.metric
    # The loss decides between equal ones, the headline between equal losses.
    ranked = (name, LOSS) if name != LOSS else (LOSS, headline.metric)
    known = {**directions, headline.metric: headline.direction, LOSS: "min"}
    found = [metrics.get(f"validation_{one}", math.nan) * (1 if known.get(one) == "max" else -1) for one in ranked]
    first, second = (value if math.isfinite(value) else -math.inf for value in found)
    return (first, second) if math.isfinite(first) else None


def retain(listing: Listing, newest: CheckpointManifest, rules: CheckpointSection) -> list[str]:
    """Delete what the rules let go of; return what earlier attempts had left unfinished and went too.

    Only what is whole counts, and only up to the step just saved: after a resume from an older checkpoint, damaged
    newer ones must not push out the good ones that are written now.

    Args:
        listing: What is there, `newest` included.
        newest: The checkpoint just committed by the latest attempt.
        rules: What stays.
    """
    candidates: dict[Candidate, CheckpointFolder] = {}
    unfinished = []
    for place in listing.places:
        manifest, _ = read_checkpoint(place)
        if manifest is None:
            if place.attempt < newest.attempt and place.attempt in listing.resumed_at and _has_no_manifest(place):
                unfinished.append(place.uri)
            continue
        if place.step > newest.step or listing.left_behind_by(place) is not None:
            continue
        # Sizes only: reading all of it after each checkpoint would cost more than it is worth.
        if find_damage(place.uri, manifest.files, checksums=False) is None:
            candidates[Candidate(place.step, place.attempt, score_of(manifest, rules.best_metric))] = place
    kept = choose_kept(candidates, rules, best_step=newest.best_step)
    gone = [place.uri for candidate, place in candidates.items() if candidate not in kept]
    if not kept:
        return []
    for uri in unfinished + gone:
        storage.delete_tree(uri, manifest_name=MANIFEST_NAME)
    return unfinished


def _has_no_manifest(place: CheckpointFolder) -> bool:
    return not storage.exists(storage.join(place.uri, MANIFEST_NAME))
