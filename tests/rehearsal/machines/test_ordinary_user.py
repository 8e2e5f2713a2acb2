"""Machines in namespaces for an ordinary user: one mapped user id, no capability."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import rehearsal

NOBODY = 65534
PROGRAM = """
import sys
from pathlib import Path
from rehearsal.machines.metadata import Identity
from rehearsal.machines.network import Network
from rehearsal.machines.processes import clean_environment

ASK = '''
import os, socket, urllib.request
url = "http://metadata.google.internal/computeMetadata/v1/project/project-id"
request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
print(urllib.request.urlopen(request, timeout=60).read().decode(), os.getpid(), os.getuid())
print(socket.gethostbyname("storage.googleapis.com"), socket.gethostbyname("worker-1"))
'''
folder, lines = Path(sys.argv[1]), []
identity = Identity("acme", "1", "us-central1-a", "n1-standard-4", "runner@acme", lambda: "token")
with Network(folder, refuse=print, mode="namespaces") as network:
    first, second = network.add("worker-0", identity), network.add("worker-1", identity)
    command = [sys.executable, "-c", ASK]
    tree = first.start(command, environment=clean_environment({}), folder=folder, on_line=lines.append)
    code = tree.wait(60)
    first.limit_bandwidth(8_000_000)
    print(code, "|".join(lines), network.front.getsockname()[0], second.address)
"""


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def interpreter_of_everybody(environment: dict[str, str]) -> str | None:
    """Return a Python of this version that the other user can execute; None: there is none."""
    names = (sys.executable, shutil.which(f"python{sys.version_info[0]}.{sys.version_info[1]}", path="/usr/bin"))
    for name in filter(None, names):
        try:
            command = [name, "-c", "import cryptography, pydantic, rehearsal"]
            if subprocess.run(command, user=NOBODY, group=NOBODY, env=environment, check=False).returncode == 0:
                return name
        except OSError:
            continue
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_an_ordinary_user_has_machines(own_folder: Path) -> None:
    folders = [str(Path(rehearsal.__file__).parents[1]), *(path for path in sys.path if "site-packages" in path)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(own_folder), "PYTHONPATH": os.pathsep.join(folders)}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    if (python := interpreter_of_everybody(environment)) is None:
        pytest.skip("no interpreter here that another user can execute")
    # Asked of another program: a refusal of ours alone is a fault.
    probe = ["unshare", "-Urnmpf", "true"]
    if not shutil.which("unshare") or subprocess.run(probe, user=NOBODY, group=NOBODY, check=False).returncode != 0:
        pytest.skip("ordinary users may make no namespaces here")
    done = subprocess.run(
        [python, "-c", PROGRAM, str(own_folder / "net")],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd=own_folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Process 1 of its machine, and root there.
    front, second = "10.128.0.1", done.stdout.split()[-1]
    assert done.stdout.strip() == f"0 acme 1 0|{front} {second} {front} {second}"
