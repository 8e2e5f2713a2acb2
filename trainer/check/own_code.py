"""Own code: functions of the user's that the configuration names as `module:callable`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from contracts import storage
from contracts.checked import Findings
from contracts.config import RunConfig
from contracts.errors import ConfigError, ModelError, UserError
from contracts.own_code import append_code, code_folder, install_code, named_code, pin_code, unpack
from trainer.model.user_code import find_elsewhere, load_callable


def check_own_code(config: RunConfig, findings: Findings, *, has_torch: bool, elsewhere: bool = False) -> bool:
    """Import own code as the stages will, from a copy; return whether the network's could be, or there is none.

    Args:
        config: The configuration.
        findings: Collects problems.
        has_torch: Whether torch is installed.
        elsewhere: It is to run on other machines, whose image may have packages that are not here.
    """
    names = named_code(config)
    try:
        # Where the line's copy will lie makes no difference here.
        pinned = pin_code(config, storage.join(storage.normalise(config.run.root), config.run.name))
        if pinned.archive is not None:
            append_code(unpack(pinned.archive, pinned.config.code))
        else:
            install_code(pinned.config.code)
    except UserError:
        with findings.refusals():
            raise
        # A network of the tool's own can be looked at all the same.
        return not names.keys() - {"data.transform"}
    findings.warnings += pinned.warnings
    _warn_of_hidden_modules(findings)
    lacks = "" if has_torch else "torch is not installed"
    if elsewhere and not lacks:
        lacks = "it needs what is not on this machine"
    found = True
    if "model.architecture" in names:
        found = _imports("model.architecture", names["model.architecture"], ModelError, findings, lacks)
    if "data.transform" in names:
        imported = _imports("data.transform", names["data.transform"], ConfigError, findings, lacks)
        if imported and has_torch:
            from trainer.tasks.image_transforms import load_transform

            with findings.refusals():
                load_transform(config.data.transform)
    for setting in ("task.name", "task.arguments.loss"):
        if setting in names:
            found = _imports(setting, names[setting], ConfigError, findings, lacks) and found
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


def _warn_of_hidden_modules(findings: Findings) -> None:
    """Say which modules below code.path an import does not find, since others of their names come first."""
    folder = code_folder()
    for path in sorted(folder.iterdir()) if folder is not None else ():
        is_module = path.suffix == ".py" or (path / "__init__.py").is_file()
        origin = find_elsewhere(path.stem) if is_module else None
        # A folder without an __init__.py comes after every module.
        if origin is not None and not Path(origin).is_dir():
            findings.warnings.append(
                f"module {path.stem} below code.path is hidden by {origin}: `import {path.stem}` finds that one"
            )


def has_module(name: str) -> bool:
    """Whether a package is installed."""
    return importlib.util.find_spec(name) is not None
