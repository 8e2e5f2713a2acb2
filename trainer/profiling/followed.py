"""The profile that a finished training followed: it is reused, whatever has changed since that changes no training.

Ranks, hardware and the section `profile` are in the fingerprint of a profile, and not in that of a training. Measured
again, a report would show a rate that the training did not have, after a wait that serves nothing. This only reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from contracts import storage
from contracts.artifacts import CheckpointManifest, ProfileReport, find_damage
from contracts.config import RunConfig
from contracts.errors import DataError, UserError
from contracts.fingerprint import combine, model_fingerprint, train_inputs
from contracts.previous import PREVIOUS, list_same
from contracts.stage import find_output_damage
from trainer.weights.source import find_source


@dataclass(frozen=True)
class Followed:
    """A report that stands for a finished training."""

    uri: str
    report: ProfileReport
    reason: str


def find_followed(root: str, config: RunConfig, *, shards: str) -> Followed | None:
    """Return the report that a finished training of this configuration followed; None: there is none of both.

    Where that report is gone, or the training is of a release that named none, it is another one of this network and
    these shards: of several the one of most measured points, then the last by name, as for estimates.

    Args:
        root: URI of the profiles' folder in a line.
        config: The configuration.
        shards: Fingerprint of the shards.
    """
    line = root.rstrip("/").rpartition("/")[0]
    for training, trained in _finished_trainings(line, config, shards):
        where = storage.display(training)
        if trained.profile and (report := _sound_report(uri := storage.join(root, trained.profile))) is not None:
            return Followed(uri, report, f"the training in {where} is finished and followed it")
        if (found := _any_fitting(root, config, shards)) is not None:
            return Followed(
                *found, f"the training in {where} is finished, and the report that it followed is not known"
            )
    return None


def _finished_trainings(line: str, config: RunConfig, shards: str) -> Iterator[tuple[str, CheckpointManifest]]:
    """Yield finished trainings of this configuration, with their folders."""
    weights = config.model.weights
    if weights == PREVIOUS:
        # Whatever it started from: it stands for the training too.
        found = list_same(line, train_inputs(config, shards=shards))
    else:
        try:
            sha256 = find_source(storage.normalise(weights)).sha256() if weights else ""
        except UserError:
            # The training says what is wrong with them.
            return
        uri = storage.join(line, "train", combine(train_inputs(config, shards=shards, weights=sha256)))
        found = []
        # None that is there, or can be read, is none that is finished.
        with suppress(DataError):
            found = [(uri, CheckpointManifest.load(uri))]
    for uri, trained in found:
        # Sizes only: the training reads all of it before it is reused.
        if trained.finished and find_damage(uri, trained.owned_files(), checksums=False) is None:
            yield uri, trained


def _any_fitting(root: str, config: RunConfig, shards: str) -> tuple[str, ProfileReport] | None:
    wanted, found = (model_fingerprint(config), shards), []
    for name in storage.list_names(root):
        report = _sound_report(uri := storage.join(root, name))
        if report is not None and (report.model_fingerprint, report.shards_fingerprint) == wanted:
            found.append((sum(point.samples_per_s is not None for point in report.points), name, uri, report))
    return max(found, key=lambda each: each[:2])[2:] if found else None


def _sound_report(uri: str) -> ProfileReport | None:
    """Return the report of a folder; None: there is none, or it cannot be read, or its files."""
    try:
        report = ProfileReport.load(uri)
    except DataError:
        return None
    return report if find_output_damage(uri, report) is None else None
