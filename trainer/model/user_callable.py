"""Functions of the user's that the configuration names as `module:callable`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from contracts.errors import UserError

# Whatever the user's module raises while it is imported.
_IMPORT_ERRORS = (
    ImportError,
    AttributeError,
    NameError,
    SyntaxError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AssertionError,
)


def load_callable(setting: str, name: str, error: type[UserError]) -> Any:
    """Import what `name` says, from the working directory too.

    Args:
        setting: The configuration's field, for the message.
        name: module:callable.
        error: Raised where it cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    # Stages run with a safe path (components/launch.py); last, so that nothing of ours is hidden.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except _IMPORT_ERRORS as failure:
        raise error(
            f"{setting} {name!r}: {failure}",
            allowed="module:callable, importable in this environment",
            todo="install the package that holds it, or correct the name",
        ) from failure
