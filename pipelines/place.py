"""Folders of a line and its stages, and absolute paths in a configuration."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from contracts import storage
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.previous import PREVIOUS
from contracts.result import RUN_START_NAME, run_uri
from inspection.find import find_place


def make_absolute(config: RunConfig) -> RunConfig:
    """Return the configuration with absolute paths of source, root, weights and the user's code.

    Relative paths refer to the current folder, and a stage may run in another one. `data.cache_dir` is a folder on the
    training machine and stays unchanged.
    """
    source, root = config.sharding.source, config.run.root
    weights = _find_weights(config.model.weights)
    code = {name: _absolute(value) for name in ("path", "requirements") if (value := getattr(config.code, name))}
    return config.model_copy(
        update={
            "sharding": config.sharding.model_copy(update={"source": _absolute(source) if source else ""}),
            "model": config.model.model_copy(update={"weights": weights}),
            "code": config.code.model_copy(update=code),
            "run": config.run.model_copy(update={"root": _absolute(root)}),
        }
    )


def line_uri(config: RunConfig) -> str:
    """Return the URI of the line's folder.

    Raises:
        StorageError: run.root is not on this machine.
    """
    uri = storage.join(storage.normalise(config.run.root), config.run.name)
    storage.local_path(uri)
    return uri


def stage_root(config: RunConfig, stage: str) -> str:
    """Return the URI of the folder that holds a stage's outputs."""
    return storage.join(line_uri(config), stage)


def find_run(run: str, *, stage: str) -> tuple[str, str | None]:
    """Return the URI of a run's line, and the run's id; None if `run` is the line's folder.

    Args:
        run: As for `inspection.find.find_place`, or the folder of a line.
        stage: A stage that the line must have run, if `run` is its folder.

    Raises:
        ConfigError: There is no such run.
    """
    uri = storage.normalise(run)
    if not storage.exists(storage.join(uri, RUN_START_NAME)) and storage.exists(storage.join(uri, stage)):
        return uri, None
    place = find_place(run)
    return place.line, place.run_id


def _find_weights(text: str) -> str:
    """Return the path or URI of initial weights; `text` may be the id of a run below ./runs."""
    if not text or text == PREVIOUS:
        return text
    if "/" not in text and not Path(text).exists():
        with contextlib.suppress(ConfigError):
            line, run_id = find_run(text, stage="train")
            return _absolute(storage.display(run_uri(line, run_id))) if run_id else text
    return _absolute(text)


def _absolute(text: str) -> str:
    # Not Path.resolve: symbolic links in the path are kept.
    return text if "://" in text else os.path.abspath(Path(text).expanduser())  # noqa: PTH100
