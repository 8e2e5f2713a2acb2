"""The metadata server of a machine: this user has the token, another has not."""

import contextlib
import os
import socket
import subprocess
import sys

import pytest
import requests

from rehearsal.machines.metadata import Identity
from rehearsal.machines.network import Network

NOBODY = 65534
REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata-Flavor: Google\r\n\r\n"

# Another user cannot always execute this interpreter: it becomes that user after its imports.
CLIENT = """
import encodings.idna, http.client, json, os, sys
address, user = sys.argv[1], int(sys.argv[2])
if user != os.getuid():
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
connection = http.client.HTTPConnection(address, timeout=30)
path = "/computeMetadata/v1/instance/service-accounts/default/token"
try:
    connection.request("GET", path, headers={"Metadata-Flavor": "Google"})
    print(json.loads(connection.getresponse().read())["access_token"])
except (http.client.HTTPException, OSError) as error:
    print(type(error).__name__)
"""


def ask(user: int) -> str:
    identity = Identity("acme", "1", "us-central1-a", "n1-standard-4", "runner@acme", lambda: "the-token")
    with Network(refuse=print) as network:
        address = network.add("worker-0", identity).environment["GCE_METADATA_HOST"]
        words = [sys.executable, "-I", "-c", CLIENT, address, str(user)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_account_that_is_not_the_machines_is_not_found() -> None:
    identity = Identity("acme", "1", "us-central1-a", "n1-standard-4", "runner@acme", lambda: "the-token")
    found = {}
    with Network(refuse=print) as network:
        address = network.add("worker-0", identity).environment["GCE_METADATA_HOST"]
        for account in ("default", "runner@acme", "another@acme"):
            for key in ("token", "scopes", "email"):
                url = f"http://{address}/computeMetadata/v1/instance/service-accounts/{account}/{key}"
                answer = requests.get(url, headers={"Metadata-Flavor": "Google"}, timeout=60)
                found[account, key] = answer.status_code
    assert {account for (account, _), status in found.items() if status == 200} == {"default", "runner@acme"}
    assert [status for (account, _), status in found.items() if account == "another@acme"] == [404] * 3


def test_connections_end_with_the_machine() -> None:
    identity = Identity("acme", "1", "us-central1-a", "n1-standard-4", "runner@acme", lambda: "the-token")
    with Network(refuse=print) as network:
        machine, other = (network.add(name, identity) for name in ("worker-0", "worker-1"))
        hosts = [one.environment["GCE_METADATA_HOST"].split(":") for one in (machine, other)]
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(socket.create_connection((host, int(port)))) for host, port in hosts]
            for connection in connections:
                connection.settimeout(60)
                connection.sendall(REQUEST)
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            machine.close()
            # An end, or a reset: nobody answers any more.
            with contextlib.suppress(ConnectionError):
                assert connections[0].recv(1) == b""
            connections[1].sendall(REQUEST)
            assert connections[1].recv(1 << 16).startswith(b"HTTP/1.1 200 ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_gets_nothing() -> None:
    assert ask(NOBODY) in ("RemoteDisconnected", "ConnectionResetError")
