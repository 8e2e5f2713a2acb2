"""Environment of a process: home, user name and cache folder, proxies, encoding of the output streams."""

from __future__ import annotations

import codecs
import getpass
import io
import os
import stat
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

_CACHE_VARIABLE = "SHARDLINE_CACHE_DIR"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
# Of getpass.getuser.
_USER_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")
_ESCAPES = "shardline-escape"


def settle() -> None:
    """Complete the environment of this process and its children: home, user name, output streams that never fail."""
    spare_loopback(os.environ)
    _set_user_name()
    _set_home()
    codecs.register_error(_ESCAPES, _escape)
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot encode must not fail a finished run.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=_ESCAPES)


def user_cache(name: str) -> Path:
    """Return the path of a cache folder: in SHARDLINE_CACHE_DIR, by default ~/.cache/shardline (XDG_CACHE_HOME)."""
    if folder := os.environ.get(_CACHE_VARIABLE):
        return Path(folder) / name
    return _caches() / "shardline" / name


def spare_loopback(environment: MutableMapping[str, str]) -> None:
    """Exempt this machine from proxies: Beam's workers, and a rehearsal's services, are at 127.0.0.1."""
    if not any(environment.get(name) or environment.get(name.upper()) for name in _PROXIES):
        return
    # gRPC reads the lower-case variable only.
    exempt = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = dict.fromkeys([*(host.strip() for host in exempt.split(",") if host.strip()), *_LOOPBACK])
    if "*" not in hosts:
        environment["no_proxy"] = environment["NO_PROXY"] = ",".join(hosts)


def _set_user_name() -> None:
    """Set a user name if there is none: libraries such as torch.compile name folders after it."""
    if any(os.environ.get(name) for name in _USER_NAMES):
        return
    try:
        getpass.getuser()
    except (KeyError, OSError, ImportError):
        os.environ["LOGNAME"] = f"user-{os.getuid()}"


def _set_home() -> None:
    """Set a folder for caches if there is no writable home."""
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = str(_private_folder())
        return
    caches = _caches().absolute()
    # Path.exists would raise for a folder without permission.
    nearest = next(folder for folder in (caches, *caches.parents) if os.path.exists(folder))  # noqa: PTH110
    if not os.access(nearest, os.W_OK):
        os.environ["XDG_CACHE_HOME"] = str(_private_folder())


def _caches() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _private_folder() -> Path:
    """Return a folder that only this user may write, since own code is imported from it."""
    folder = Path(tempfile.gettempdir()) / f"shardline-home-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if is_private else Path(tempfile.mkdtemp(prefix="shardline-home-"))


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Replace text that a stream cannot encode by escapes, and a no-break space by a space."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return text.replace("\xa0", " ").encode("ascii", "backslashreplace").decode(), error.end
