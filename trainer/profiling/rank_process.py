"""One process of the probe (probe_process.py): how it is started, asked, heard and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from contracts.config import RunConfig
from contracts.process import thread_environment
from trainer.launch import Assignment
from trainer.launch.nodes import without_ranks
from trainer.profiling.measure import Failed

PROCESS_MODULE = "trainer.profiling.probe_process"


class RankProcess:
    """One rank's process, and the connection to it."""

    def __init__(self, rank: int, assignment: Assignment, path: Path, port: int, folder: Path) -> None:
        self.rank = rank
        self._shown = 0
        self._log = folder / f"rank-{rank}-{assignment.generation}.log"
        self.connection, theirs = Pipe()
        environment = {
            **without_ranks(os.environ),
            **thread_environment(assignment.threads),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(assignment.ranks),
            "LOCAL_WORLD_SIZE": str(assignment.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "PYTHONUNBUFFERED": "1",
        }
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", PROCESS_MODULE, str(theirs.fileno()), str(path)],
                env=environment,
                stdin=subprocess.DEVNULL,
                # stdout belongs to the stage: its last line is the result.
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                # Its loader processes are killed with it.
                start_new_session=True,
            )

    def send(self, request: tuple[str, dict[str, Any]]) -> None:
        """Ask it for a measurement: its name and arguments."""
        # One that is dead is found by what it does not answer.
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            self.connection.send(request)

    def receive(self) -> Any:
        """Return its answer; Failed, when it has died instead."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Failed("crashed", f"rank {self.rank} ended with {how}{self._last_words()}")

    def kill(self) -> None:
        """End it, and the loader processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.connection.close()

    def new_lines(self) -> list[str]:
        """Return what it has said since the last call."""
        with self._log.open("rb") as stream:
            stream.seek(self._shown)
            content = stream.read()
        self._shown += len(content)
        return content.decode(errors="replace").splitlines()

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1][:300]}" if lines else ""


def free_port() -> int:
    """Return a port of this machine on which nobody listens just now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def assignment_of(config: RunConfig, shards: str, *, ranks: int, threads: int, nodes: int) -> Assignment:
    """Return what ranks are told that write nothing: no folder, no attempt."""
    return Assignment(
        config=config.model_dump(mode="json"),
        shards=shards,
        profile=None,
        folder="",
        fingerprint="",
        made_from={},
        attempt="",
        attempt_folder="",
        ranks=ranks,
        threads=threads,
        nodes=nodes,
    )
