"""The bucket server in a process of its own, as benchmarks use it: what it costs, and what it sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).parents[1]))


BUCKET = "bucket-1"
# A GET from a bucket of the same region, and one stream of it, in orders of magnitude.
LATENCY_S, BYTES_PER_S = 0.030, 50_000_000
_REPOSITORY = Path(__file__).parents[1]


@dataclass(frozen=True)
class Usage:
    """What the server has done since it was asked before."""

    cpu_s: float
    bytes_out: int
    requests: int


class ServerProcess:
    """A server over folders: a context manager.

    Args:
        root: Folder of the bucket folders; a plain file in one is an object.
        latency_s: Before the first byte of an answer.
        bytes_per_s: Of one answer; None: as fast as it goes.
    """

    def __init__(self, root: Path, *, latency_s: float = LATENCY_S, bytes_per_s: float | None = BYTES_PER_S) -> None:
        self._root = root
        self._rules = [{"method": "GET", "latency_s": latency_s, "bytes_per_s": bytes_per_s}]
        self._cpu_s = 0.0

    def __enter__(self) -> Self:
        rules = self._root / "rules.json"
        rules.write_text(json.dumps(self._rules))
        command = [sys.executable, "-m", "rehearsal.gcs", "--root", str(self._root), "--bucket", BUCKET]
        self._process = subprocess.Popen(
            [*command, "--open", "--rules", str(rules), "--end-with-parent"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=_REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
        )
        assert self._process.stdout is not None
        self.endpoint = self._process.stdout.readline().strip()
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.communicate()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make Google's client use this server, and obstore, which litdata has beside it (GOOGLE_)."""
        return {
            "STORAGE_EMULATOR_HOST": self.endpoint,
            "GOOGLE_BASE_URL": self.endpoint,
            "GOOGLE_ALLOW_HTTP": "true",
            "GOOGLE_APPLICATION_CREDENTIALS": str(self._root / ".gcs" / "access" / "service-account.json"),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def take(self, suffix: str = "") -> Usage:
        """Return what was used since the last call, and what was sent of objects whose name ends so."""
        # utime and stime in ticks: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        entries = [one for one in self._control("GET") if one["method"] == "GET" and one["object"].endswith(suffix)]
        self._control("DELETE")
        usage = Usage(cpu_s - self._cpu_s, sum(entry["bytes_out"] for entry in entries), len(entries))
        self._cpu_s = cpu_s
        return usage

    def _control(self, method: str) -> Any:
        request = urllib.request.Request(f"{self.endpoint}/_gcs/requests", method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.loads(answer.read() or "null")
