"""User functions that the configuration names as `module:callable`."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from contracts import PACKAGES
from contracts.errors import ConfigError, UserError
from contracts.own_code import code_folder


def load_callable(setting: str, name: str, error: type[UserError]) -> Any:
    """Import user code (`module:callable`) from the installed code archive or an installed package.

    Raises:
        UserError: `error` if it cannot be imported; ConfigError if another module shadows it.
    """
    module_name, _, attribute = name.partition(":")
    folder, top = code_folder(), module_name.partition(".")[0]
    home = folder if folder is not None and ((folder / top).is_dir() or (folder / f"{top}.py").is_file()) else None
    if home is None and module_name not in sys.modules and find_elsewhere(top) is None:
        raise error(
            f"{setting} {name!r}: {'code.path is not set' if folder is None else f'code.path holds no module {top}'}, "
            f"and none is installed that is called {top}",
            allowed="own code below code.path, or installed; the current folder is not searched",
            todo="set code.path to the folder that holds it, e.g. `code.path: .` for the current folder; or install "
            "the package that holds it",
        )
    try:
        module = importlib.import_module(module_name)
        _require_inside(setting, name, home, module)
        return getattr(module, attribute)
    except (UserError, MemoryError):
        raise
    except Exception as failure:  # user code may raise anything
        _require_inside(setting, name, home, sys.modules.get(top))
        raise error(
            f"{setting} {name!r} ({f'in {home}' if home else 'installed'}): {type(failure).__name__}: {failure}",
            allowed="module:callable, importable in this environment",
            todo="install the package that is missing, or correct the import"
            if isinstance(failure, ImportError)
            else "correct the module, or the name",
        ) from failure


def find_elsewhere(module: str) -> str | None:
    """Return the origin of a top-level module outside of user code and the current folder; None if not found."""
    if module in sys.builtin_module_names:
        return f"Python's own module {module}"
    if module in PACKAGES:
        return str(Path(__file__).parents[2] / module / "__init__.py")
    # Stages run with PYTHONSAFEPATH: the current folder is on the path only if it was installed.
    entries = [entry for entry in sys.path if entry not in ("", ".", str(code_folder()))]
    # Editable packages may have their own finder.
    for finder in sys.meta_path:
        spec = finder.find_spec(module, entries if finder is PathFinder else None)
        if spec is not None:
            return spec.origin or str(next(iter(spec.submodule_search_locations or ()), module))
    return None


def _require_inside(setting: str, name: str, home: Path | None, module: ModuleType | None) -> None:
    """Raise if a module was not imported from `home`, the user code folder; None: it is an installed package."""
    paths = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
    origin = next((Path(path).resolve() for path in paths if path), None)
    if home is not None and origin is not None and not origin.is_relative_to(home.resolve()):
        raise ConfigError(
            f"{setting} {name!r} is to be imported from code.path ({home}): it is shadowed by {origin}, which Python "
            "finds first",
            allowed="own modules of names that nothing else has: code.path comes last, so that no library is replaced",
            todo="rename your module, or remove what shadows it (a folder in PYTHONPATH, an installed package)",
        )
