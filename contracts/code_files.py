"""The files of a folder of the user's code, and their hash: a pure function of paths and contents.

All `*.py` files below the folder, and what the patterns of `code.include` match. Left out are hidden files and folders,
caches, virtual environments, links, and what stages have written (lines, folders given by --output).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from contracts.errors import ConfigError
from contracts.output import MARK_NAME
from contracts.result import RUN_START_NAME, RUNS_FOLDER

MAX_FILES = 1000
MAX_BYTES = 10_000_000
_CACHES = ("__pycache__", "node_modules")


@dataclass(frozen=True)
class CodeFiles:
    """Files of the user's, read whole."""

    contents: Mapping[str, bytes]
    """By path below the folder, with `/`."""
    requirements: bytes | None = None
    """Content of the requirements file."""
    links: tuple[str, ...] = ()
    """Links that were left out."""

    @property
    def manifest(self) -> bytes:
        """The sha256 of each file by path, and of the requirements, as canonical JSON."""
        return describe(self.contents, self.requirements)

    @property
    def sha256(self) -> str:
        """Hash of the manifest: of what the files are called and hold, and of nothing else."""
        return hashlib.sha256(self.manifest).hexdigest()


def describe(contents: Mapping[str, bytes], requirements: bytes | None) -> bytes:
    """Return the manifest of files."""
    files = {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
    values = {"files": files, "requirements": "" if requirements is None else hashlib.sha256(requirements).hexdigest()}
    return (json.dumps(values, sort_keys=True, indent=1) + "\n").encode()


def read_code(
    folder: Path, include: Sequence[str] = (), requirements: Path | None = None, *, outputs: Sequence[Path] = ()
) -> CodeFiles:
    """Read the files of a folder.

    Args:
        folder: The folder, `code.path`; it may itself be a link.
        include: Patterns of further files below it.
        requirements: A requirements file of pip, anywhere.
        outputs: Folders that stages write to, and that are left out where they lie below the folder.

    Raises:
        ConfigError: There is no such folder or file, a pattern matches nothing, or there is too much.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"code.path {folder} is {'no folder' if folder.exists() else 'not there'}",
            allowed="the folder that holds your modules; a relative path is relative to the current folder",
            todo="correct code.path",
        )
    found, links = _walk(folder, {path.resolve() for path in outputs} - {folder.resolve()})
    names = [name for name in found if name.endswith(".py")]
    _require_few(folder, len(names))
    for pattern in include:
        matched = _match(folder, pattern, found)
        if not matched:
            raise ConfigError(
                f"code.include: {pattern!r} matches no file below {folder}",
                allowed="patterns of files below code.path, such as `*.json` or `words/**/*.txt`; hidden folders, "
                "links and caches are left out",
                todo="correct the pattern, or remove it",
            )
        names += matched
    names = sorted(set(names))
    _require_few(folder, len(names))
    contents: dict[str, bytes] = {}
    num_bytes = 0
    for name in names:
        num_bytes += _size(folder / name)
        if num_bytes > MAX_BYTES:
            raise _too_much(folder, f"more than {MAX_BYTES // 10**6} MB, counted up to {name}")
        contents[name] = _read(folder / name)
    if not contents:
        raise ConfigError(
            f"code.path {folder} holds no *.py file",
            allowed="the folder that holds your modules",
            todo="correct code.path",
        )
    return CodeFiles(contents, None if requirements is None else read_requirements(requirements), tuple(links))


def read_requirements(path: Path) -> bytes:
    """Return the content of a requirements file.

    Raises:
        ConfigError: It cannot be read, or is too large.
    """
    if not path.is_file():
        raise ConfigError(
            f"code.requirements {path} is no file", allowed="a requirements file of pip", todo="correct the path"
        )
    if _size(path) > MAX_BYTES:
        raise ConfigError(
            f"code.requirements {path} is larger than {MAX_BYTES // 10**6} MB",
            allowed="a requirements file of pip",
            todo="correct the path",
        )
    return _read(path)


def _walk(folder: Path, outputs: set[Path]) -> tuple[list[str], list[str]]:
    """Return the paths of all files that may be taken, and of links, below a folder."""
    files: list[str] = []
    links: list[str] = []

    def fail(error: OSError) -> None:
        raise _unreadable(Path(error.filename), error) from None

    for place, folders, names in os.walk(folder, onerror=fail):
        here = Path(place)
        below = here.relative_to(folder)
        kept = []
        for name in sorted(folders):
            path = here / name
            if name.startswith(".") or name in _CACHES:
                continue
            if path.is_symlink():
                links.append((below / name).as_posix())
            elif not _is_made(path) and path.resolve() not in outputs:
                kept.append(name)
        folders[:] = kept
        for name in names:
            path = here / name
            if name.startswith(".") or name.endswith((".pyc", ".pyo")):
                continue
            if path.is_symlink():
                links.append((below / name).as_posix())
            elif path.is_file():
                files.append((below / name).as_posix())
    return files, sorted(links)


def _is_made(folder: Path) -> bool:
    """Whether a folder is a virtual environment, a stage's output, or a line."""
    if (folder / "pyvenv.cfg").exists() or (folder / MARK_NAME).exists():
        return True
    return any((folder / RUNS_FOLDER).glob(f"*/{RUN_START_NAME}"))


def _match(folder: Path, pattern: str, found: Sequence[str]) -> list[str]:
    """Return the files that a pattern of code.include matches."""
    parts = PurePosixPath(pattern).parts
    if not parts or pattern.startswith("/") or ".." in parts:
        raise ConfigError(
            f"code.include: {pattern!r}",
            allowed="patterns relative to code.path, of files below it",
            todo="correct the pattern, or set code.path to a folder that holds all",
        )
    try:
        matched = {path.relative_to(folder).as_posix() for path in folder.glob(pattern)}
    except ValueError as error:
        raise ConfigError(
            f"code.include: {pattern!r}: {error}", allowed="patterns as of pathlib's glob", todo="correct the pattern"
        ) from None
    return [name for name in found if name in matched]


def _require_few(folder: Path, count: int) -> None:
    if count > MAX_FILES:
        raise _too_much(folder, f"{count} files")


def _too_much(folder: Path, what: str) -> ConfigError:
    return ConfigError(
        f"code.path {folder} holds too much code: {what}",
        allowed=f"at most {MAX_FILES} files and {MAX_BYTES // 10**6} MB in *.py files and code.include",
        todo="set code.path to the folder of your modules alone; data belongs into sharding.source, weights into "
        "model.weights",
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path}, below code.path, cannot be read ({error.strerror})",
        allowed="files and folders that you may read",
        todo="correct its permissions, or set code.path to another folder",
    )
