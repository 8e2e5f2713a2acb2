"""Where a line lives, and what its configuration means by a relative path."""

from __future__ import annotations

import os
from pathlib import Path

from contracts import storage
from contracts.config import RunConfig


def make_absolute(config: RunConfig) -> RunConfig:
    """Return the configuration with the paths of the source, the root and the cache absolute.

    All are relative to the current folder, and a stage may run in another one.
    """
    source, root, cache_dir = config.sharding.source, config.run.root, config.data.cache_dir
    return config.model_copy(
        update={
            "sharding": config.sharding.model_copy(update={"source": _absolute(source) if source else ""}),
            "data": config.data.model_copy(update={"cache_dir": _absolute(cache_dir) if cache_dir else ""}),
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


def _absolute(text: str) -> str:
    # Not Path.resolve: a link in the path is the user's choice of place.
    return text if "://" in text else os.path.abspath(Path(text).expanduser())  # noqa: PTH100
