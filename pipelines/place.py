"""Folders of a line and its stages, and absolute paths in a configuration."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from contracts import storage
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.previous import PREVIOUS
from inspection.find import find_place


def make_absolute(config: RunConfig) -> RunConfig:
    """Return the configuration with absolute paths of source, root, weights and the user's code.

    Relative paths refer to the current folder, and a stage may run in another one. `data.cache_dir` is a folder on the
    training machine and stays unchanged.
    """
    source = config.sharding.source
    code = {name: _absolute(value) for name in ("path", "requirements") if (value := getattr(config.code, name))}
    return config.with_keys(
        sharding={"source": _absolute(source) if source else ""},
        model={"weights": _find_weights(config.model.weights)},
        code=code,
        run={"root": _absolute(config.run.root)},
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


def _find_weights(text: str) -> str:
    """Return the path or URI of initial weights; `text` may be the id of a run below ./runs."""
    if not text or text == PREVIOUS:
        return text
    if "/" not in text and not Path(text).exists():
        with contextlib.suppress(ConfigError):
            return _absolute(storage.display(find_place(text).folder))
    return _absolute(text)


def _absolute(text: str) -> str:
    # Not Path.resolve: symbolic links in the path are kept.
    return text if "://" in text else os.path.abspath(Path(text).expanduser())  # noqa: PTH100
