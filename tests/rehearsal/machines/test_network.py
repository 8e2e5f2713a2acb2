"""Machines as namespaces: names, addresses, the metadata server by Google's own library, nothing outside, the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest

import rehearsal
from rehearsal.machines import namespaces
from rehearsal.machines.network import Host, Network
from rehearsal.machines.processes import clean_environment
from tests.rehearsal.machines.conftest import IDENTITY, LIMIT_S, Machines

# Also each by its own name: gloo and torchrun bind to the address that it has.
MEET = """
import socket, sys
if sys.argv[1] == "serve":
    server = socket.create_server((socket.gethostname(), 2222))
    print("up", server.getsockname()[0], flush=True)
    connection, address = server.accept()
    print(address[0])
else:
    import time
    for _ in range(100):
        try:
            socket.create_connection((sys.argv[2], 2222))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
"""
OUTSIDE = """
import json, socket
def udp():
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
found = {}
for name, code in {
    "getaddrinfo": "socket.getaddrinfo('out.example', 443)",
    "gethostbyname": "socket.gethostbyname('name.example')",
    "connect": "socket.create_connection(('192.0.2.1', 443), timeout=60)",
    "sendto": "udp().sendto(b'x', ('192.0.2.1', 53))",
    "sendmsg": "udp().sendmsg([b'x'], [], 0, ('192.0.2.1', 53))",
    "multicast": "udp().sendto(b'x', ('239.0.0.1', 53))",
}.items():
    try:
        exec(code)
    except OSError as error:
        found[name] = error.strerror
print(json.dumps(found))
"""
GOOGLE_AUTH = """
import google.auth, google.auth.transport.requests, sys
credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
credentials.refresh(google.auth.transport.requests.Request())
print(type(credentials).__module__, project, credentials.token, credentials.service_account_email)
"""
# The link address that this machine has for the doors.
LINK = """
import socket
address = socket.gethostbyname("storage.googleapis.com")
socket.create_connection((address, 443)).close()
rows = [line.split() for line in open("/proc/net/arp")]
print(*(row[3] for row in rows if row[0] == address))
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


# Another process, with a machine on a share of this one's network.
JOIN = """
import json, sys
from pathlib import Path
from rehearsal.machines.network import Network, Share
from rehearsal.machines.processes import clean_environment
from tests.rehearsal.machines.conftest import IDENTITY
share, folder, code, address = sys.argv[1:]
with Network(Path(folder, "other"), refuse=print, mode="loopback", share=Share(**json.loads(share))) as network:
    host = network.add("task-0", IDENTITY)
    command = [sys.executable, "-c", code, "call", address]
    sys.exit(host.start(command, environment=clean_environment(), folder=Path(folder), on_line=print).wait(100))
"""


def lines_address(lines: list[str]) -> str:
    """Return where the server of MEET listens, once it has said so."""
    wait_for(lines, "up")
    return lines[0].split()[1]


def wait_for(lines: list[str], text: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not any(text in line for line in lines):
        assert time.monotonic() < deadline, lines
        time.sleep(0.02)


def test_machines_meet_by_name_at_the_same_port_again_and_again(machines: Machines, network: Network) -> None:
    first, second = network.add("worker-0", IDENTITY), network.add("worker-1", IDENTITY)
    for _ in range(2):
        lines: list[str] = []
        server = first.start(
            [sys.executable, "-c", MEET, "serve"],
            environment=clean_environment(),
            folder=machines.folder,
            on_line=lines.append,
        )
        assert machines.run(second, sys.executable, "-c", MEET, "call", "worker-0") == (0, [])
        assert server.wait(LIMIT_S) == 0
        assert lines == [f"up {first.address}", second.address]


def test_a_machine_that_has_not_come_yet_is_no_host_outside(machines: Machines, network: Network) -> None:
    code = "import socket; socket.getaddrinfo('worker-1', 80)"
    assert machines.run(network.add("worker-0", IDENTITY), sys.executable, "-c", code)[0] == 1
    # Workers come one by one, and the first may ask for the others.
    assert machines.refused == []


def test_a_name_is_free_again_when_its_machine_is_gone(network: Network) -> None:
    for _ in range(8):
        host = network.add("worker-0", IDENTITY)
        with pytest.raises(ValueError, match="there is a machine worker-0 already"):
            network.add("worker-0", IDENTITY)
        host.close()


def test_the_doors_stay_where_they_are_when_machines_come_and_go(machines: Machines, network: Network) -> None:
    def link(host: Host) -> list[str]:
        code, lines = machines.run(host, sys.executable, "-c", LINK)
        assert code == 0, lines
        return lines

    hosts = [network.add("worker-0", IDENTITY)]
    found = [link(hosts[0])]
    # A bridge left to itself takes the lowest address of its machines' links: the first's is it by a chance of 1 in 12.
    hosts += [network.add(f"worker-{number}", IDENTITY) for number in range(1, 12)]
    found.append(link(hosts[-1]))
    for host in hosts:
        host.close()
    found.append(link(network.add("worker-12", IDENTITY)))
    assert found[0] and found == found[:1] * 3


def test_another_process_makes_machines_of_the_same_network(machines: Machines, network: Network) -> None:
    share = network.share()
    assert share is not None
    lines: list[str] = []
    server = network.add("worker-0", IDENTITY).start(
        [sys.executable, "-c", MEET, "serve"],
        environment=clean_environment(),
        folder=machines.folder,
        on_line=lines.append,
    )
    environment = {**clean_environment(), "PYTHONPATH": str(Path(rehearsal.__file__).parents[1])}
    command = [sys.executable, "-c", JOIN, json.dumps(asdict(share)), str(machines.folder), MEET, lines_address(lines)]
    subprocess.run(command, env=environment, pass_fds=(share.user, share.net), check=True, timeout=LIMIT_S)
    assert server.wait(LIMIT_S) == 0
    # Of the share's own numbers.
    assert lines[1].startswith("10.128.4.")


def test_nothing_outside_is_reached(machines: Machines, network: Network) -> None:
    code, lines = machines.run(network.add("worker-0", IDENTITY), sys.executable, "-c", OUTSIDE)
    assert code == 0
    assert json.loads(lines[0]) == {
        "getaddrinfo": "Name or service not known",
        "gethostbyname": "Name or service not known",
        **dict.fromkeys(["connect", "sendto", "sendmsg", "multicast"], "Network is unreachable"),
    }
    assert set(machines.refused) == {"out.example", "name.example"}


def test_googles_library_finds_the_machines_account(machines: Machines, any_network: Network) -> None:
    code, lines = machines.run(any_network.add("worker-0", IDENTITY), sys.executable, "-c", GOOGLE_AUTH)
    token = "token-of-this-rehearsal"
    assert (code, lines[-1:]) == (0, [f"google.auth.compute_engine.credentials p123-tp {token} {IDENTITY.email}"])


def test_the_trainings_own_watch_is_told_of_a_preemption(machines: Machines, any_network: Network) -> None:
    host, other = any_network.add("worker-0", IDENTITY), any_network.add("worker-1", IDENTITY)
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
    url = "http://169.254.169.254/computeMetadata/v1/project/project-id"
    ask = ["curl", "-sS", "-w", " %{http_code}", url]
    assert machines.run(host, *ask, "-H", "Metadata-Flavor: Google")[1] == ["p123-tp 200"]
    for header in ("X: y", "X-Forwarded-For: 10.0.0.1", "Host: evil.example", "Origin: http://evil.example"):
        flavor = [] if header == "X: y" else ["-H", "Metadata-Flavor: Google"]
        assert machines.run(host, *ask, *flavor, "-H", header)[1][-1] == " 403"
    assert len(machines.refused) == 4


def test_a_machine_has_a_name_memory_and_process_ids_of_its_own(machines: Machines, network: Network) -> None:
    host = network.add("worker-0", IDENTITY)
    name = f"shardline-test-{os.getpid()}"
    code, lines = machines.run(host, "sh", "-c", f"hostname; echo $$; touch /dev/shm/{name}; ls /dev/shm")
    assert (code, lines) == (0, ["worker-0", "1", name])
    assert not Path("/dev/shm", name).exists()
    assert machines.run(host, "ls", "/dev/shm") == (0, [])


def test_process_1_heeds_only_the_signals_that_it_handles(machines: Machines, network: Network) -> None:
    host = network.add("worker-0", IDENTITY)
    for code, ended in (("trap 'exit 9' TERM", 9), (":", -signal.SIGKILL)):
        lines: list[str] = []
        tree = host.start(
            ["sh", "-c", f"{code}; echo up; while :; do sleep 0.05; done"],
            environment=clean_environment(),
            folder=machines.folder,
            on_line=lines.append,
        )
        wait_for(lines, "up")
        tree.send(signal.SIGTERM)
        assert tree.wait(0.5 if ended < 0 else LIMIT_S) == (None if ended < 0 else ended)
        tree.kill()
        assert tree.returncode == ended


def test_a_command_ends_as_it_does(machines: Machines, network: Network) -> None:
    host = network.add("worker-0", IDENTITY)
    ends = {
        "import os; os._exit(3)": 3,
        "import os; os._exit(134)": 134,
        # Of its own signals process 1 heeds none; abort() then ends by an instruction that is none.
        "import os, signal; os.kill(os.getpid(), signal.SIGABRT)": 0,
        "import os; os.abort()": -signal.SIGSEGV,
    }
    assert {code: machines.run(host, sys.executable, "-c", code)[0] for code in ends} == ends
    assert machines.run(host, "no-such-program") == (127, ["no-such-program: No such file or directory"])


def test_bandwidth(machines: Machines, network: Network) -> None:
    host = network.add("worker-0", IDENTITY)
    host.limit_bandwidth(8_000_000)
    _, lines = machines.run(host, "tc", "qdisc", "show", "dev", "eth0", PATH="/usr/sbin:/sbin:/usr/bin:/bin")
    assert "tbf" in lines[0] and "rate 8Mbit" in lines[0]


# Starts machines and says where it is; the test kills it there.
LAUNCHER = """
import os, sys, time
from pathlib import Path
from rehearsal.machines.network import Network
from tests.rehearsal.machines.conftest import IDENTITY
where, folder = int(sys.argv[1]), Path(sys.argv[2])
def reach(number):
    if number == where:
        print("here", flush=True)
        time.sleep(600)
reach(0)
network = Network(folder, refuse=print, mode="namespaces")
reach(1)
hosts = [network.add(f"worker-{n}", IDENTITY) for n in range(2)]
reach(2)
command = ["sh", "-c", f"setsid sleep {sys.argv[3]} & sleep {sys.argv[3]}"]
for host in hosts:
    host.start(command, environment={}, folder=folder, on_line=print)
reach(3)
hosts[0].close()
reach(4)
"""


def test_the_default_timeout_of_sockets_is_not_the_steps(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beam sets one for its whole process (apache_beam/internal/gcp/auth.py); a step waits for its ids all the same."""
    map_ids, before = namespaces._map_ids, socket.getdefaulttimeout()

    def map_late(pid: int) -> None:
        time.sleep(0.2)
        map_ids(pid)

    monkeypatch.setattr(namespaces, "_map_ids", map_late)
    socket.setdefaulttimeout(LIMIT_S)
    try:
        user, net, listening = namespaces.make_cloud("10.129.0.1", 16)
    finally:
        socket.setdefaulttimeout(before)
    listening.close()
    os.close(user)
    os.close(net)


@pytest.mark.parametrize("where", range(5))
def test_after_a_kill_nothing_is_left(machines: Machines, network: Network, where: int) -> None:
    """Processes and namespaces; the loopback's addresses in them go with them, and no file stands for a socket."""
    mark = f"{600 + where}.{os.getpid()}"
    folder = machines.folder / "killed"
    threads = threading.active_count()
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(where), str(folder), mark],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(rehearsal.__file__).parents[1])},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "here\n"
        before = namespaces_below(process.pid)
        assert (len(before) > 0) == (where > 0)
    finally:
        process.kill()
        process.communicate()
    deadline = time.monotonic() + LIMIT_S
    while processes_with(mark) or namespaces_of_all() & before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # What is left are plain files, and the next start writes them anew.
    with_files = Network(folder, refuse=print, mode="namespaces")
    try:
        with_files.add("worker-0", IDENTITY)
    finally:
        with_files.close()
    assert not any(path.is_socket() for path in folder.rglob("*"))
    assert threading.active_count() <= threads


def processes_with(mark: str) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if f"sleep\0{mark}".encode() in command:
                found.append(folder.name)
    return found


def namespaces_below(pid: int) -> set[str]:
    """Return the network namespaces that a process keeps by descriptors."""
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        target = str(path.readlink())
        if target.startswith("net:"):
            found.add(target)
    return found


def namespaces_of_all() -> set[str]:
    """Return the network namespaces in which a process is, or of which one has a descriptor."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                found |= {str((folder / "ns/net").readlink()), *namespaces_below(int(folder.name))}
            except OSError:
                continue
    return found
