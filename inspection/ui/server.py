"""Listens, says where, and ends at Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from contracts import storage
from contracts.errors import ConfigError
from inspection.run.find import list_places
from inspection.ui.app import build_app
from inspection.ui.guard import allowed_hosts, is_loopback
from inspection.ui.store import RunStore

_INTERRUPTED = 130
_BACKLOG = 128


class _Server(uvicorn.Server):
    """Uvicorn that ends with its process: nothing is written, so nothing has to be waited for."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals as they are."""
        yield


def serve(
    root: str,
    *,
    host: str,
    port: int,
    allow_hosts: tuple[str, ...] = (),
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C, which ends the process with 130, whatever is being read.

    Args:
        root: Path or URI of the folder that holds lines, or of one line.
        host: Name or address to listen on.
        port: 0 takes a free one.
        allow_hosts: Names that it may be asked for besides its own.
        say: Is told the address of the list, once it answers.
        warn: Is told what the user should know.

    Raises:
        ConfigError: The root is not there, nothing can listen there, or a name is none.
        StorageError: The root cannot be read.
    """
    list_places(root)
    listener = listen(host, port)
    address = listener.getsockname()[0]
    try:
        hosts = allowed_hosts(host, address, allow_hosts)
    except ConfigError:
        listener.close()
        raise
    if not is_loopback(address):
        warn(f"warning: there is no login: who reaches {address} reads every run below {storage.display(root)}")
    app = build_app(RunStore(root), hosts=hosts)
    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", server_header=False, date_header=False, ws="none"
    )
    signal.signal(signal.SIGINT, _end)
    say(_url(host, listener))
    _Server(config).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: Name or address.
        port: 0 takes a free one.

    Raises:
        ConfigError: Nothing can listen there.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # From here on a request is answered, if later.
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen there: {getattr(error, 'strerror', None) or error}",
            allowed="an address of this machine and a port that is free",
            todo="end what listens there, or give --port 0 for a free one",
        ) from None
    return listener


def _url(host: str, listener: socket.socket) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}/"


def _end(*_: object) -> None:
    # At once: a thread may wait for a bucket, and the interpreter would wait for the thread.
    os._exit(_INTERRUPTED)
