"""Installed packages that the configuration names code of: distribution, version, hash of the package's files."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import sys
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from contracts import PACKAGES
from contracts.errors import ConfigError


@dataclass(frozen=True)
class InstalledCode:
    """A top-level module or package of an installed distribution."""

    module: str
    distribution: str
    version: str
    folder: Path
    """Its files lie in it or below it."""

    @property
    def is_given(self) -> bool:
        """Whether it is of Python or of this project: what changes there is known by other means."""
        return self.module in sys.stdlib_module_names or self.module in PACKAGES

    def identity(self) -> str:
        """Return distribution, version and the hash of the package's `*.py` files."""
        return f"{self.distribution} {self.version} sha256:{_hash_package(self.module)}"


def find_installed(name: str) -> InstalledCode | None:
    """Return the installed code that a module is of; None: no distribution holds it. Nothing is imported.

    Args:
        name: Name of a module, e.g. torchvision.models.
    """
    module = name.partition(".")[0]
    if module in sys.stdlib_module_names:
        return InstalledCode(module, "python", platform.python_version(), Path(sys.base_prefix))
    if module in PACKAGES:
        return InstalledCode(module, "shardline", "", Path(__file__).resolve().parents[1])
    origin = find_origin(module)
    if origin is None:
        return None
    for found in importlib.metadata.packages_distributions().get(module, []):
        distribution = importlib.metadata.distribution(found)
        folder = Path(str(distribution.locate_file(""))).resolve()
        if origin.is_relative_to(folder):
            return InstalledCode(module, distribution.metadata["Name"], distribution.version, folder)
    # An editable installation may name no module; its sources lie where they were installed from.
    for distribution in importlib.metadata.distributions():
        source = _editable_folder(distribution)
        if source is not None and origin.is_relative_to(source):
            return InstalledCode(module, distribution.metadata["Name"], distribution.version, source)
    return None


def require_own_packages() -> None:
    """Refuse to start where Python finds another module under the name of a package of this project.

    Raises:
        ConfigError: It does (docs/decisions/0019-top-level-names.md).
    """
    root = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        origin = find_origin(name)
        if origin is None or origin.parent.parent != root:
            raise ConfigError(
                f"the package {name} of shardline, in {root}, is "
                + (f"shadowed by {origin}, which Python finds first" if origin else "not there"),
                allowed=f"an environment in which {', '.join(PACKAGES)} are shardline's",
                todo="rename what shadows it, take its folder out of PYTHONPATH, or install shardline into an "
                "environment of its own",
            )


def find_origin(module: str) -> Path | None:
    """Return the file, or the folder of a package without __init__.py, that a top-level module would be imported from.

    None: there is none, or it has no file.
    """
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.has_location and spec.origin:
        return Path(spec.origin).resolve()
    return next((Path(place).resolve() for place in spec.submodule_search_locations or []), None)


def _editable_folder(distribution: importlib.metadata.Distribution) -> Path | None:
    """Return where an editable installation has its sources (PEP 610)."""
    try:
        values = json.loads(distribution.read_text("direct_url.json") or "{}")
    except (OSError, ValueError):
        return None
    if not values.get("dir_info", {}).get("editable"):
        return None
    return Path(urllib.request.url2pathname(urllib.parse.urlparse(values["url"]).path)).resolve()


def _hash_package(module: str) -> str:
    """Return the hash of the `*.py` files of a package, or of the file of a module, by paths and contents."""
    origin = find_origin(module)
    if origin is None:
        return ""
    package = origin.parent if origin.name == "__init__.py" else origin
    files = sorted(package.rglob("*.py")) if package.is_dir() else [package]
    known = {str(path.relative_to(package.parent)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
