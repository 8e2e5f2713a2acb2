"""The metadata server's notice, from a small server that answers as Compute Engine's does."""

import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trainer.supervise import notice
from trainer.supervise.notice import HOST_VARIABLE, NoticeWatch, metadata_host


class MetadataServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.value, self.failures = "FALSE", 0
        self.changed = threading.Condition()
        self.queries: list[dict[str, list[str]]] = []
        self.flavors: list[str | None] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def preempt(self) -> None:
        with self.changed:
            self.value = "TRUE"
            self.changed.notify_all()

    def wait_for_queries(self, number: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.queries) >= number, timeout=60)


class Handler(BaseHTTPRequestHandler):
    server: MetadataServer

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(parts.query)
        server = self.server
        with server.changed:
            server.queries.append(query)
            server.flavors.append(self.headers.get("Metadata-Flavor"))
            server.changed.notify_all()
            if server.failures:
                server.failures -= 1
                self.send_error(503)
                return
            if query.get("wait_for_change") == ["true"] and query.get("last_etag") == [f"etag-{server.value}"]:
                before = server.value
                server.changed.wait_for(lambda: server.value != before, timeout=float(query["timeout_sec"][0]))
            content = server.value.encode()
        known = parts.path == "/computeMetadata/v1/instance/preempted"
        self.send_response(200 if known else 404)
        self.send_header("ETag", f"etag-{server.value}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.preempt()
        server.shutdown()


def watch(server: MetadataServer) -> tuple[threading.Event, list[str]]:
    noticed, said = threading.Event(), list[str]()
    NoticeWatch(server.address, noticed.set, said.append)
    return noticed, said


def test_a_notice_is_heard_by_one_long_poll(server: MetadataServer) -> None:
    noticed, _ = watch(server)
    server.wait_for_queries(2)
    assert not noticed.is_set()
    server.preempt()
    assert noticed.wait(60)
    assert server.queries[0] == {}
    assert server.queries[1] == {"wait_for_change": ["true"], "last_etag": ["etag-FALSE"], "timeout_sec": ["60"]}
    assert len(server.queries) == 2
    assert set(server.flavors) == {"Google"}


def test_a_notice_from_before_is_heard(server: MetadataServer) -> None:
    server.preempt()
    assert watch(server)[0].wait(60)


def test_a_server_that_fails_is_asked_again(server: MetadataServer) -> None:
    server.failures = 1
    noticed, said = watch(server)
    server.wait_for_queries(3)
    server.preempt()
    assert noticed.wait(60)
    assert said == []


def test_the_variable_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOST_VARIABLE, "127.0.0.1:8080")
    assert metadata_host() == "127.0.0.1:8080"


def test_the_hosts_file_names_the_server_where_the_products_name_is_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(HOST_VARIABLE, raising=False)
    monkeypatch.setattr(notice, "_PRODUCT_PATH", tmp_path / "none")
    monkeypatch.setattr(notice, "_HOSTS_PATH", tmp_path / "hosts")
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n# 169.254.169.254 metadata.google.internal\n")
    assert metadata_host() is None
    (tmp_path / "hosts").write_text("169.254.169.254 metadata.google.internal  # Added by Google\n")
    assert metadata_host() == "metadata.google.internal"
