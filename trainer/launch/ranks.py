"""The rank processes of this machine for one start: started together, watched, signalled, killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from contracts.process import thread_environment
from trainer.launch.assignment import Assignment
from trainer.launch.nodes import without_ranks

RANK_MODULE = "trainer.worker"
LOOPBACK = "127.0.0.1"
STORE_VARIABLE = "SHARDLINE_STORE_FD"
"""Descriptor of the listening socket on which rank 0 serves the ranks' store."""


@dataclass(frozen=True)
class StoreAddress:
    """Where the ranks of a start find their store, which rank 0 serves."""

    host: str
    port: int
    listener: socket.socket | None = None
    """On the first machine: bound to `port`; rank 0 inherits it, so no other process can take the port."""
    interface: str | None = None
    """Network interface to the other machines, for gloo; None leaves the choice to gloo."""


class LocalRanks:
    """The ranks of this machine, from their start to the end of the last one."""

    def __init__(self, path: Path, assignment: Assignment, address: StoreAddress, module: str = RANK_MODULE) -> None:
        shared = {
            **without_ranks(os.environ),
            **thread_environment(assignment.threads),
            "WORLD_SIZE": str(assignment.world_size),
            "LOCAL_WORLD_SIZE": str(assignment.ranks),
            "MASTER_ADDR": address.host,
            "MASTER_PORT": str(address.port),
            "PYTHONUNBUFFERED": "1",
        }
        if address.interface is not None:
            # gloo would resolve this machine's own name, which in a container may be anything.
            shared.setdefault("GLOO_SOCKET_IFNAME", address.interface)
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for local_rank in range(assignment.ranks):
                rank = assignment.node_rank * assignment.ranks + local_rank
                own = {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}
                inherited = []
                if rank == 0 and address.listener is not None:
                    inherited = [address.listener.fileno()]
                    own[STORE_VARIABLE] = str(inherited[0])
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", module, str(path), str(os.getpid())],
                        env={**shared, **own},
                        stdin=subprocess.DEVNULL,
                        # stdout belongs to the stage: its last line is the result.
                        stdout=sys.stderr,
                        pass_fds=inherited,
                        # Its loader processes are killed with it, and a terminal's Ctrl-C reaches the launcher alone.
                        start_new_session=True,
                    )
                )
        except BaseException:
            self.kill()
            raise

    def count_ended(self) -> int:
        """Return how many of the ranks have ended."""
        return sum(process.poll() is not None for process in self._processes)

    def describe_killed(self) -> str:
        """Return which ranks a signal has ended so far; empty: none."""
        codes = {local_rank: process.returncode for local_rank, process in enumerate(self._processes)}
        ended = [f"local rank {n}: {signal.Signals(-code).name}" for n, code in codes.items() if code and code < 0]
        return ", ".join(ended)

    def signal(self, number: int) -> None:
        """Pass a stop signal on to each rank: all agree on a step, save it and end."""
        for process in self._processes:
            process.send_signal(number)

    def kill(self) -> None:
        """Kill the ranks with their loader processes, stopped ones too, and wait for them."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
