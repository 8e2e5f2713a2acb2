"""The guard's event loop: a proxy port and a TLS port in one thread, bytes passed on as they come.

An asyncio loop and no threads a connection: one TLS connection must not be read and written by two threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Self

from rehearsal.guard.certificate import Certificate
from rehearsal.guard.proxy import ProxyRequest, serve_proxy

HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 16
_MAX_REQUESTS = 100_000


class Guard:
    """A CONNECT proxy in front of a TLS port in front of a gRPC and an HTTP server, all on loopback.

    Args:
        certificate: What the TLS port shows.
        grpc_port: Where h2 is relayed to, without TLS.
        http_port: Where HTTP/1.1 is relayed to, without TLS.
        on_request: Told of every request to the proxy, in the guard's thread.
    """

    def __init__(
        self,
        certificate: Certificate,
        *,
        grpc_port: int,
        http_port: int,
        on_request: Callable[[ProxyRequest], None] = lambda request: None,
    ) -> None:
        self.proxied: deque[ProxyRequest] = deque(maxlen=_MAX_REQUESTS)
        """The newest requests to the proxy, refused ones too."""
        self._on_request = on_request
        self._ports = {"h2": grpc_port, "http/1.1": http_port}
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate.chain, certificate.key)
        self._tls.set_alpn_protocols(["h2", "http/1.1"])
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)
        self.tls_port = self.proxy_port = 0

    @property
    def proxy(self) -> str:
        """The proxy's address, for https_proxy."""
        return f"http://{HOST}:{self.proxy_port}"

    def start(self) -> Self:
        """Begin to listen."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        self._ready.wait()
        return self

    def stop(self) -> None:
        """End all connections and stop listening."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()

    async def _listen(self) -> None:
        tls = await asyncio.start_server(self._accept_tls, HOST, 0, ssl=self._tls)
        proxy = await asyncio.start_server(self._accept_proxy, HOST, 0)
        self._servers = [tls, proxy]
        self.tls_port, self.proxy_port = (server.sockets[0].getsockname()[1] for server in self._servers)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept_tls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._spawn(self._serve_tls(reader, writer), writer)

    def _accept_proxy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._spawn(serve_proxy(reader, writer, self.tls_port, _pump, self._passed), writer)

    def _passed(self, request: ProxyRequest) -> None:
        self.proxied.append(request)
        self._on_request(request)

    async def _serve_tls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Clients that negotiate nothing speak HTTP/1.1.
        protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol() or "http/1.1"
        up_reader, up_writer = await asyncio.open_connection(HOST, self._ports[protocol])
        await _pump(reader, writer, up_reader, up_writer)

    def _spawn(self, work: Coroutine[Any, Any, None], writer: asyncio.StreamWriter) -> None:
        async def run() -> None:
            try:
                with contextlib.suppress(OSError):
                    await work
            finally:
                writer.close()

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    up_reader: asyncio.StreamReader,
    up_writer: asyncio.StreamWriter,
) -> None:
    """Pass bytes both ways until either side ends."""
    ways = [asyncio.ensure_future(_pass(reader, up_writer)), asyncio.ensure_future(_pass(up_reader, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        up_writer.close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK_BYTES):
            sink.write(data)
            await sink.drain()
