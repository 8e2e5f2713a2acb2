"""Weights of a training as its launcher finds them, `previous` included; imports no torch."""

from __future__ import annotations

from contracts import storage
from contracts.config import RunConfig
from contracts.previous import PREVIOUS, list_same, read_previous
from contracts.stage import Stage, find_output_damage
from trainer.weights.source import TRANSFORMERS_CONFIG, fill_arguments, find_source


def with_arguments_of_weights(stage: Stage) -> RunConfig:
    """Return a stage's configuration, with the arguments in config.json of model.weights where it gives none."""
    filled = fill_arguments(stage.config)
    if filled is not stage.config and not stage.locate:
        where = storage.join(storage.normalise(filled.model.weights), TRANSFORMERS_CONFIG)
        stage.log(f"model.arguments: those of {storage.display(where)}")
    return filled


def find_initial_weights(stage: Stage, made_from: dict[str, str]) -> tuple[RunConfig, dict[str, str]]:
    """Return the configuration with the URI of the weights, and `made_from` with the hash of their content.

    With `previous` a finished training whose other inputs are equal stands: else its own weights would
    have it train again at each run.

    Raises:
        ModelError: The weights cannot be used.
    """
    config, weights = stage.config, stage.config.model.weights
    if weights == PREVIOUS:
        line = _trainings(stage).rpartition("/")[0]
        for uri, manifest in [] if stage.fresh else list_same(line, made_from):
            if find_output_damage(uri, manifest) is None:
                stage.log(f"model.weights={PREVIOUS}: the training of these inputs is finished, whatever it began with")
                return config, manifest.made_from
        weights = read_previous(line, *filter(None, (stage.run, stage.attempt))) or ""
        newest = storage.display(weights) or "no finished training when the run began: weights are random"
        stage.log(f"model.weights={PREVIOUS}: {newest}")
    if not weights:
        return _with_weights(config, ""), made_from
    uri = storage.normalise(weights)
    return _with_weights(config, uri), {**made_from, "weights": find_source(uri).sha256()}


def _trainings(stage: Stage) -> str:
    if stage.root is None:
        return storage.join(storage.normalise(stage.config.run.root), stage.config.run.name, "train")
    return stage.root.rstrip("/") if stage.name == "train" else storage.join(stage.line, "train")


def _with_weights(config: RunConfig, uri: str) -> RunConfig:
    return config.model_copy(update={"model": config.model.model_copy(update={"weights": uri})})
