"""Own code: functions of the user's that the configuration names as `module:callable`."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path

from contracts import PACKAGES
from contracts.checked import Findings
from contracts.config import RunConfig
from contracts.errors import ConfigError, ModelError, UserError
from trainer.model.user_callable import load_callable

# What its images have besides, as far as a network or a transform may be taken from it.
_IN_IMAGES = (*PACKAGES, "torch", "transformers", "numpy", "PIL")


def check_own_code(config: RunConfig, findings: Findings, *, has_torch: bool, elsewhere: bool = False) -> bool:
    """Import own code; return whether the network's could be imported, or there is none.

    Args:
        config: The configuration.
        findings: Gets what is wrong.
        has_torch: Whether torch is installed.
        elsewhere: It is to run on other machines, whose image may have what it lacks here.
    """
    lacks = "" if has_torch else "torch is not installed"
    if elsewhere and not lacks:
        lacks = "it needs what is not on this machine"
    found = True
    if ":" in config.model.architecture:
        found = _imports("model.architecture", config.model.architecture, ModelError, findings, lacks)
    if config.task.is_own:
        found = _imports("task.name", config.task.name, ConfigError, findings, lacks) and found
    if config.data.transform and has_torch:
        from trainer.tasks.image_classification.transforms import load_transform

        if _imports("data.transform", config.data.transform, ConfigError, findings, lacks):
            with findings.refusals():
                load_transform(config.data.transform)
    elif config.data.transform:
        _imports("data.transform", config.data.transform, ConfigError, findings, lacks)
    return found


def _imports(setting: str, name: str, kind: type[UserError], findings: Findings, lacks: str) -> bool:
    """Whether own code imports; where this machine `lacks` something, other packages and variables may be missing."""
    try:
        load_callable(setting, name, kind)
    except UserError as error:
        missing = error.__cause__
        package = name.partition(":")[0].partition(".")[0]
        is_other = isinstance(missing, ModuleNotFoundError) and (missing.name or "").partition(".")[0] != package
        if lacks and (is_other or isinstance(missing, KeyError)):
            findings.leave_unchecked(f"whether {setting} {name!r} imports ({missing})", lacks)
            return False
        with findings.refusals():
            raise
        return False
    return True


def warn_of_images(config: RunConfig, findings: Findings) -> None:
    """Say which own code the containers of Vertex AI's jobs must have, besides this project."""
    for setting, name, stages in (
        ("model.architecture", config.model.architecture, "profile, train and export"),
        ("data.transform", config.data.transform, "profile and train"),
    ):
        package = name.partition(":")[0].partition(".")[0]
        if ":" not in name or package in _IN_IMAGES:
            continue
        findings.warnings.append(
            f"{setting} {name!r} is in {_place_of(package)}, and no image that `shardline images build` makes, nor a "
            f"prebuilt container, has it: on Vertex AI {stages} end with No module named {package!r}, after the shards "
            "were made and paid for; name images that have it (vertex.images.trainer, vertex.images.export; "
            "docs/vertex.md)"
        )


def _place_of(package: str) -> str:
    """Return where a package lies, without importing it."""
    spec = importlib.machinery.PathFinder.find_spec(package, [*sys.path, str(Path.cwd())])
    if spec is None:
        return f"a package {package} of yours"
    return spec.origin or next(iter(spec.submodule_search_locations or []), package)


def find_own_files(known: Collection[str]) -> set[str]:
    """Return the files of modules that were imported since, and are neither installed packages nor this project's.

    Args:
        known: Names of the modules that were imported before.
    """
    paths = sysconfig.get_paths()
    installed = [Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    files = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name in known or name.partition(".")[0] in PACKAGES or not isinstance(file, str):
            continue
        path = Path(file).resolve()
        if path.is_file() and not any(path.is_relative_to(folder) for folder in installed):
            files.add(str(path))
    return files


def has_module(name: str) -> bool:
    """Whether a package is installed."""
    return importlib.util.find_spec(name) is not None
