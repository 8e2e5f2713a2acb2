"""The guard in Python processes: every way to look up a name or send a packet, and the user's own sitecustomize."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rehearsal.guard import PYTHON_GUARD

# 192.0.2.0/24 is for documentation, nobody has it: RFC 5737. 239.0.0.0/8 is multicast within an organisation: RFC 2365.
OUTSIDE = {
    "connect": "socket.socket().connect(('192.0.2.1', 443))",
    "connect_ex": "socket.socket().connect_ex(('192.0.2.1', 443))",
    "connect by name": "socket.create_connection(('out.example', 443))",
    "UDP connect": "udp().connect(('192.0.2.1', 53))",
    "UDP connect 6": "udp(socket.AF_INET6).connect(('2001:db8::1', 53))",
    "sendto": "udp().sendto(b'x', ('192.0.2.1', 53))",
    "sendto with flags": "udp().sendto(b'x', 0, ('192.0.2.1', 53))",
    "sendmsg": "udp().sendmsg([b'x'], [], 0, ('192.0.2.1', 53))",
    "multicast": "udp().sendto(b'x', ('239.0.0.1', 53))",
    "broadcast": "udp(broadcast=1).sendto(b'x', ('255.255.255.255', 53))",
    "getaddrinfo": "socket.getaddrinfo('out.example', 443)",
    "gethostbyname": "socket.gethostbyname('out.example')",
    "gethostbyname_ex": "socket.gethostbyname_ex('out.example')",
    "gethostbyaddr": "socket.gethostbyaddr('out.example')",
    "gethostbyaddr of an address": "socket.gethostbyaddr('192.0.2.1')",
    "getnameinfo": "socket.getnameinfo(('192.0.2.1', 53), 0)",
}
INSIDE = {
    "lookup": "socket.getaddrinfo('localhost', 80), socket.gethostbyname('localhost')",
    "lookup of an address": "socket.getaddrinfo('192.0.2.1', 80), socket.gethostbyname('192.0.2.1')",
    "reverse lookup": "socket.gethostbyaddr('127.0.0.1'), socket.getnameinfo(('127.0.0.1', 80), 0)",
    "UDP": "udp().sendto(b'x', ('127.0.0.1', server.getsockname()[1]))",
    "UDP message": "udp().sendmsg([b'x'], [], 0, server.getsockname())",
    "a connected message": "connected().sendmsg([b'x'])",
    "own name": "socket.gethostbyname(socket.gethostname())",
    "own address": "udp().connect((socket.gethostbyname(socket.gethostname()), 9))",
}
PROGRAM = """
import json, socket, sys
def udp(family=socket.AF_INET, broadcast=0):
    made = socket.socket(family, socket.SOCK_DGRAM)
    if broadcast:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    return made
server = udp()
server.bind(("127.0.0.1", 0))
def connected():
    made = udp()
    made.connect(server.getsockname())
    return made
found = {}
for name, code in json.loads(sys.argv[1]).items():
    try:
        exec(code)
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
    else:
        found[name] = ""
print(json.dumps(found))
"""


def run(folder: Path, program: str, *words: str, path: str = "") -> str:
    environment = {**os.environ, "SHARDLINE_REHEARSAL_REFUSED": str(folder / "refused")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PYTHON_GUARD), path]))
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout


def test_nothing_outside_is_looked_up_or_sent_to(tmp_path: Path) -> None:
    found = json.loads(run(tmp_path, PROGRAM, json.dumps(OUTSIDE)))
    passed = {name: said for name, said in found.items() if "outside this rehearsal" not in said}
    assert not passed
    hosts = set((tmp_path / "refused").read_text().splitlines())
    assert hosts == {"192.0.2.1", "2001:db8::1", "239.0.0.1", "255.255.255.255", "out.example"}


def test_this_machine_is_reached(tmp_path: Path) -> None:
    found = json.loads(run(tmp_path, PROGRAM, json.dumps(INSIDE)))
    assert found == dict.fromkeys(INSIDE, "")
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("kind", ["module", "package"])
def test_the_users_own_sitecustomize_runs_too(tmp_path: Path, kind: str) -> None:
    own = tmp_path / "own" / ("sitecustomize.py" if kind == "module" else "sitecustomize/__init__.py")
    own.parent.mkdir(parents=True)
    own.write_text("import sys\nsys.users_own = __name__\n")
    code = (
        "import sitecustomize, socket, sys; print(sys.users_own, sitecustomize.__file__); socket.gethostbyname('out')"
    )
    program = f"try:\n    {code}\nexcept OSError as error:\n    print(error)"
    printed = run(tmp_path, program, path=str(tmp_path / "own"))
    first, second = printed.splitlines()
    assert first == f"sitecustomize {own}"
    assert "outside this rehearsal" in second
