"""The bucket server in a process of its own, as benchmarks use it: what it costs, and what it sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

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
        log = self._root / "requests.jsonl"
        log.write_bytes(b"")
        self._log, self._rest = log.open("rb"), b""
        command = [sys.executable, "-m", "rehearsal.gcs", "--root", str(self._root), "--bucket", BUCKET]
        self._process = subprocess.Popen(
            [*command, "--open", "--rules", str(rules), "--access-log", str(log), "--end-with-parent"],
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
        self._log.close()

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
        lines, _, self._rest = (self._rest + self._log.read()).rpartition(b"\n")
        entries = [json.loads(line) for line in lines.splitlines()]
        entries = [entry for entry in entries if entry["method"] == "GET" and entry["object"].endswith(suffix)]
        usage = Usage(cpu_s - self._cpu_s, sum(entry["bytes_out"] for entry in entries), len(entries))
        self._cpu_s = cpu_s
        return usage
