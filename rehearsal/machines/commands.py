"""The first folder in PATH of containers: `python` and `python3` are this interpreter."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_NAMES = ("python", "python3")
_PYTHON = f"""#!/bin/sh
exec '{sys.executable}' "$@"
"""


def write_commands(folder: Path) -> Path:
    """Write the programs into a folder, and return it."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for name in _NAMES:
        path = folder / name
        path.write_text(_PYTHON)
        path.chmod(0o755)
    return folder


def with_commands(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """Return an environment in which the programs of a folder are the first."""
    return {**environment, "PATH": os.pathsep.join([str(folder), environment.get("PATH", os.defpath)])}
