"""Finished shards of other versions: they are used as they are, and the log names the versions."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

# Those of ShardManifest.made_with that are known without importing anything.
_PACKAGES = ("pillow", "simplejpeg")


def describe_versions(made_with: Mapping[str, str]) -> str | None:
    """Return in words which versions made shards and are others here, or None where none is.

    Args:
        made_with: `ShardManifest.made_with`; empty of adopted shards.
    """
    here = {name: importlib.metadata.version(name) for name in _PACKAGES}
    differ = [
        f"{name} {made_with[name]} (here {here[name]})"
        for name in _PACKAGES
        if name in made_with and made_with[name] != here[name]
    ]
    return f"the shards were made by other versions: {', '.join(differ)}" if differ else None
