"""Sockets of machines that measure together (machines.py): ports, keep-alive."""

from __future__ import annotations

import errno
import socket
import sys
import time

from contracts.errors import ConfigError
from trainer.launch.nodes import Nodes

# A machine that says nothing for this long, not even by its kernel, is gone.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 5, 5, 3
_LOST_MS = 20_000
# A process that was killed a moment ago may still hold the port.
_PORT_TIMEOUT_S, _RETRY_S = 15.0, 0.2
# The stores of the ranks take turns on this many ports above that of the machines: no dead store is met.
STORE_PORTS = 16


def store_port(nodes: Nodes, generation: int) -> int:
    """Return the port of the first machine for the ranks' store of a start."""
    return nodes.port + 1 + generation % STORE_PORTS


def listen_patiently(port: int) -> socket.socket:
    """Listen on a port that a process which was killed a moment ago may still hold.

    Raises:
        ConfigError: It is another process's.
    """
    deadline = time.monotonic() + _PORT_TIMEOUT_S
    while True:
        try:
            return listen(port)
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"port {port} of this machine, on which launchers meet, cannot be used ({error.strerror})",
                    allowed="a port that no other process has",
                    todo="set resources.port to another one, the same on all machines",
                ) from None
        time.sleep(_RETRY_S)


def keep_alive(stream: socket.socket) -> None:
    """Have the kernel find a peer whose machine is gone without a word."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform.startswith("linux"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
        # Of what was sent and not acknowledged: keep-alive does not run then.
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_MS)


def listen(port: int) -> socket.socket:
    """Listen on all addresses of this machine."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("", port), backlog=1024)
