"""The HTTP server: faults of a site are kept and told, bodies are streams, an end is an end."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from rehearsal.servers.http import Request, Response, Send
from rehearsal.servers.http_server import HttpServer
from rehearsal.vertex import custom_jobs

from ..vertex.conftest import PARENT, Cloud


def serve(request: Request, send: Send) -> None:
    """Answer /well, break at /broken before an answer and at /late after it."""
    if request.path == "/broken":
        raise KeyError("a fault of ours")
    send(Response(200, {}, b"well"))
    if request.path == "/late":
        raise KeyError("a late fault of ours")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    found = HttpServer(serve, [])
    found.start()
    yield found
    found.stop()


def test_a_fault_is_told_as_internal_and_kept(server: HttpServer) -> None:
    answer = requests.get(f"{server.endpoint}/broken", timeout=30)
    assert (answer.status_code, answer.json()["error"]["status"]) == (500, "INTERNAL")
    assert len(server.failures) == 1 and "a fault of ours" in server.failures[0]
    assert requests.get(f"{server.endpoint}/late", timeout=30).text == "well"
    assert requests.get(f"{server.endpoint}/well", timeout=30).text == "well"
    deadline = time.monotonic() + 30
    while len(server.failures) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(server.failures) == 2 and "a late fault of ours" in server.failures[1]


def test_the_cloud_tells_its_own_faults_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise ZeroDivisionError("of a method")

    monkeypatch.setitem(custom_jobs.METHODS, "GetCustomJob", break_down)
    cloud = Cloud(tmp_path / "cloud")
    cloud.server.start()
    headers = {"Authorization": f"Bearer {cloud.server.access.token}"}
    answer = requests.get(f"{cloud.server.endpoint}/v1/{PARENT}/customJobs/1", headers=headers, timeout=30)
    assert answer.status_code == 500
    with pytest.raises(RuntimeError, match="ZeroDivisionError: of a method"):
        cloud.server.stop()
