"""A rehearsed job that tries to get out: no look-up and no packet leaves this machine.

The kernel's view of it is strace's (skipped where that is not installed): where each packet and connection went to.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from google.cloud import aiplatform_v1

from rehearsal.cloud import LocalCloud
from tests.rehearsal.world import wait_for_end

# 192.0.2.0/24 and 2001:db8::/32 are for documentation (RFC 5737, RFC 3849), .example is nobody's (RFC 2606).
PROGRAM = """
import json, socket, urllib.request
def udp():
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
found = {}
for name, code in {
    "getaddrinfo": "socket.getaddrinfo('one.example', 443)",
    "gethostbyname": "socket.gethostbyname('two.example')",
    "connect": "socket.create_connection(('192.0.2.1', 443), timeout=60)",
    "sendto": "udp().sendto(b'x', ('192.0.2.1', 53))",
    "sendmsg": "udp().sendmsg([b'x'], [], 0, ('192.0.2.1', 53))",
    "connect, IPv6": "socket.create_connection(('2001:db8::1', 443), timeout=60)",
    "sendto, IPv6": "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b'x', ('2001:db8::1', 53))",
    "https": "urllib.request.urlopen('https://three.example/', timeout=60)",
}.items():
    try:
        exec(code)
        found[name] = "got out"
    except OSError as error:
        found[name] = type(error).__name__
print(json.dumps(found), flush=True)
"""
DESTINATION = re.compile(
    r"\d+ +(connect|sendto|sendmsg|sendmmsg)\(.*sin6?_port=htons\((\d+)\),"
    r".*(?:inet_addr\(|inet_pton\(AF_INET6, )\"([\d.:a-f]+)\".*\) = (.*)"
)
# The guard asks the kernel for the way to an address by a connection without a packet, to the port for discarding.
PROBE = ("connect", 9)


def destinations(trace: Path) -> set[str]:
    """Return the addresses to which something was sent, or a connection begun; refusals by the kernel do not count."""
    found = set()
    for line in trace.read_text().splitlines():
        match = DESTINATION.match(line)
        if match and (not match[4].startswith("-1") or "EINPROGRESS" in match[4]):
            call, port, address = match[1], int(match[2]), match[3]
            if (call, port) != PROBE:
                found.add(address)
    return found


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_nothing_of_a_job_that_tries_gets_out(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-e", "trace=network", "-o", str(trace), sys.executable, "-c", PROGRAM]
    pool = {"replica_count": 1, "container_spec": {"image_uri": "image", "command": command}}
    name = "projects/123456789012/locations/us-central1/customJobs/1"
    job = aiplatform_v1.CustomJob(name=name, display_name="tries", job_spec={"worker_pool_specs": [pool]})
    with LocalCloud(tmp_path / "cloud", projects={"acme": "123456789012"}) as cloud:
        cloud.store.add(name, job)
        cloud.custom_jobs.start(name)
        ended = wait_for_end(cloud.store, name)
        assert ended.state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED, ended.error
        texts = [entry["jsonPayload"]["message"] for entry in cloud.logs.entries() if "jsonPayload" in entry]
        (said,) = (text for text in texts if text.startswith("{"))
        assert "got out" not in json.loads(said).values()
        refused = set(cloud.vertex.refused)
    assert {"one.example", "two.example", "three.example"} <= refused
    assert {"192.0.2.1", "2001:db8::1"} <= refused
    networks = [ipaddress.ip_network(text) for text in ("127.0.0.0/8", "::1/128")]
    out = {text for text in destinations(trace) if not any(ipaddress.ip_address(text) in one for one in networks)}
    assert destinations(trace) and not out
