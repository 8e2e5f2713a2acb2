"""The CONNECT proxy: who may pass, and where to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

_ALLOWED = re.compile(r"[a-z0-9-]+\.googleapis\.com:443", re.IGNORECASE)


@dataclass(frozen=True)
class ProxyRequest:
    """One request to the proxy."""

    target: str
    """HOST:PORT, or the URL of a request that was none for a tunnel."""
    allowed: bool
    method: str = "CONNECT"


async def serve_proxy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    tls_port: int,
    pump: Callable[..., object],
    log: Callable[[ProxyRequest], None],
) -> None:
    """Answer one client: a tunnel to the TLS port for Google's hosts, 403 for everything else."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return
    method, target = [*head.split(b"\r\n", 1)[0].decode("latin-1").split(" "), "", ""][:2]
    allowed = method == "CONNECT" and _ALLOWED.fullmatch(target) is not None
    log(ProxyRequest(target, allowed, method))
    if not allowed:
        text = f"{target} is outside this rehearsal: only *.googleapis.com:443 is inside\n"
        writer.write(
            f"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
            f"Connection: close\r\n\r\n{text}".encode()
        )
        await writer.drain()
        return
    up_reader, up_writer = await asyncio.open_connection("127.0.0.1", tls_port)
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    await pump(reader, writer, up_reader, up_writer)  # type: ignore[misc]
