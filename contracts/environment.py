"""What a process takes for granted and may not find: a home, a name, a way to itself, a stream that takes all text."""

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

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
# As getpass asks for them.
_USERS = ("LOGNAME", "USER", "LNAME", "USERNAME")


def settle() -> None:
    """Make up for what this process, and those that it starts, would stumble over."""
    spare_loopback(os.environ)
    _provide_name()
    _provide_home()
    for stream in (sys.stdout, sys.stderr):
        # What a stream cannot write ends nothing: a run that is done is not to fail by a table.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=_REPLACE)


def spare_loopback(environment: MutableMapping[str, str]) -> None:
    """Let nobody ask a proxy for this machine itself: Beam's workers, and a rehearsal's services, are at 127.0.0.1."""
    if not any(environment.get(name) or environment.get(name.upper()) for name in _PROXIES):
        return
    # Of the two, gRPC knows the one in small letters alone.
    given = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = dict.fromkeys([*(host.strip() for host in given.split(",") if host.strip()), *_LOOPBACK])
    if "*" not in hosts:
        environment["no_proxy"] = environment["NO_PROXY"] = ",".join(hosts)


def _provide_name() -> None:
    """Name a user without a name: libraries, torch.compile among them, name folders by it."""
    if any(os.environ.get(name) for name in _USERS):
        return
    try:
        getpass.getuser()
    except (KeyError, OSError, ImportError):
        os.environ["LOGNAME"] = f"user-{os.getuid()}"


def _provide_home() -> None:
    """Give a user without a home, or with one that cannot be written, a place for caches."""
    try:
        home = Path.home()
    except RuntimeError:
        os.environ["HOME"] = str(_own_folder())
        return
    caches = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    # A folder that may not be looked into is none to this user: Path.exists would raise.
    nearest = next(folder for folder in (caches, *caches.absolute().parents) if os.path.exists(folder))  # noqa: PTH110
    if not os.access(nearest, os.W_OK):
        os.environ["XDG_CACHE_HOME"] = str(_own_folder())


def _own_folder() -> Path:
    """Return a folder that nobody else may write: own code is imported from below it."""
    folder = Path(tempfile.gettempdir()) / f"shardline-home-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    is_ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
    return folder if is_ours else Path(tempfile.mkdtemp(prefix="shardline-home-"))


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    # The space that keeps a number and its unit together is a space.
    return text.replace("\xa0", " ").encode("ascii", "backslashreplace").decode(), error.end


_REPLACE = "shardline-escape"
codecs.register_error(_REPLACE, _escape)
