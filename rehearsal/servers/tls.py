"""TLS for Google's host names: a certificate, a CONNECT proxy, and a TLS port that relays by ALPN.

The proxy (https_proxy) tunnels *.googleapis.com:443 to the TLS port; other hosts get 403. The TLS port relays h2 to the
gRPC server and HTTP/1.1 to the REST server. All run on one asyncio loop in one thread, since a TLS connection must not
be read and written by two threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import ssl
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rehearsal.servers.access import make_private, write_private

HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 16
_ALLOWED = re.compile(r"[a-z0-9-]+\.googleapis\.com:443", re.IGNORECASE)
# The wildcard covers one label, e.g. REGION-aiplatform.
_NAMES = "*.googleapis.com"
_VALID = datetime.timedelta(days=30)


@dataclass(frozen=True)
class Certificate:
    """PEM files of the server's certificate, which clients trust, and its key."""

    path: Path
    key: Path


def write_certificate(folder: Path) -> Certificate:
    """Write a new self-signed certificate (not a CA) and its key to `folder`."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shardline rehearsal")])
    # Starts an hour ago, to tolerate adjustments of the system clock.
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + _VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAMES)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    make_private(folder)
    certificate = Certificate(folder / "server.pem", folder / "server.key")
    certificate.path.write_bytes(signed.public_bytes(Encoding.PEM))
    write_private(certificate.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate


class TlsProxy:
    """CONNECT proxy and TLS port on loopback, in front of a gRPC and an HTTP server.

    Relays h2 to `grpc_port` and HTTP/1.1 to `http_port`, without TLS. `on_request` is called in the proxy's thread with
    method, target and whether it was allowed.
    """

    def __init__(
        self, certificate: Certificate, *, grpc_port: int, http_port: int, on_request: Callable[[str, str, bool], None]
    ) -> None:
        self._on_request = on_request
        self._ports = {"h2": grpc_port, "http/1.1": http_port}
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate.path, certificate.key)
        self._tls.set_alpn_protocols(["h2", "http/1.1"])
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self.tls_port = self.proxy_port = 0

    @property
    def url(self) -> str:
        """The proxy's address, for https_proxy."""
        return f"http://{HOST}:{self.proxy_port}"

    def start(self) -> Self:
        """Start listening; OSError if the ports are not available."""
        self._loop = asyncio.new_event_loop()
        try:
            self._loop.run_until_complete(self._listen())
        except OSError:
            self._loop.close()
            raise
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls-proxy", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End all connections and stop listening."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        def spawned(serve: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = self._loop.create_task(_serve_and_close(serve(reader, writer), writer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

            return accept

        tls = await asyncio.start_server(spawned(self._serve_tls), HOST, 0, ssl=self._tls)
        proxy = await asyncio.start_server(spawned(self._serve_proxy), HOST, 0)
        self._servers = [tls, proxy]
        self.tls_port, self.proxy_port = (server.sockets[0].getsockname()[1] for server in self._servers)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve_tls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Clients without ALPN use HTTP/1.1.
        protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol() or "http/1.1"
        await _relay(reader, writer, self._ports[protocol])

    async def _serve_proxy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        method, target = [*head.split(b"\r\n", 1)[0].decode("latin-1").split(" "), "", ""][:2]
        allowed = method == "CONNECT" and _ALLOWED.fullmatch(target) is not None
        self._on_request(method, target, allowed)
        if allowed:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await _relay(reader, writer, self.tls_port)
            return
        text = f"{target} is outside this rehearsal: only *.googleapis.com:443 is inside\n"
        head_lines = "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nConnection: close\r\n"
        writer.write(f"{head_lines}Content-Length: {len(text)}\r\n\r\n{text}".encode())
        await writer.drain()


async def _serve_and_close(work: Coroutine[Any, Any, None], writer: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError):
            await work
    finally:
        writer.close()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Relay bytes between a client and a local port until either side closes."""
    up_reader, up_writer = await asyncio.open_connection(HOST, port)
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
