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
    """Complete the environment of this process and its children: a home, a user name, streams that take all text."""
    spare_loopback(os.environ)
    _provide_user_name()
    _provide_home()
    codecs.register_error(_ESCAPES, _escape)
    for stream in (sys.stdout, sys.stderr):
        # A table that the terminal cannot show must not fail a finished run.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=_ESCAPES)


def user_cache(name: str) -> Path:
    """Return the path of one cache of the user, which need not exist.

    It lies in SHARDLINE_CACHE_DIR, by default ~/.cache/shardline (XDG_CACHE_HOME).
    """
    if given := os.environ.get(_CACHE_VARIABLE):
        return Path(given) / name
    return _caches() / "shardline" / name


def spare_loopback(environment: MutableMapping[str, str]) -> None:
    """Exempt this machine from proxies: Beam's workers, and a rehearsal's services, are at 127.0.0.1."""
    if not any(environment.get(name) or environment.get(name.upper()) for name in _PROXIES):
        return
    # gRPC reads the lower-case one alone.
    given = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = dict.fromkeys([*(host.strip() for host in given.split(",") if host.strip()), *_LOOPBACK])
    if "*" not in hosts:
        environment["no_proxy"] = environment["NO_PROXY"] = ",".join(hosts)


def _provide_user_name() -> None:
    """Name a user without a name: libraries, torch.compile among them, name folders after it."""
    if any(os.environ.get(name) for name in _USER_NAMES):
        return
    try:
        getpass.getuser()
    except (KeyError, OSError, ImportError):
        os.environ["LOGNAME"] = f"user-{os.getuid()}"


def _provide_home() -> None:
    """Give a user without a home, or with one that cannot be written, a folder for caches."""
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = str(_own_folder())
        return
    caches = _caches().absolute()
    # os.path.exists: of a folder that this user may not look into, Path.exists would raise.
    nearest = next(folder for folder in (caches, *caches.parents) if os.path.exists(folder))  # noqa: PTH110
    if not os.access(nearest, os.W_OK):
        os.environ["XDG_CACHE_HOME"] = str(_own_folder())


def _caches() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _own_folder() -> Path:
    """Return a folder that nobody else may write: own code is imported from below it."""
    folder = Path(tempfile.gettempdir()) / f"shardline-home-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    is_ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
    return folder if is_ours else Path(tempfile.mkdtemp(prefix="shardline-home-"))


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for text that a stream cannot encode: escapes, and a space for a no-break space."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return text.replace("\xa0", " ").encode("ascii", "backslashreplace").decode(), error.end
