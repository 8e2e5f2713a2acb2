"""Own code: functions and classes of the user's that the configuration names as `module:name` (docs/own-code.md).

The files below code.path are packed into one archive, LINE/code/HASH.tar.gz, whose URI takes the place of code.path in
what stages are given; HASH is the sha256 of the tar file in it. Each process that needs own code appends the unpacked
archive to sys.path, last, and never imports from the user's folder. Nothing here imports the user's modules
(trainer/model/user_callable.py does).
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib
import io
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from contracts import PACKAGES, storage
from contracts.config import CodeSection, RunConfig
from contracts.environment import user_cache
from contracts.errors import ConfigError, DataError, UserError
from contracts.output import MARK_NAME

CODE_FOLDER = "code"
MAX_BYTES = 10_000_000
_SUFFIX = ".tar.gz"
_NAME = re.compile(r"[A-Za-z_][\w.]*:\w+")
_ARCHIVE = re.compile(rf"([0-9a-f]{{64}}){re.escape(_SUFFIX)}")


@dataclass(frozen=True)
class PinnedCode:
    """A configuration whose code.path is the URI of an archive."""

    config: RunConfig
    archive: bytes | None = None
    """Content of the archive; None: there is none, or it is published already."""
    warnings: tuple[str, ...] = ()

    def documents(self) -> dict[str, bytes]:
        """Return the archive by its URI."""
        return {} if self.archive is None else {storage.normalise(self.config.code.path): self.archive}


def named_code(config: RunConfig) -> dict[str, str]:
    """Return the names of own code, module:name, by field."""
    names = {
        "model.architecture": config.model.architecture,
        "data.transform": config.data.transform,
        "task.name": config.task.name,
    }
    loss = config.task.arguments.get("loss")
    if ":" not in config.task.name and isinstance(loss, str) and _NAME.fullmatch(loss):
        # Of a task of this project: the one argument that may name a function.
        names["task.arguments.loss"] = loss
    return {setting: name for setting, name in names.items() if ":" in name}


def code_hash(code: CodeSection) -> str:
    """Return the hash in the name of an archive; empty: code.path is none."""
    found = _ARCHIVE.fullmatch(code.path.rpartition("/")[2])
    return found[1] if found else ""


def pin_code(config: RunConfig, line: str) -> PinnedCode:
    """Pack the own code that a configuration names.

    Args:
        config: With absolute paths; one that names an archive already stays as it is.
        line: URI of the folder that code/HASH.tar.gz is to lie in.

    Raises:
        ConfigError: Own code without code.path, a module that is not there or that another one hides, or files that
            cannot be taken.
    """
    names, path = named_code(config), config.code.path
    if not names:
        unused = ("code.path is set, and nothing in the configuration names code of it: it has no effect",)
        return PinnedCode(_with_path(config, ""), warnings=unused if path else ())
    if code_hash(config.code):
        return PinnedCode(config)
    root = storage.normalise(config.run.root)
    outputs = [storage.local_path(uri) for uri in (line, root) if storage.is_local(uri)]
    tar, warnings = pack(Path(path), outputs) if path else (b"", [])
    modules = _modules(tar)
    named = {name.partition(":")[0].partition(".")[0]: (setting, name) for setting, name in names.items()}
    for module, (setting, name) in named.items():
        origin = find_elsewhere(module, Path(path) if path else None)
        if module not in modules and origin is None:
            raise missing_code(setting, name, path)
        if module in modules and origin is not None:
            raise shadowed(f"{setting} {name!r} is to be imported from code.path {path}", origin)
    if not modules.intersection(named):
        unused = ("code.path is set, and all code that the configuration names is installed: it has no effect",)
        return PinnedCode(_with_path(config, ""), warnings=unused if path else ())
    for module in sorted(modules - named.keys()):
        if (origin := find_elsewhere(module, Path(path))) is not None:
            warnings.append(f"module {module} below code.path is hidden by {origin}: `import {module}` finds that one")
    uri = storage.join(line, CODE_FOLDER, hashlib.sha256(tar).hexdigest() + _SUFFIX)
    place = str(storage.local_path(uri)) if storage.is_local(uri) else uri
    return PinnedCode(_with_path(config, place), gzip.compress(tar, mtime=0), tuple(warnings))


def pack(folder: Path, outputs: Sequence[Path] = ()) -> tuple[bytes, list[str]]:
    """Return a folder's code as a tar file, a pure function of paths and contents, and warnings of what is left out.

    It holds all *.py files, and all files of packages. Left out are hidden files and folders, caches, virtual
    environments, links, and what stages have written.

    Args:
        folder: The folder, `code.path`; it may itself be a link.
        outputs: Folders that stages write to.

    Raises:
        ConfigError: There is no such folder, no module in it, too much, or a file that cannot be read.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"code.path {folder} is {'no folder' if folder.exists() else 'not there'}",
            allowed="the folder that holds your modules; a relative path is relative to the current folder",
            todo="correct code.path",
        )
    written = {path.resolve() for path in outputs} - {folder.resolve()}
    content, links, num_bytes = io.BytesIO(), [], 0
    with tarfile.open(fileobj=content, mode="w") as tar:
        for place, folders, names in os.walk(folder, onerror=_fail):
            here = Path(place)
            links += [here / name for name in (*folders, *names) if _may_be_code(name) and (here / name).is_symlink()]
            folders[:] = sorted(
                name
                for name in folders
                if _may_be_code(name) and not _is_made(here / name) and (here / name).resolve() not in written
            )
            is_package = (here / "__init__.py").is_file()
            for name in sorted(names):
                path = here / name
                if not (_may_be_code(name) and (is_package or name.endswith(".py"))) or path.is_symlink():
                    continue
                entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
                try:
                    data = path.read_bytes()
                except OSError as error:
                    _fail(error)
                entry.size, num_bytes = len(data), num_bytes + len(data)
                if num_bytes > MAX_BYTES:
                    raise ConfigError(
                        f"code.path {folder} holds more than {MAX_BYTES // 10**6} MB of code, with {entry.name}",
                        allowed=f"at most {MAX_BYTES // 10**6} MB in *.py files and in packages",
                        todo="set code.path to the folder of your modules alone; data belongs into sharding.source, "
                        "weights into model.weights",
                    )
                tar.addfile(entry, io.BytesIO(data))
    if not num_bytes:
        raise ConfigError(
            f"code.path {folder} holds no *.py file",
            allowed="the folder that holds your modules",
            todo="correct code.path",
        )
    return content.getvalue(), [f"{link}, below code.path, is a link: it is left out" for link in sorted(links)]


def publish_code(pinned: PinnedCode) -> None:
    """Write the archive to its place; the same one a second time is what is there."""
    for uri, content in pinned.documents().items():
        if not storage.exists(uri):
            storage.publish(uri, content)


def install_code(code: CodeSection) -> None:
    """Append the files of an archive to sys.path; a configuration without own code changes nothing.

    Raises:
        DataError: The archive is gone, or was changed.
    """
    if not code_hash(code):
        return
    try:
        content = storage.read_bytes(storage.normalise(code.path))
    except FileNotFoundError:
        raise DataError(
            f"the archive of own code {code.path} is not there",
            allowed="an archive as the line makes it from code.path",
            todo="run the same command again with the configuration that names code.path",
        ) from None
    append_code(unpack(content, code))


def unpack(content: bytes, code: CodeSection) -> Path:
    """Return the folder of an archive's files on this machine: in the user's cache, made once.

    Raises:
        DataError: The content is not what its name says.
    """
    sha256 = code_hash(code)
    try:
        tar = gzip.decompress(content)
    except (OSError, EOFError):
        tar = b""
    if hashlib.sha256(tar).hexdigest() != sha256:
        raise DataError(
            f"the archive of own code {code.path} was changed: its content has another hash than its name",
            allowed="an archive as the line made it: what runs must be what was hashed",
            todo="delete it, and run the same command again: it is made anew from your own code.path",
        )
    target = user_cache(CODE_FOLDER) / sha256
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=target.parent, prefix=".new-"))
    except OSError:
        # A machine without a home that can be written.
        made = Path(tempfile.mkdtemp(prefix="shardline-code-"))
        target = made / "files"
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        archive.extractall(made / "files", filter="data")
    # Where another process was faster, its folder holds the same.
    with contextlib.suppress(OSError):
        (made / "files").rename(target)
    if target.parent != made:
        shutil.rmtree(made, ignore_errors=True)
    return target


# The folder of own code of this process.
_folders: list[Path] = []


def append_code(folder: Path) -> None:
    """Append a folder to sys.path, behind everything else: no module of ours or of a library is replaced by it."""
    former = code_folder()
    if former is not None and former != folder:
        # What was imported from there is of other files.
        for name, module in list(sys.modules.items()):
            if Path(getattr(module, "__file__", None) or "/").is_relative_to(former):
                del sys.modules[name]
        importlib.invalidate_caches()
    sys.path[:] = [entry for entry in sys.path if entry not in (str(former), str(folder))]
    sys.path.append(str(folder))
    _folders[:] = [folder]


def code_folder() -> Path | None:
    """Return the folder of own code that this process has installed; None: none."""
    return _folders[-1] if _folders else None


def find_elsewhere(module: str, folder: Path | None = None) -> str | None:
    """Return where Python finds a top-level module outside of own code and of the current folder; None: nowhere."""
    if module in sys.builtin_module_names:
        return f"Python's own module {module}"
    if module in PACKAGES:
        return str(Path(__file__).parents[1] / module / "__init__.py")
    left_out = {str(place) for place in ("", ".", Path.cwd(), code_folder())}
    spec = PathFinder.find_spec(module, [entry for entry in sys.path if entry not in left_out])
    if spec is None or (spec.origin is None and folder is not None):
        # Without an origin it is any folder of that name.
        return None
    return spec.origin or str(next(iter(spec.submodule_search_locations or ()), module))


def missing_code(setting: str, name: str, path: str = "", error: type[UserError] = ConfigError) -> UserError:
    """Return the error about own code that is nowhere."""
    module = name.partition(":")[0].partition(".")[0]
    where = f"{path} (code.path) holds no module {module}" if path else "code.path is not set"
    return error(
        f"{setting} {name!r}: {where}, and none is installed that is called {module}",
        allowed="own code below code.path, or installed; the current folder is not searched",
        todo="set code.path to the folder that holds it, e.g. `code.path: .` for the current folder; or install the "
        "package that holds it",
    )


def shadowed(what: str, origin: str) -> ConfigError:
    """Return the error about a module of own code that another one hides."""
    return ConfigError(
        f"{what}: it is shadowed by {origin}, which Python finds first",
        allowed="own modules of names that nothing else has: code.path comes last, so that no library is replaced",
        todo="rename your module, or remove what shadows it (a folder in PYTHONPATH, an installed package)",
    )


def _modules(tar: bytes) -> set[str]:
    """Return the names of the top-level modules in a tar file."""
    if not tar:
        return set()
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        tops = {name.partition("/")[0].removesuffix(".py") for name in archive.getnames() if name.endswith(".py")}
    return {top for top in tops if top.isidentifier()}


def _may_be_code(name: str) -> bool:
    return not name.startswith(".") and name not in ("__pycache__", "node_modules") and not name.endswith(".pyc")


def _is_made(folder: Path) -> bool:
    """Whether a folder is a link, a virtual environment or a stage's output."""
    return folder.is_symlink() or (folder / "pyvenv.cfg").exists() or (folder / MARK_NAME).exists()


def _fail(error: OSError) -> None:
    raise ConfigError(
        f"{error.filename}, below code.path, cannot be read ({error.strerror})",
        allowed="files and folders that you may read",
        todo="correct its permissions, or set code.path to another folder",
    ) from None


def _with_path(config: RunConfig, path: str) -> RunConfig:
    return config.model_copy(update={"code": config.code.model_copy(update={"path": path})})
