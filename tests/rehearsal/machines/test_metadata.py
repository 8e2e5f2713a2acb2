"""The metadata server of a machine: by Google's own library and the training's, and who is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from rehearsal.machines.metadata import Identity, MetadataServer
from rehearsal.machines.processes import ProcessTree, clean_environment
from tests.rehearsal.world import LIMIT_S, wait_until

TOKEN = "token-of-this-rehearsal"
IDENTITY = Identity("p123-tp", "123", "us-central1-a", "n1-standard-4", "runner@acme", lambda: TOKEN)
FLAVOR = {"Metadata-Flavor": "Google"}
GOOGLE_AUTH = """
import google.auth, google.auth.transport.requests, sys
credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
credentials.refresh(google.auth.transport.requests.Request())
print(type(credentials).__module__, project, credentials.token, credentials.service_account_email)
"""
WATCH = """
import threading
from trainer.supervise.notice import NoticeWatch, metadata_host
noticed = threading.Event()
NoticeWatch(metadata_host(), noticed.set, print)
print("watching", flush=True)
assert noticed.wait(100)
print("noticed", flush=True)
"""


@pytest.fixture
def refused() -> list[str]:
    return []


@pytest.fixture
def make_server(refused: list[str]) -> Iterator[Callable[[str], MetadataServer]]:
    made: list[MetadataServer] = []

    def make(name: str) -> MetadataServer:
        made.append(MetadataServer(name, IDENTITY, refused.append))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def server(make_server: Callable[[str], MetadataServer]) -> MetadataServer:
    return make_server("worker-0")


def start(server: MetadataServer, folder: Path, code: str) -> tuple[ProcessTree, list[str]]:
    lines: list[str] = []
    environment = clean_environment(server.environment)
    return ProcessTree(["python", "-c", code], environment=environment, folder=folder, on_line=lines.append), lines


def url_of(server: MetadataServer, path: str) -> str:
    return f"http://{server.environment['GCE_METADATA_HOST']}/computeMetadata/v1/{path}"


def test_googles_library_finds_the_machines_account(server: MetadataServer, tmp_path: Path) -> None:
    tree, lines = start(server, tmp_path, GOOGLE_AUTH)
    assert tree.wait(LIMIT_S) == 0, lines
    assert lines[-1] == f"google.auth.compute_engine.credentials p123-tp {TOKEN} {IDENTITY.email}"


def test_the_trainings_own_watch_hears_of_a_preemption(
    server: MetadataServer, make_server: Callable[[str], MetadataServer], tmp_path: Path
) -> None:
    tree, lines = start(server, tmp_path, WATCH)
    wait_until(lambda: lines == ["watching"])
    make_server("worker-1").preempt()
    assert tree.wait(1.0) is None
    server.preempt()
    assert tree.wait(LIMIT_S) == 0
    assert lines == ["watching", "noticed"]


def test_who_asks_as_no_process_of_the_machine_does_is_refused(server: MetadataServer, refused: list[str]) -> None:
    url = url_of(server, "project/project-id")
    answer = requests.get(url, headers=FLAVOR, timeout=60)
    assert (answer.status_code, answer.text) == (200, "p123-tp")
    for wrong in ({"X-Forwarded-For": "10.0.0.1"}, {"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        assert requests.get(url, headers=FLAVOR | wrong, timeout=60).status_code == 403
    assert requests.get(url, timeout=60).status_code == 403
    assert requests.post(url, headers=FLAVOR, timeout=60).status_code == 403
    assert len(refused) == 5


@pytest.mark.parametrize("secret", ["", "guess/"])
def test_another_user_of_this_computer_has_no_token(server: MetadataServer, refused: list[str], secret: str) -> None:
    """Who may not read the machine's environment does not know its path: on Linux, and where there is no /proc."""
    host = server.environment["GCE_METADATA_HOST"].partition("/")[0]
    token = f"http://{host}/{secret}computeMetadata/v1/instance/service-accounts/default/token"
    answer = requests.get(token, headers=FLAVOR, timeout=60)
    assert answer.status_code == 403 and TOKEN not in answer.text
    url = url_of(server, "instance/service-accounts/default/token")
    assert TOKEN in requests.get(url, headers=FLAVOR, timeout=60).text
    assert len(refused) == 1
