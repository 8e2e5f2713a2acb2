"""Finished shards of other versions: they are used as they are, and the log names the versions."""

from __future__ import annotations

from collections.abc import Mapping


def describe_versions(made_with: Mapping[str, str], current: Mapping[str, str]) -> str | None:
    """Return in words which versions made shards and are others here, or None where none is.

    Args:
        made_with: `ShardManifest.made_with`; empty in manifests of format version 1, which recorded none.
        current: The same of this process.
    """
    if not made_with:
        return None
    differ = [
        f"{name} {made_with.get(name, 'none')} (here {current.get(name, 'none')})"
        for name in sorted(made_with.keys() | current.keys())
        if made_with.get(name) != current.get(name)
    ]
    return f"the shards were made by other versions and are used as they are: {', '.join(differ)}" if differ else None
