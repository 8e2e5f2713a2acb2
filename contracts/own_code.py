"""Own code: functions and classes of the user's that the configuration names as `module:name` (docs/own-code.md).

    named_code    what the configuration names
    pin_code      the configuration with the hash of the files and the URI of their copy, LINE/code/HASH; reads only
    publish_code  the copy: create-only, its manifest last
    install_code  the copy's folder at the end of sys.path: the one way by which own code is found, in every process

A copy is files/..., requirements.txt and manifest.json, of which the sha256 is HASH. Installed code is not copied:
`with_installed` writes down what it is. Nothing here imports the user's modules (trainer/model/user_callable.py does).
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.code_files import CodeFiles, read_code
from contracts.config import CodeSection, RunConfig
from contracts.errors import ConfigError, DataError, UserError
from contracts.installed_code import find_installed, find_origin
from contracts.stores import AlreadyPublished, Wanted
from contracts.user_cache import user_cache

CODE_FOLDER = "code"
FILES_FOLDER = "files"
_REQUIREMENTS_NAME = "requirements.txt"
_NAME = re.compile(r"[A-Za-z_][\w.]*:\w+")
# Objects of a bucket that are written at a time.
_WRITERS = 16
# How long a copy that nobody opens stays in the user's cache.
_CACHED_S = 30 * 86400.0


@dataclass(frozen=True)
class PinnedCode:
    """A configuration that says which own code it means."""

    config: RunConfig
    """With `code.path`, the URI of the copy, `code.sha256`, and the packages in `code.installed`."""
    files: CodeFiles | None = None
    """What the copy is made of; None: nothing needs to be copied."""
    warnings: tuple[str, ...] = ()

    def documents(self) -> dict[str, bytes]:
        """Return the copy's files by URI, the manifest last."""
        if self.files is None:
            return {}
        uri = storage.normalise(self.config.code.path)
        documents = {
            storage.join(uri, FILES_FOLDER, *name.split("/")): content for name, content in self.files.contents.items()
        }
        if self.files.requirements is not None:
            documents[storage.join(uri, _REQUIREMENTS_NAME)] = self.files.requirements
        return {**documents, storage.join(uri, MANIFEST_NAME): self.files.manifest}


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


def pin_code(config: RunConfig, line: str) -> PinnedCode:
    """Find the own code that a configuration names, and say which it is.

    Args:
        config: With absolute paths; one that is pinned already stays as it is.
        line: URI of the folder that code/HASH is to lie in.

    Raises:
        ConfigError: Own code without code.path, a module that is not there or that another one hides, or files that
            cannot be taken.
    """
    names, code = named_code(config), config.code
    if not names:
        unused = ("code.path is set, and nothing in the configuration names code of it: it has no effect",)
        return PinnedCode(_with_code(config, CodeSection()), warnings=unused if code.path else ())
    if code.sha256 and storage.normalise(code.path).rpartition("/")[2] == code.sha256:
        return PinnedCode(config)
    files = None
    if code.path:
        root = storage.normalise(config.run.root)
        outputs = (line, root, storage.join(root, config.run.name))
        files = read_code(
            Path(code.path),
            code.include,
            Path(code.requirements) if code.requirements else None,
            outputs=[storage.local_path(uri) for uri in outputs if storage.is_local(uri)],
        )
        if code.sha256 not in ("", files.sha256):
            raise ConfigError(
                f"the files below code.path {code.path} have the hash {files.sha256}, code.sha256 is {code.sha256}",
                allowed="the files that code.sha256 was written down for",
                todo="restore those files, or leave code.sha256 out: the line fills it in",
            )
    tops = _tops(files) if files else set()
    installed: dict[str, str] = {}
    for setting, name in names.items():
        top = name.partition(":")[0].partition(".")[0]
        if top in tops:
            continue
        found = find_installed(top)
        if found is None:
            raise missing_code(setting, name, code.path)
        if not found.is_given:
            installed[top] = ""
    if files is None or all(name.partition(":")[0].partition(".")[0] not in tops for name in names.values()):
        unused = ("code.path is set, and all code that the configuration names is installed: it has no effect",)
        kept = CodeSection(requirements=code.requirements, installed=installed)
        return PinnedCode(_with_code(config, kept), warnings=unused if code.path else ())
    _require_seen(files, Path(code.path), tops)
    uri = storage.join(line, CODE_FOLDER, files.sha256)
    place = str(storage.local_path(uri)) if storage.is_local(uri) else uri
    pinned = code.model_copy(update={"path": place, "sha256": files.sha256, "installed": installed})
    warnings = tuple(
        f"{Path(code.path) / link}, below code.path, is a link: it is left out of the code that runs"
        for link in files.links
    )
    return PinnedCode(_with_code(config, pinned), files, warnings)


def missing_code(setting: str, name: str, path: str = "", error: type[UserError] = ConfigError) -> UserError:
    """Return the error about own code that is nowhere."""
    module = name.partition(":")[0]
    if path:
        return error(
            f"{setting} {name!r}: {path} (code.path) holds no module {module.partition('.')[0]}, and no installed "
            "distribution does",
            allowed="a module below code.path, or of an installed distribution",
            todo="correct the name or code.path, or install the package that holds it",
        )
    return error(
        f"{setting} {name!r}: code.path is not set, and no installed distribution holds the module {module}",
        allowed="own code below code.path, or of an installed distribution; the current folder is not searched",
        todo="set code.path to the folder that holds it, e.g. `code.path: .` for the current folder; or install the "
        "package that holds it",
    )


def publish_code(pinned: PinnedCode) -> None:
    """Copy the files to their place, unless they are there; on this machine, what is there is checked.

    Raises:
        DataError: Something else is there.
        StorageError: It cannot be written.
    """
    documents = pinned.documents()
    if not documents:
        return
    *files, (manifest, content) = documents.items()
    if storage.exists(manifest):
        if storage.is_local(manifest):
            open_code(pinned.config.code)
        return
    try:
        if storage.is_local(manifest):
            for uri, file in files:
                storage.publish(uri, file)
        else:
            with ThreadPoolExecutor(_WRITERS) as pool:
                list(pool.map(lambda one: storage.publish(*one), files))
        storage.publish(manifest, content)
    except AlreadyPublished:
        raise _damaged(pinned.config.code.path, "a file there has another content than its name says") from None


def with_installed(config: RunConfig) -> RunConfig:
    """Return the configuration with what the installed code is that it names, in this environment.

    Raises:
        ConfigError: It is not installed here.
    """
    found = {}
    for module in config.code.installed:
        code = find_installed(module)
        if code is None:
            names = named_code(config).items()
            setting, name = next((one for one in names if one[1].startswith(module)), ("code.installed", module))
            raise missing_code(setting, name)
        found[module] = code.identity()
    return _with_code(config, config.code.model_copy(update={"installed": found})) if found else config


# The folder of own code of this process.
_folders: list[Path] = []


def install_code(code: CodeSection) -> None:
    """Append the copy of own code to sys.path; a configuration without own code changes nothing.

    Raises:
        DataError: The copy is gone, or was changed.
    """
    if code.sha256:
        append_code(open_code(code))


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


def open_code(code: CodeSection) -> Path:
    """Return the folder of the copy's files on this machine, each checked; of a bucket's, in the user's cache.

    Raises:
        DataError: The copy is gone, or was changed.
    """
    uri = storage.normalise(code.path)
    try:
        manifest = storage.read_bytes(storage.join(uri, MANIFEST_NAME))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"the copy of own code in {storage.display(uri)} is not there: it was removed, or never finished",
            allowed="a copy with its manifest, as the line makes it from code.path",
            todo="run the same command again with the configuration that names code.path",
        ) from None
    if hashlib.sha256(manifest).hexdigest() != code.sha256:
        raise _damaged(code.path, f"{MANIFEST_NAME} is of other files")
    known: dict[str, str] = json.loads(manifest)["files"]
    if storage.is_local(uri):
        folder = storage.local_path(storage.join(uri, FILES_FOLDER))
        if (change := _find_change(folder, known)) is not None:
            raise _damaged(code.path, change)
        return folder
    return _download(uri, known, code)


def keep_here(contents: Mapping[str, bytes], sha256: str) -> Path:
    """Write files of own code into the user's cache and return their folder; the same files have the same folder.

    Args:
        contents: By path.
        sha256: Hash of the files, which names the folder.
    """
    known = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    target = user_cache(CODE_FOLDER) / sha256
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_old(target.parent)
        made = Path(tempfile.mkdtemp(dir=target.parent, prefix=".new-"))
    except OSError:
        # A machine without a home that can be written.
        target = Path(tempfile.mkdtemp(prefix="shardline-code-")) / sha256
        made = target.with_name(".new")
    for name, content in contents.items():
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    try:
        made.rename(target)
    except OSError:
        # Another process was faster, or what is there was changed.
        if _find_change(target, known) is not None:
            return made
        shutil.rmtree(made, ignore_errors=True)
    return target


def _download(uri: str, known: Mapping[str, str], code: CodeSection) -> Path:
    target = user_cache(CODE_FOLDER) / code.sha256
    if _find_change(target, known) is None:
        with contextlib.suppress(OSError):
            os.utime(target)
        return target
    wanted = [Wanted(storage.join(uri, FILES_FOLDER, *name.split("/"))) for name in known]
    contents: dict[str, bytes] = {}
    for name, content in zip(known, storage.read_many(wanted), strict=True):
        if isinstance(content, FileNotFoundError) or hashlib.sha256(content).hexdigest() != known[name]:
            raise _damaged(code.path, f"{name} was {'removed' if isinstance(content, OSError) else 'changed'}")
        contents[name] = content
    return keep_here(contents, code.sha256)


def _remove_old(cache: Path) -> None:
    """Remove copies that no process has opened for a month."""
    for folder in cache.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _CACHED_S:
                shutil.rmtree(folder, ignore_errors=True)


def _find_change(folder: Path, known: Mapping[str, str]) -> str | None:
    """Say how the files of a folder differ from their manifest; None: they do not."""
    for name, sha256 in known.items():
        try:
            content = (folder / name).read_bytes()
        except OSError:
            return f"{name} was removed"
        if hashlib.sha256(content).hexdigest() != sha256:
            return f"{name} was changed"
    for path in folder.rglob("*.py"):
        if (name := path.relative_to(folder).as_posix()) not in known:
            return f"{name} was added"
    return None


def _damaged(path: str, why: str) -> DataError:
    return DataError(
        f"the copy of own code in {path} was changed: {why}",
        allowed="a copy as the line made it: what runs must be what was hashed",
        todo="change the files below your own code.path, never the copy; delete the copy's folder, and run the same "
        "command again: it is copied anew",
    )


def _tops(files: CodeFiles) -> set[str]:
    """Return the top-level modules of a code folder; what can be imported is Python, and has a name of Python's."""
    tops = {name.partition("/")[0].removesuffix(".py") for name in files.contents if name.endswith(".py")}
    return {top for top in tops if top.isidentifier()}


def _require_seen(files: CodeFiles, folder: Path, tops: Collection[str]) -> None:
    """Refuse files that import a module of the same folder of which Python finds another one first.

    Raises:
        ConfigError: One does.
    """
    hidden: dict[str, str] = {}
    own = [place.resolve() for place in (folder, code_folder()) if place is not None]
    for top in tops:
        if top in sys.builtin_module_names:
            hidden[top] = f"Python's own module {top}"
            continue
        origin = find_origin(top)
        if origin is not None and not any(origin.is_relative_to(place) for place in own):
            hidden[top] = str(origin)
    if not hidden:
        return
    for name, content in files.contents.items():
        for module in _imports(content) if name.endswith(".py") else ():
            if module in hidden:
                raise shadowed(f"{folder / name} imports {module}, a module of code.path {folder}", hidden[module])


def shadowed(what: str, origin: str) -> ConfigError:
    """Return the error about a module of own code that another one hides."""
    return ConfigError(
        f"{what}: it is shadowed by {origin}, which Python finds first",
        allowed="own modules of names that nothing else has: code.path comes last, so that no library is replaced",
        todo="rename your module, or remove what shadows it (a folder in PYTHONPATH, an installed package)",
    )


def _imports(content: bytes) -> Iterator[str]:
    """Yield the top-level modules that a file imports by absolute names; a file that is no Python yields none."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _with_code(config: RunConfig, code: CodeSection) -> RunConfig:
    return config.model_copy(update={"code": code})
