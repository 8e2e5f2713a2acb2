"""Resolve model.weights in the launcher, including `previous`; imports no torch."""

from __future__ import annotations

from contracts import storage
from contracts.config import RunConfig
from contracts.previous import PREVIOUS, list_same, read_previous
from contracts.stage import Stage, find_output_damage
from trainer.weights.source import TRANSFORMERS_CONFIG, fill_arguments, find_source


def with_arguments_of_weights(stage: Stage) -> RunConfig:
    """Return a stage's configuration with model.arguments filled from config.json of model.weights."""
    filled = fill_arguments(stage.config)
    if filled is not stage.config and not stage.locate:
        config_uri = storage.join(storage.normalise(filled.model.weights), TRANSFORMERS_CONFIG)
        stage.log(f"model.arguments: those of {storage.display(config_uri)}")
    return filled


def find_initial_weights(stage: Stage, made_from: dict[str, str]) -> tuple[RunConfig, dict[str, str]]:
    """Return the configuration with the weights' URI, and `made_from` with their content hash.

    With `previous`, a finished training of equal other inputs is reused: otherwise each run would train again on the
    result of the last.

    Raises:
        ModelError: The weights cannot be used.
    """
    config, weights = stage.config, stage.config.model.weights
    if weights == PREVIOUS:
        line = _trainings(stage).rpartition("/")[0]
        for uri, manifest in [] if stage.fresh else list_same(line, made_from):
            if find_output_damage(uri, manifest) is None:
                stage.log(f"model.weights={PREVIOUS}: reusing the finished training of the same inputs")
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
