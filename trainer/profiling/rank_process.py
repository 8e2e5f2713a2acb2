"""One process of the probe (service.py): how it is started, asked, heard and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import NoneType
from typing import Any

from contracts.config import RunConfig
from contracts.errors import ConfigError, ErrorDocument
from contracts.process import thread_environment
from trainer.launch import Assignment
from trainer.launch.nodes import without_ranks
from trainer.profiling.indicators import Counted
from trainer.profiling.measure import ComputeTime, Failed, Hello, JointRate, LoaderRate
from trainer.profiling.messages import NotUnderstood, Request, receive, send

PROCESS_MODULE = "trainer.profiling.service"
# A rank whose connection broke has this long to end by itself.
ENDING_S = 10.0
# What measurements answer; the others nothing.
ANSWERS: dict[str, tuple[type, ...]] = {
    "hello": (Hello,),
    "load": (LoaderRate,),
    "fit": (int, NoneType),
    "compute": (ComputeTime,),
    "window": (JointRate,),
    "trace": (Counted,),
}


@dataclass(frozen=True)
class Group:
    """The ranks that measure together, and where their store is."""

    host: str
    port: int
    world_size: int
    environment: Mapping[str, str] = field(default_factory=dict)
    """What their network needs."""


class RemoteRank:
    """A rank that is asked over a connection; of its process another machine knows.

    Args:
        rank: Among all.
        connection: To it.
        why: Asks its machine how it ended.
    """

    def __init__(self, rank: int, connection: Connection, why: Callable[[], Failed]) -> None:
        self.rank, self.connection, self.why = rank, connection, why

    def send(self, request: Request) -> None:
        """Ask it for a measurement."""
        # One that is dead is found by what it does not answer.
        with contextlib.suppress(ConnectionError):
            send(self.connection, request)

    def receive(self, name: str) -> Any:
        """Return its answer to the measurement of this name: also an error of the user's, or Failed, as if it died."""
        try:
            return receive(self.connection, *ANSWERS.get(name, (NoneType,)), Failed, ErrorDocument)
        except NotUnderstood as error:
            return Failed("crashed", f"rank {self.rank}: {error}")
        except (EOFError, OSError):
            return self.why()

    def kill(self) -> None:
        """Let go of it; its machine kills all of its ranks by one order (`Machines.kill`)."""
        self.connection.close()

    def new_lines(self) -> list[str]:
        """Return what it has said since the last call: nothing, since its machine shows it."""
        return []


class RankProcess(RemoteRank):
    """A rank of this machine: its process, and the connection to it.

    Args:
        local_rank: Its number on this machine.
        assignment: What it is told.
        path: Of the assignment.
        group: Whom it measures with.
        folder: For what it says.
        connection: By which others ask it; None: who starts it does, by a pipe.
    """

    def __init__(
        self,
        local_rank: int,
        assignment: Assignment,
        path: Path,
        group: Group,
        folder: Path,
        connection: Connection | None = None,
    ) -> None:
        rank = assignment.node_rank * assignment.ranks + local_rank
        ours, theirs = (connection, connection) if connection is not None else Pipe()
        super().__init__(rank, ours, self._ended)
        self._shown = 0
        self._log = folder / f"rank-{rank}-{assignment.generation}.log"
        environment = {
            **without_ranks(os.environ),
            **thread_environment(assignment.threads),
            **group.environment,
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(group.world_size),
            "LOCAL_WORLD_SIZE": str(assignment.ranks),
            "MASTER_ADDR": group.host,
            "MASTER_PORT": str(group.port),
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

    def _ended(self) -> Failed:
        """Wait for its end, and return how it ended."""
        try:
            code = self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return Failed("crashed", f"rank {self.rank} said what could not be received{self._last_words()}")
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Failed("crashed", f"rank {self.rank} ended with {how}{self._last_words()}")

    def kill(self) -> None:
        """End it, and the loader processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if not self.connection.closed:
            super().kill()

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


# Seconds after which a measurement that has not ended counts as hung: its processes are killed and replaced.
PROBE_TIMEOUT_S = 120.0


def cannot_start(failed: Failed) -> ConfigError:
    """Return what to raise where not even the first start worked.

    Args:
        failed: Why.
    """
    given = f"the profiling run could not start: {failed.outcome}: {failed.reason}"
    return ConfigError(
        given,
        allowed="a network that trains slots of two samples on this machine",
        todo="correct what the reason names; what its process said is shown above",
    )
