"""Section `code`: the user's own Python files."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from contracts.config.base import Section


class CodeSection(Section):
    """The user's own Python files: part of the result (docs/own-code.md)."""

    path: str = ""
    """Folder of the modules that the configuration names as `module:callable`; all `*.py` below it are copied into the
    line. Relative to the current folder, as all paths. Needed unless those modules are of installed distributions."""
    include: list[str] = []
    """Patterns of further files below `path` that the code reads, e.g. `vocabulary/*.txt` or `**/*.json`."""
    requirements: str = ""
    """Requirements file of pip with what the code imports; `shardline images build` installs it."""
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """Hash of the files: 64 hex digits. The line fills it in; where it is set, other files are refused."""
    installed: dict[str, str] = {}
    """Installed packages that the configuration names code of, with distribution, version and hash. The stages fill
    it in."""
