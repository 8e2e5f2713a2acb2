"""What launchers of a job say to each other: one JSON object a line over TCP, and the sockets that carry it.

The kernel finds a peer whose machine is gone without a word (keep-alive); a process that is only slow is not lost.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import select
import socket
import struct
import sys
from collections import deque
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from contracts.errors import ErrorDocument

# A machine that says nothing for this long, not even by its kernel, is gone.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 5, 5, 3
_LOST_MS = 20_000
_LINE_BYTES = 1 << 20
_SIOCGIFADDR = 0x8915


class ConnectionLost(Exception):
    """The other side is gone, or says what cannot be understood."""


class Message(BaseModel):
    """One line. To the first machine: hello, ended. From it: start, stop, finished, over."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["hello", "ended", "start", "stop", "finished", "over"]
    generation: int = -1
    """hello: the newest that this launcher knows; else the one that is meant."""
    node_rank: int = -1
    job: str = ""
    """hello: what must be equal on all machines."""
    output: str = ""
    """hello: URI of the training folder."""
    token: str = ""
    """hello: what this machine has just written there (trainer/launch/shared_output.py)."""
    attempt: str = ""
    """start: the first machine's."""
    document: ErrorDocument | None = None
    """hello: why this machine cannot write to its output; ended: why its ranks ended, if one said so; over: why the job
    must not go on."""


class Connection:
    """A socket that carries messages."""

    def __init__(self, stream: socket.socket) -> None:
        self.socket = stream
        self._received = b""
        self._messages: deque[Message] = deque()
        keep_alive(stream)

    def fileno(self) -> int:
        """For select."""
        return self.socket.fileno()

    def send(self, message: Message) -> None:
        """Send one message; a few hundred bytes, which the kernel takes at once."""
        try:
            self.socket.sendall(message.model_dump_json(exclude_defaults=True).encode() + b"\n")
        except OSError as error:
            raise ConnectionLost(str(error)) from None

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message; None when there is none within a time.

        Raises:
            ConnectionLost: The other side has closed the connection, or is gone.
        """
        if not self._messages:
            self._read(timeout_s)
        return self._messages.popleft() if self._messages else None

    def _read(self, timeout_s: float) -> None:
        try:
            if not select.select([self.socket], [], [], timeout_s)[0]:
                return
            piece = self.socket.recv(1 << 16)
        except (OSError, ValueError) as error:
            raise ConnectionLost(str(error)) from None
        if not piece:
            raise ConnectionLost("it has closed the connection")
        *lines, self._received = (self._received + piece).split(b"\n")
        if len(self._received) > _LINE_BYTES:
            raise ConnectionLost("it sends no lines")
        try:
            self._messages.extend(Message.model_validate_json(line) for line in lines)
        except ValidationError:
            raise ConnectionLost("it sends what no launcher of this version sends") from None

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


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


def find_interface(address: str) -> str | None:
    """Return the network interface that has an IPv4 address; None when there is none, or it cannot be found out."""
    if not sys.platform.startswith("linux"):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
