"""Own code: functions and classes of the user's that the configuration names as `module:name` (docs/own-code.md).

The files below code.path are packed into one archive, LINE/code/HASH.tar.gz, whose URI takes the place of code.path in
what stages are given; HASH is the sha256 of the tar file in it. Each process that needs own code appends the unpacked
archive to sys.path, last, and never imports from the user's folder. Nothing here imports the user's modules
(trainer/model/user_code.py does).
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
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts import storage
from contracts.config import CodeSection, RunConfig
from contracts.environment import user_cache
from contracts.errors import ConfigError, DataError
from contracts.output import MARK_NAME
from contracts.result import RUN_START_NAME, RUNS_FOLDER

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
        # The only argument of a built-in task that may name a function.
        names["task.arguments.loss"] = loss
    return {setting: name for setting, name in names.items() if ":" in name}


def code_hash(code: CodeSection) -> str:
    """Return the hash in the name of an archive; empty if code.path is no archive."""
    match = _ARCHIVE.fullmatch(code.path.rpartition("/")[2])
    return match[1] if match else ""


def pin_code(config: RunConfig, line: str) -> PinnedCode:
    """Pack the own code that a configuration names.

    Args:
        config: With absolute paths; one that names an archive already stays as it is.
        line: URI of the folder that code/HASH.tar.gz is to lie in.

    Raises:
        ConfigError: The files below code.path cannot be packed.
    """
    path = config.code.path
    if not named_code(config):
        unused = ("code.path is set, and nothing in the configuration names own code: it has no effect",)
        return PinnedCode(config.with_keys(code={"path": ""}), warnings=unused if path else ())
    if not path or code_hash(config.code):
        return PinnedCode(config)
    root = storage.normalise(config.run.root)
    outputs = [storage.local_path(uri) for uri in (line, root) if storage.is_local(uri)]
    tar, warnings = pack(Path(path), outputs)
    uri = storage.join(line, CODE_FOLDER, hashlib.sha256(tar).hexdigest() + _SUFFIX)
    place = str(storage.local_path(uri)) if storage.is_local(uri) else uri
    return PinnedCode(config.with_keys(code={"path": place}), gzip.compress(tar, mtime=0), tuple(warnings))


def pack(folder: Path, outputs: Sequence[Path] = ()) -> tuple[bytes, list[str]]:
    """Return a folder's code as a reproducible tar file, and warnings about omitted links.

    The file contains all *.py files, and all files of packages, without hidden files and folders, caches, virtual
    environments, links and outputs of stages.

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
    files, links = _find_files(folder, {path.resolve() for path in outputs} - {folder.resolve()})
    if not files:
        raise ConfigError(
            f"code.path {folder} holds no *.py file",
            allowed="the folder that holds your modules",
            todo="correct code.path",
        )
    content, sizes = io.BytesIO(), Counter[str]()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for path in files:
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            member.size = path.stat().st_size
            sizes[member.name.partition("/")[0]] += member.size
            if sizes.total() > MAX_BYTES:
                raise ConfigError(
                    f"code.path {folder} holds more than {MAX_BYTES // 10**6} MB of code, most of it in "
                    f"{sizes.most_common(1)[0][0]}",
                    allowed=f"at most {MAX_BYTES // 10**6} MB in *.py files and in packages",
                    todo="set code.path to the folder of your modules alone; data belongs into sharding.source, "
                    "weights into model.weights",
                )
            try:
                with path.open("rb") as file:
                    tar.addfile(member, file)
            except OSError as error:
                _refuse_unreadable(error)
    return content.getvalue(), [f"{link}, below code.path, is a link: it is left out" for link in links]


def _find_files(folder: Path, outputs: set[Path]) -> tuple[list[Path], list[Path]]:
    """Return the code files of a folder and its links, in a fixed order."""
    files: list[Path] = []
    links: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=_refuse_unreadable):
        parent = Path(place)
        candidates = [parent / name for name in sorted((*folders, *names)) if _may_be_code(name)]
        links += [path for path in candidates if path.is_symlink()]
        folders[:] = [
            path.name
            for path in candidates
            if path.is_dir()
            and not path.is_symlink()
            and not (path / "pyvenv.cfg").exists()
            and not (path / MARK_NAME).exists()
            and not any((path / RUNS_FOLDER).glob(f"*/{RUN_START_NAME}"))
            and path.resolve() not in outputs
        ]
        is_package = (parent / "__init__.py").is_file()
        files += [
            path
            for path in candidates
            if path.is_file() and not path.is_symlink() and (is_package or path.suffix == ".py")
        ]
    return files, links


def publish_code(pinned: PinnedCode) -> None:
    """Write the archive to its place; the same one a second time is what is there."""
    for uri, content in pinned.documents().items():
        if not storage.exists(uri):
            # Another zlib packs the same files to other bytes.
            with contextlib.suppress(storage.AlreadyPublished):
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
    """Unpack an archive into the user's cache, unless it is there, and return its folder.

    Raises:
        DataError: The hash of the content differs from the archive's name.
    """
    sha256 = code_hash(code)
    try:
        tar = gzip.decompress(content)
    except (OSError, EOFError):
        tar = b""
    if hashlib.sha256(tar).hexdigest() != sha256:
        raise DataError(
            f"the archive of own code {code.path} was changed: its content has another hash than its name",
            allowed="an unchanged archive of the line",
            todo="delete it, and run the same command again: it is packed again from your code.path",
        )
    target = user_cache(CODE_FOLDER) / sha256
    if target.is_dir() and _has_exactly(target, tar):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=".new-"))
    except OSError:
        # There is no writable home.
        scratch = Path(tempfile.mkdtemp(prefix="shardline-code-"))
        target = scratch / "files"
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        archive.extractall(scratch / "files", filter="data")
    if target.parent == scratch:
        return target
    if not _has_exactly(target, tar):
        # Its files were changed.
        shutil.rmtree(target, ignore_errors=True)
    # Fails if another process has unpacked the same archive meanwhile.
    with contextlib.suppress(OSError):
        (scratch / "files").rename(target)
    shutil.rmtree(scratch, ignore_errors=True)
    return target


def _has_exactly(folder: Path, tar: bytes) -> bool:
    """Whether a folder holds the files of a tar file, and no other modules."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        files = {folder / member.name: archive.extractfile(member) for member in archive}
        if any(path not in files for path in folder.rglob("*.py")):
            return False
        try:
            return all(file is not None and path.read_bytes() == file.read() for path, file in files.items())
        except OSError:
            return False


# The folder of own code of this process.
_folders: list[Path] = []


def append_code(folder: Path) -> None:
    """Append a folder to the end of sys.path, so that it cannot shadow modules of this project or of libraries."""
    former = code_folder()
    if former is not None and former != folder:
        # Unload the modules of the former folder.
        for name, module in list(sys.modules.items()):
            if Path(getattr(module, "__file__", None) or "/").is_relative_to(former):
                del sys.modules[name]
        importlib.invalidate_caches()
    sys.path[:] = [entry for entry in sys.path if entry not in (str(former), str(folder))]
    sys.path.append(str(folder))
    _folders[:] = [folder]


def code_folder() -> Path | None:
    """Return the folder of own code that this process has installed, or None."""
    return _folders[-1] if _folders else None


def _may_be_code(name: str) -> bool:
    return not name.startswith(".") and name not in ("__pycache__", "node_modules") and not name.endswith(".pyc")


def _refuse_unreadable(error: OSError) -> None:
    raise ConfigError(
        f"{error.filename}, below code.path, cannot be read ({error.strerror})",
        allowed="files and folders that you may read",
        todo="correct its permissions, or set code.path to another folder",
    ) from None
