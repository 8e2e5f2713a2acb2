"""Keys of release 0.1.0 that have another name now, in mappings and in overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.errors import ConfigError

# Keys of section `dataflow` that were not in `vertex.dataflow`.
NETWORK_KEYS = ("network", "subnetwork", "public_ips")
# Section `vertex` held all of Google Cloud: its former keys, and where each is now.
_OF_VERTEX: dict[str, tuple[str, ...]] = {
    **{key: ("cloud", key) for key in ("project", "region", "service_account", "kms_key", "labels", "images")},
    **{key: ("dataflow", key) for key in NETWORK_KEYS},
    "dataflow": ("dataflow",),
}


def find_new_path(path: Sequence[str]) -> tuple[str, ...]:
    """Return the path of a key as it is named now; the path itself where that is no former one."""
    if len(path) > 1 and path[0] == "vertex" and path[1] in _OF_VERTEX:
        return (*_OF_VERTEX[path[1]], *path[2:])
    return tuple(path)


def rename_keys(
    values: Mapping[str, Any], *, where: str = "the configuration"
) -> tuple[dict[str, Any], dict[str, str]]:
    """Move the values of former keys to the keys of today.

    Args:
        values: Sections, as a file or a document of any release has them; not changed.
        where: Origin of the values, for errors.

    Returns:
        The sections of today, and the dotted new key of each former one that was there.

    Raises:
        ConfigError: A value is given by its former and by its new key.
    """
    renamed, vertex = dict(values), values.get("vertex")
    if not isinstance(vertex, Mapping) or not vertex.keys() & _OF_VERTEX.keys():
        return renamed, {}
    former: dict[str, str] = {}
    renamed["vertex"] = {key: value for key, value in vertex.items() if key not in _OF_VERTEX}
    # The section itself first, then the keys that lie in it now.
    for key in sorted((key for key in vertex if key in _OF_VERTEX), key=lambda key: key != "dataflow"):
        former[f"vertex.{key}"] = ".".join(_OF_VERTEX[key])
        _put(renamed, _OF_VERTEX[key], vertex[key], (f"vertex.{key}", where))
    return renamed, former


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any, given: tuple[str, str]) -> None:
    """Set a value in copies of the mappings above it, where none is yet.

    Args:
        values: Sections; what is below them is not changed.
        path: Where the value belongs.
        value: What the former key held.
        given: The former key, and the origin of the values.
    """
    former, where = given
    *above, last = path
    for key in above:
        inner = values.get(key)
        if inner is not None and not isinstance(inner, Mapping):
            # No mapping is pydantic's to refuse.
            return
        inner = dict(inner or {})
        values[key] = inner
        values = inner
    if values.get(last) is not None:
        _refuse(former, ".".join(path), where)
    values[last] = value


def find_former(overrides: Sequence[str]) -> dict[str, str]:
    """Return the dotted new key of each former one among overrides.

    Raises:
        ConfigError: Two overrides set one value, by its former and by its new key.
    """
    found: dict[str, str] = {}
    paths = [tuple(override.partition("=")[0].split(".")) for override in overrides]
    for path in paths:
        if (new := find_new_path(path)) == path:
            continue
        found[".".join(path)] = ".".join(new)
        for other in paths:
            shorter = min(len(new), len(other))
            if find_new_path(other) == other and other[:shorter] == new[:shorter]:
                _refuse(".".join(path), ".".join(other), "overrides")
    return found


def _refuse(former: str, new: str, where: str) -> None:
    raise ConfigError(
        f"{where}: {former} and {new} are both given", allowed=f"{new}, the key of today", todo=f"remove {former}"
    )
