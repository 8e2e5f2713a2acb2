"""Machines on the loopback: the metadata server by Google's own library, the notice, names."""

from __future__ import annotations

import sys
import time

import pytest

from rehearsal.machines.network import Network
from rehearsal.machines.processes import clean_environment
from tests.rehearsal.machines.conftest import IDENTITY, LIMIT_S, Machines

GOOGLE_AUTH = """
import google.auth, google.auth.transport.requests, sys
credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
credentials.refresh(google.auth.transport.requests.Request())
print(type(credentials).__module__, project, credentials.token, credentials.service_account_email)
"""
WATCH = """
import sys, threading
from trainer.supervise.notice import NoticeWatch, metadata_host
told = threading.Event()
NoticeWatch(metadata_host(), told.set, print)
print("watching", flush=True)
assert told.wait(100)
print("told", flush=True)
"""


def wait_for(lines: list[str], text: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not any(text in line for line in lines):
        assert time.monotonic() < deadline, lines
        time.sleep(0.02)


def test_a_name_is_free_again_when_its_machine_is_gone(network: Network) -> None:
    for _ in range(8):
        host = network.add("worker-0", IDENTITY)
        with pytest.raises(ValueError, match="there is a machine worker-0 already"):
            network.add("worker-0", IDENTITY)
        host.close()


def test_googles_library_finds_the_machines_account(machines: Machines, network: Network) -> None:
    code, lines = machines.run(network.add("worker-0", IDENTITY), sys.executable, "-c", GOOGLE_AUTH)
    token = "token-of-this-rehearsal"
    assert (code, lines[-1:]) == (0, [f"google.auth.compute_engine.credentials p123-tp {token} {IDENTITY.email}"])


def test_the_trainings_own_watch_is_told_of_a_preemption(machines: Machines, network: Network) -> None:
    host, other = network.add("worker-0", IDENTITY), network.add("worker-1", IDENTITY)
    lines: list[str] = []
    tree = host.start(
        [sys.executable, "-c", WATCH], environment=clean_environment(), folder=machines.folder, on_line=lines.append
    )
    wait_for(lines, "watching")
    other.give_notice()
    assert tree.wait(1.0) is None
    host.give_notice()
    assert tree.wait(LIMIT_S) == 0
    assert lines == ["watching", "told"]


def test_who_asks_the_metadata_server_as_no_machine_does_is_refused(machines: Machines, network: Network) -> None:
    host = network.add("worker-0", IDENTITY)
    url = f"http://{host.environment['GCE_METADATA_HOST']}/computeMetadata/v1/project/project-id"
    ask = ["curl", "-sS", "-w", " %{http_code}", url]
    assert machines.run(host, *ask, "-H", "Metadata-Flavor: Google")[1] == ["p123-tp 200"]
    for header in ("X: y", "X-Forwarded-For: 10.0.0.1", "Host: evil.example", "Origin: http://evil.example"):
        flavor = [] if header == "X: y" else ["-H", "Metadata-Flavor: Google"]
        assert machines.run(host, *ask, *flavor, "-H", header)[1][-1] == " 403"
    assert len(machines.refused) == 4
