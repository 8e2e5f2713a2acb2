"""The first folder in PATH of containers: `python` is this interpreter, and `pip`, `uv` and `venv` install nothing.

No command of a container is changed: whichever word of it, or of a shell's script, starts one of these programs starts
what is here. By another way, as /usr/bin/pip, the real one starts, and reaches no index.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

# An image's Python has the minor version that it has; this one stands for them all.
_VERSIONS = ("", "3", *(f"3.{minor}" for minor in range(9, 16)))
_KFP_EXECUTOR = "kfp.dsl.executor_main"
_PYTHON = """#!/bin/sh
# Python as containers of a rehearsal know it. Flags without a value may stand before a module.
flags=
while :; do
    case "$1" in
        - | -*[!bBdEhiIOPqRsSuvx]*) break ;;
        -*) flags="$flags $1"; shift ;;
        *) break ;;
    esac
done
case "$1 $2" in
    "-m {executor}") shift 2; set -- -m rehearsal.pipelines.kfp_executor "$@" ;;
    "-m pip" | "-m ensurepip" | "-m venv" | "-m uv") shift; set -- -m rehearsal.machines.installers '{folder}' "$@" ;;
esac
exec '{python}' $flags "$@"
"""
_INSTALLER = """#!/bin/sh
exec '{python}' -m rehearsal.machines.installers '{folder}' {name} "$@"
"""


def write_commands(folder: Path) -> Path:
    """Write the programs into a folder, and return it."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    python = _PYTHON.format(executor=_KFP_EXECUTOR, python=sys.executable, folder=folder)
    installers = {name: _INSTALLER.format(python=sys.executable, folder=folder, name=name) for name in ("pip", "uv")}
    programs = {"uv": installers["uv"]}
    for version in _VERSIONS:
        programs |= {f"python{version}": python, f"pip{version}": installers["pip"]}
    for name, text in programs.items():
        path = folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


def with_commands(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """Return an environment in which the programs of a folder are the first."""
    return {**environment, "PATH": os.pathsep.join([str(folder), environment.get("PATH", os.defpath)])}
