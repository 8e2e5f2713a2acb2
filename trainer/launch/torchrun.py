"""torchrun and its ranks on this machine, of one generation: started, watched, asked to stop, killed.

torchrun restarts nothing here: all machines' ranks start together, in a new generation, by a new torchrun.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from contracts.process import thread_environment
from trainer.launch.assignment import Assignment
from trainer.launch.nodes import Nodes, without_ranks
from trainer.launch.process_tree import children, descendants, read_proc, state

# Ranks' stores take turns on this many ports above the launchers': what is left of a generation meets nobody.
STORE_PORTS = 16
RANK_MODULE = "trainer.worker"
LOOPBACK = "127.0.0.1"
_MODULE_ARGUMENT = f"\0-m\0{RANK_MODULE}\0"
# How often torchrun looks at its processes, and the launcher at torchrun: a crash is noticed soon, at no cost.
WATCH_INTERVAL_S = 0.1


def store_port(nodes: Nodes, generation: int) -> int:
    """Return the port of the first machine for the ranks' store of a generation."""
    return nodes.port + 1 + generation % STORE_PORTS


def torchrun_command(path: Path, assignment: Assignment, nodes: Nodes, setup_timeout_s: float) -> list[str]:
    """Return the command that starts the ranks of this machine; `path` is the written assignment."""
    if nodes.nodes == 1:
        # Its own name need not resolve: one machine talks to itself.
        meeting = ["--standalone", f"--local-addr={LOOPBACK}"]
    else:
        meeting = [
            f"--nnodes={nodes.nodes}",
            f"--node-rank={nodes.node_rank}",
            f"--master-addr={nodes.host}",
            f"--master-port={store_port(nodes, assignment.generation)}",
            "--rdzv-backend=static",
            f"--rdzv-conf=timeout={int(setup_timeout_s)}",
        ]
    return [
        sys.executable,
        "-m",
        "trainer.launch.agent",
        str(os.getpid()),
        *meeting,
        f"--nproc-per-node={assignment.ranks}",
        "--max-restarts=0",
        f"--monitor-interval={WATCH_INTERVAL_S}",
        "--module",
        RANK_MODULE,
        str(path),
    ]


class LocalRanks:
    """The ranks of this machine, from their start to the end of all of them.

    Args:
        assignment: What they are told.
        nodes: This machine's place.
        setup_timeout_s: How long torchrun waits for the other machines.
        interface: Name of the network interface to the other machines, for gloo; None leaves it to gloo.
        stop_limit_s: How long ranks that are told to stop may take; then the launcher kills them.
    """

    def __init__(
        self,
        assignment: Assignment,
        nodes: Nodes,
        setup_timeout_s: float,
        interface: str | None,
        *,
        stop_limit_s: float,
    ) -> None:
        environment = {
            **without_ranks(os.environ),
            **thread_environment(assignment.threads),
            "PYTHONUNBUFFERED": "1",
            # SIGINT is not among them (trainer/launch/agent.py).
            "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGHUP,SIGQUIT",
            # It would kill them after 30 s.
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(int(stop_limit_s) + 1),
        }
        if interface is not None:
            # gloo asks for this machine's own name otherwise, which in a container may be anything.
            environment.setdefault("GLOO_SOCKET_IFNAME", interface)
        self._process = subprocess.Popen(
            torchrun_command(assignment.write(), assignment, nodes, setup_timeout_s),
            env=environment,
            stdin=subprocess.DEVNULL,
            # stdout belongs to the stage: its last line is the result.
            stdout=sys.stderr,
        )
        self._seen: set[int] = set()

    def wait(self) -> bool:
        """Wait a moment; whether all have ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(WATCH_INTERVAL_S)
        return self._process.returncode is not None

    @property
    def returncode(self) -> int | None:
        """Exit code of torchrun, which says little; None while it runs."""
        return self._process.returncode

    def one_has_ended(self) -> bool:
        """Whether a rank has ended, though torchrun may wait for the others (Linux; elsewhere never true)."""
        alive = {pid for pid in children(self._process.pid) if _is_rank(pid)}
        self._seen |= alive
        return alive != self._seen

    def ask_to_stop(self) -> None:
        """Send SIGTERM to torchrun, which passes it on to the ranks."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill torchrun, the ranks and their loader processes, also those that are stopped, and wait for torchrun."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # First it must start no more of them.
                self._process.send_signal(signal.SIGSTOP)
            family = list(descendants(self._process.pid))
            self._process.kill()
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            _wait_until_gone(family)


def _wait_until_gone(pids: list[int], limit_s: float = 5) -> None:
    """Wait for killed processes: what they held (ports, GPU memory) is free then."""
    deadline = time.monotonic() + limit_s
    while any(state(pid) not in ("", "Z", "X") for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)


def _is_rank(pid: int) -> bool:
    """Whether a child of torchrun is a rank, and alive."""
    # The command line of a zombie is empty.
    return _MODULE_ARGUMENT in read_proc(pid, "cmdline")
