"""Weights of a training as its launcher finds them, `previous` included; imports no torch."""

from __future__ import annotations

from contracts import storage
from contracts.config import RunConfig
from contracts.previous import PREVIOUS, list_same, read_previous
from contracts.stage import Stage, find_output_damage
from trainer.weights.source import find_source


def find_initial_weights(stage: Stage, made_from: dict[str, str]) -> tuple[RunConfig, dict[str, str]]:
    """Return the configuration with the URI of the weights, and what the training is made from, their hash included.

    With `previous` a finished training whose other inputs are equal stands: else its own weights would have it train
    again at each run.

    Args:
        stage: The train stage.
        made_from: The hashes of the other inputs.

    Raises:
        ModelError: The weights cannot be used.
    """
    config, wanted = stage.config, stage.config.model.weights
    if wanted == PREVIOUS:
        line = storage.join(storage.normalise(config.run.root), config.run.name)
        if stage.root is not None:
            line = stage.root.rstrip("/").rpartition("/")[0]
        for uri, manifest in [] if stage.fresh else list_same(line, made_from):
            if find_output_damage(uri, manifest) is None:
                stage.log("model.weights=previous: the training of these inputs is finished, whatever it started from")
                return config, manifest.made_from
        wanted = read_previous(line, *filter(None, (stage.run, stage.attempt))) or ""
        if not wanted:
            stage.log("model.weights=previous: the line has no finished training yet: weights are random")
            return _with_weights(config, ""), made_from
    if not wanted:
        return config, made_from
    uri = storage.normalise(wanted)
    return _with_weights(config, uri), {**made_from, "weights": find_source(uri).sha256()}


def _with_weights(config: RunConfig, uri: str) -> RunConfig:
    return config.model_copy(update={"model": config.model.model_copy(update={"weights": uri})})
