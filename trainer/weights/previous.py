"""Weights of a training as its launcher finds them, `previous` included; imports no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from contracts import storage
from contracts.config import RunConfig
from contracts.errors import ModelError, UserError
from contracts.previous import PREVIOUS, list_same, read_previous
from contracts.stage import Stage, find_output_damage
from trainer.weights.source import (
    TRANSFORMERS_CONFIG,
    WeightSource,
    find_source,
    wants_saved_arguments,
    with_saved_arguments,
)

# Below the trainings of a line: the hash of what model.weights held when it was last read, by its URI.
WEIGHTS_FOLDER = "weights"
# Of a mean or standard deviation in [0, 1].
_NEAR = 0.02


def with_arguments_of_weights(stage: Stage) -> RunConfig:
    """Return a stage's configuration, with the arguments in config.json of model.weights where it gives none.

    Of weights that are gone it is what the line remembers; what else is wrong with them is told by training.

    Args:
        stage: The stage profile or train.
    """
    config = stage.config
    if not wants_saved_arguments(config):
        return config
    uri = storage.normalise(config.model.weights)
    try:
        saved = find_source(uri).config
    except UserError:
        saved = _read_record(_record_uri(stage, uri)).get("config")
    filled = with_saved_arguments(config, saved)
    if filled is not config and not stage.locate:
        stage.log(f"model.arguments: those of {storage.display(storage.join(uri, TRANSFORMERS_CONFIG))}")
    return filled


def find_initial_weights(
    stage: Stage, made_from: dict[str, str], pixels: Mapping[str, object] = MappingProxyType({})
) -> tuple[RunConfig, dict[str, str]]:
    """Return the configuration with the URI of the weights, and what the training is made from, their hash included.

    With `previous` a finished training whose other inputs are equal stands: else its own weights would
    have it train again at each run.

    Args:
        stage: The train stage.
        made_from: The hashes of the other inputs.
        pixels: What images are made into: image_size, mean, std.

    Raises:
        ModelError: The weights cannot be used.
    """
    config, wanted = stage.config, stage.config.model.weights
    if wanted == PREVIOUS:
        line = _trainings(stage).rpartition("/")[0]
        for uri, manifest in [] if stage.fresh else list_same(line, made_from):
            if find_output_damage(uri, manifest) is None:
                stage.log(f"model.weights={wanted}: the training of these inputs is finished, whatever it started from")
                return config, manifest.made_from
        start = read_previous(line, *filter(None, (stage.run, stage.attempt)))
        if not start:
            stage.log(f"model.weights={wanted}: no finished training when the run began: weights are random")
            return _with_weights(config, ""), made_from
        stage.log(f"model.weights={wanted}: {storage.display(start)}")
        wanted = start
    if not wanted:
        return config, made_from
    uri = storage.normalise(wanted)
    record = _record_uri(stage, uri)
    try:
        source = find_source(uri)
    except ModelError:
        if storage.list_names(uri) or storage.exists(uri) or not storage.exists(record):
            raise
        # Trainings that have begun, and those that are finished, need no more than their name.
        sha256 = str(_read_record(record)["sha256"])
        stage.log(f"warning: model.weights {storage.display(uri)} is gone: taken for what it was when it was last read")
        return _with_weights(config, uri), {**made_from, "weights": sha256}
    for text in describe_other_pixels(source, pixels):
        stage.log(f"warning: {text}")
    sha256 = source.sha256()
    if not stage.locate:
        known = {"uri": uri, "sha256": sha256, **({"config": source.config} if source.config else {})}
        storage.replace(record, (json.dumps(known) + "\n").encode())
    return _with_weights(config, uri), {**made_from, "weights": sha256}


def describe_other_pixels(source: WeightSource, pixels: Mapping[str, object]) -> Iterator[str]:
    """Say which images the weights were trained on, where this training makes others of its own."""
    for name, ours in pixels.items():
        theirs = source.pixels.get(name)
        if not isinstance(theirs, list | int) or ours is None or _is_near(theirs, ours):
            continue
        shown = [round(value, 4) for value in ours] if isinstance(ours, list) else ours
        yield (
            f"{storage.display(source.uri)} was trained with data.{name}={theirs}, this training has {shown}: its "
            f"first layers know other images (set data.{name} for the same)"
        )


def _is_near(one: object, other: object) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        # What shards measure of one kind of image differs by less.
        return len(one) == len(other) and all(abs(a - b) < _NEAR for a, b in zip(one, other, strict=True))
    return one == other


def _record_uri(stage: Stage, uri: str) -> str:
    return storage.join(_trainings(stage), WEIGHTS_FOLDER, f"{hashlib.sha256(uri.encode()).hexdigest()[:16]}.json")


def _read_record(uri: str) -> dict[str, Any]:
    """Return what is known of weights; empty: nothing."""
    return dict(json.loads(storage.read_bytes(uri))) if storage.exists(uri) else {}


def _trainings(stage: Stage) -> str:
    if stage.root is None:
        return storage.join(storage.normalise(stage.config.run.root), stage.config.run.name, "train")
    return stage.root.rstrip("/") if stage.name == "train" else storage.join(stage.line, "train")


def _with_weights(config: RunConfig, uri: str) -> RunConfig:
    return config.model_copy(update={"model": config.model.model_copy(update={"weights": uri})})
