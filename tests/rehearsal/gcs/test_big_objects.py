"""Objects larger than what a server may hold in memory pass proxy, TLS and server, both ways, as streams.

SHARDLINE_BIG_BYTES sets the size: 2 GB was tried by hand, the default is enough to tell a body that is held.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

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
JSON_API, UPLOAD = "/storage/v1/b/line/o", "/upload/storage/v1/b/line/o"


class Door:
    """A local cloud in a process of its own, reached by its proxy."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-W", "ignore", "-c", _SERVER, str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.told: dict[str, str] = json.loads(self.process.stdout.readline())
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.proxies, self.session.verify = {"https": self.told["proxy"]}, self.told["ca"]
        self.session.headers.update({"Authorization": f"Bearer {self.told['token']}"})

    def ask(self, method: str, url: str, **options: Any) -> requests.Response:
        url = url if url.startswith(GOOGLES) else GOOGLES + url
        answer = self.session.request(method, url, timeout=300, **options)
        assert answer.status_code in (200, 206, 308), answer.text[:500]
        return answer

    def resident_bytes(self, field: str) -> int:
        """VmRSS or VmHWM, the peak since `forget_peak`: https://man7.org/linux/man-pages/man5/proc_pid_status.5.html"""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{field}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) << 10

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    door = Door(tmp_path)
    yield door
    door.session.close()
    door.process.communicate()
    assert door.process.returncode == 0


@pytest.fixture
def content() -> Iterator[BinaryIO]:
    """A file of zeros that takes no room."""
    with tempfile.TemporaryFile() as file:
        file.truncate(SIZE)
        yield file


def from_start(file: BinaryIO) -> BinaryIO:
    file.seek(0)
    return file


def related(file: BinaryIO) -> Iterator[bytes]:
    yield b'--x\r\nContent-Type: application/json\r\n\r\n{"name": "related"}\r\n--x\r\nContent-Type: image/png\r\n\r\n'
    while piece := file.read(1 << 20):
        yield piece
    yield b"\r\n--x--\r\n"


def upload_all_ways(door: Door, file: BinaryIO) -> None:
    door.ask("POST", f"{UPLOAD}?uploadType=media&name=media", data=from_start(file))
    headers = {"Content-Type": "multipart/related; boundary=x"}
    made = door.ask("POST", f"{UPLOAD}?uploadType=multipart", data=related(from_start(file)), headers=headers).json()
    assert (made["contentType"], made["size"]) == ("image/png", str(SIZE))
    session = door.ask("POST", f"{UPLOAD}?uploadType=resumable&name=resumed").headers["Location"]
    half = SIZE // 2 >> 18 << 18
    first = {"Content-Range": f"bytes 0-{half - 1}/*"}
    assert door.ask("PUT", session, data=Part(file, 0, half), headers=first).status_code == 308
    rest = {"Content-Range": f"bytes {half}-{SIZE - 1}/{SIZE}"}
    assert door.ask("PUT", session, data=Part(file, half, SIZE - half), headers=rest).json()["size"] == str(SIZE)


class Part:
    """A range of a file, which requests sends piece by piece with its length."""

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        file.seek(start)
        self._file, self._left, self.len = file, length, length

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self._left))
        self._left -= len(data)
        return data


def test_memory_stays_small_both_ways(door: Door, content: BinaryIO) -> None:
    door.ask("GET", JSON_API)
    door.forget_peak()
    before = door.resident_bytes("VmRSS")
    upload_all_ways(door, content)
    assert door.resident_bytes("VmHWM") - before < MOST_BYTES
    with door.ask("GET", f"{JSON_API}/media?alt=media", stream=True) as answer:
        assert sum(map(len, answer.iter_content(1 << 20))) == SIZE
    assert door.resident_bytes("VmHWM") - before < MOST_BYTES
