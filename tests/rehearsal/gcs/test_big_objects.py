"""Objects larger than what a server may have in memory pass proxy, TLS and server, both ways, as streams.

SHARDLINE_BIG_BYTES sets the size: 2 GB was tried by hand, the default is enough to notice a body in memory.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

SIZE = int(os.environ.get("SHARDLINE_BIG_BYTES", 96 << 20))
# The server process may grow by this much.
MOST_BYTES = 64 << 20
_SERVER = """
import json, sys
from pathlib import Path
from rehearsal.cloud import LocalCloud
with LocalCloud(Path(sys.argv[1]), projects={"acme": "123456789012"}, buckets=["line"]) as cloud:
    found = {"proxy": cloud.vertex.proxy, "token": cloud.vertex.access.token}
    print(json.dumps(found | {"ca": cloud.environment["REQUESTS_CA_BUNDLE"]}), flush=True)
    sys.stdin.read()
"""
GOOGLES = "https://storage.googleapis.com"
JSON_API, UPLOAD = f"{GOOGLES}/storage/v1/b/line/o", f"{GOOGLES}/upload/storage/v1/b/line/o"


def resident_bytes(process: subprocess.Popen[str], field: str) -> int:
    """VmRSS, or VmHWM, the peak since it was cleared: https://man7.org/linux/man-pages/man5/proc_pid_status.5.html"""
    match = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert match is not None
    return int(match[1]) << 10


@pytest.mark.line
def test_memory_stays_small_both_ways(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _SERVER, str(tmp_path / "cloud")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    access: dict[str, str] = json.loads(process.stdout.readline())
    with requests.Session() as session, (tmp_path / "zeros").open("w+b") as content:
        content.truncate(SIZE)  # takes no room
        session.trust_env = False
        session.proxies, session.verify = {"https": access["proxy"]}, access["ca"]
        session.headers.update({"Authorization": f"Bearer {access['token']}"})

        def ask(method: str, url: str, **options: Any) -> requests.Response:
            content.seek(0)
            answer = session.request(method, url, timeout=300, **options)
            assert answer.status_code == 200, answer.text[:500]
            return answer

        ask("GET", JSON_API)
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")
        before = resident_bytes(process, "VmRSS")
        ask("POST", f"{UPLOAD}?uploadType=media&name=media", data=content)
        upload = ask("POST", f"{UPLOAD}?uploadType=resumable&name=resumed").headers["Location"]
        ask("PUT", upload, data=content, headers={"Content-Range": f"bytes 0-{SIZE - 1}/{SIZE}"})
        with ask("GET", f"{JSON_API}/media?alt=media", stream=True) as answer:
            assert sum(map(len, answer.iter_content(1 << 20))) == SIZE
        assert resident_bytes(process, "VmHWM") - before < MOST_BYTES
    process.communicate()
    assert process.returncode == 0
