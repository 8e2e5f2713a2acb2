"""Where a line lives, and what its configuration means by a relative path."""

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
    """Return the configuration with the paths of source, root, weights and own code absolute.

    All are relative to the current folder, and a stage may run in another one. `data.cache_dir` is a folder of the
    machine that trains: it stays as it is.
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
    """Return the URI of a run's line, and the run's id; None where the line itself was named.

    Args:
        run: As `inspection.find.find_place` takes it; a line's folder stands for all of its runs.
        stage: The line must have come to this stage, where it is named itself.

    Raises:
        ConfigError: There is no such run.
    """
    uri = storage.normalise(run)
    if not storage.exists(storage.join(uri, RUN_START_NAME)) and storage.exists(storage.join(uri, stage)):
        return uri, None
    place = find_place(run)
    return place.line, place.run_id


def _find_weights(text: str) -> str:
    """Return the path or URI of weights to start from, which may be the id of a run below ./runs."""
    if not text or text == PREVIOUS:
        return text
    if "/" not in text and not Path(text).exists():
        with contextlib.suppress(ConfigError):
            line, run_id = find_run(text, stage="train")
            return _absolute(storage.display(run_uri(line, run_id))) if run_id else text
    return _absolute(text)


def _absolute(text: str) -> str:
    # Not Path.resolve: a link in the path is the user's choice of place.
    return text if "://" in text else os.path.abspath(Path(text).expanduser())  # noqa: PTH100
