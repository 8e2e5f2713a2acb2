"""The metadata server of a machine that shares this computer's loopback: this user has the token, another has not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rehearsal.machines.metadata import Identity
from rehearsal.machines.network import Network

NOBODY = 65534

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


def ask(folder: Path, user: int) -> str:
    identity = Identity("acme", "1", "us-central1-a", "n1-standard-4", "runner@acme", lambda: "the-token")
    with Network(folder, refuse=print, mode="loopback") as network:
        address = network.add("worker-0", identity).environment["GCE_METADATA_HOST"]
        words = [sys.executable, "-I", "-c", CLIENT, address, str(user)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_this_user_gets_the_token(tmp_path: Path) -> None:
    assert ask(tmp_path, os.getuid()) == "the-token"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_gets_nothing(tmp_path: Path) -> None:
    assert ask(tmp_path, NOBODY) in ("RemoteDisconnected", "ConnectionResetError")
