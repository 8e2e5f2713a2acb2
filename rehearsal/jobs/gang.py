"""The machines of one custom job, started, watched, taken away and started again, until the job has ended.

Restarts are those of rehearsal/jobs/restarts.py. Beside them
(https://docs.cloud.google.com/vertex-ai/docs/training/understanding-training-service, .../use-spot-vms):

    the first machine's container ends with 0     the job has succeeded; the others are ended
    another's ends with 0                         that machine is done
    a machine is to be taken away                 its container is told (SIGTERM) and killed 30 s later, or killed at
                                                  once; an exit code before that is judged like any other
    machines come one by one                      the job is running when all are up

With restart_job_on_worker_restart a restart of one is one of all; what still runs is told to stop first.
"""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.rpc.code_pb2 import CANCELLED, DEADLINE_EXCEEDED, INVALID_ARGUMENT, OK, RESOURCE_EXHAUSTED

from rehearsal.jobs.logbook import severity_of
from rehearsal.jobs.market import Market, Preempted, Preemption, Progress
from rehearsal.jobs.restarts import (
    MAX_JOB_RESTARTS,
    MAX_WORKER_RESTARTS,
    TRANSIENT_CODES,
    RestartBudget,
    Scope,
)
from rehearsal.leftovers import LINKS_PREFIX
from rehearsal.machines.commands import with_commands, write_commands
from rehearsal.machines.machine import (
    Machine,
    Scale,
    cluster,
    cores_of,
    environment_of,
    free_ports,
    host_name,
    identity_of,
)
from rehearsal.machines.network import Host, Network
from rehearsal.machines.processes import ProcessTree, clean_environment

# Between a notice and the end of a spot machine: https://docs.cloud.google.com/compute/docs/instances/spot#preemption
NOTICE_S = 30.0
# Between the starts of two machines of a job: no page says how far apart they come.
STAGGER_S = 5.0
_POLL_S = 0.1

Say = Callable[[Machine, str, str], None]
"""Machine, text and severity of a line for the log."""


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    state: str
    """SUCCEEDED, FAILED or CANCELLED."""
    code: int = OK
    """google.rpc.Code."""
    message: str = ""


@dataclass
class _Node:
    machine: Machine
    host: Host
    tree: ProcessTree
    disk: Path
    watch: Progress

    @property
    def code(self) -> int | None:
        """Exit code as Vertex shows it, 128 + N for signal N; None while it runs."""
        code = self.tree.returncode
        return code if code is None or code >= 0 else 128 - code


@dataclass(frozen=True)
class _Notice:
    """A machine that has been told that it is taken away."""

    preemption: Preemption
    step: int
    """Of the training when it was told."""
    deadline: float
    """On the machine's monotonic clock."""


class Gang:
    """Runs one job's machines.

    Args:
        job: The CustomJob.
        machines: Its machines.
        folder: For their disks.
        network: That they are on.
        token: Returns a token for their clients.
        environment: Of all containers.
        say: Takes the log.
        market: Takes machines away.
        scale: Of the rehearsal.
        now: The rehearsed time, in seconds since the epoch.
        on_running: Called once, when all machines are up.
    """

    def __init__(
        self,
        job: Any,
        machines: Sequence[Machine],
        *,
        folder: Path,
        network: Network,
        token: Callable[[], str],
        environment: Mapping[str, str],
        say: Say,
        market: Market,
        scale: Scale,
        now: Callable[[], float],
        on_running: Callable[[], None] = lambda: None,
    ) -> None:
        self._job, self._machines, self._folder = job, machines, folder
        self._network, self._token = network, token
        self._environment = with_commands(clean_environment(environment), write_commands(folder / "bin"))
        self._say, self._market, self._scale, self._now = say, market, scale, now
        scheduling = job.job_spec.scheduling
        self._all_together = bool(scheduling.restart_job_on_worker_restart)
        self._budget = RestartBudget(may_restart=not scheduling.disable_retries)
        self._on_running = on_running
        self._is_spot = scheduling.strategy.name == "SPOT"
        self._timeout_s = scheduling.timeout.total_seconds() if scheduling.timeout else 0.0
        self._grace_s = NOTICE_S * scale.time_scale
        self._nodes: list[_Node] = []
        self._starts = self._disks = 0
        self._notice: _Notice | None = None
        self._began_at = 0.0
        self._pools: dict[str, list[str]] = {}
        # A socket's path has 107 characters at most, and loaders of a training make theirs below TMPDIR: it is a short
        # link to the machine's disk, however deep that lies.
        self._links = Path(tempfile.mkdtemp(prefix=LINKS_PREFIX))
        self.cancelled = threading.Event()

    def run(self) -> Ended:
        """Run until the job has ended; nothing of it runs then."""
        self._began_at = time.monotonic()
        try:
            self._start_all(new_disks=True)
            if not self.cancelled.is_set():
                self._on_running()
            while (ended := self._step()) is None:
                self.cancelled.wait(_POLL_S)
            return ended
        finally:
            self._stop_all()
            for node in self._nodes:
                self._remove(node)
            shutil.rmtree(self._links, ignore_errors=True)

    def _step(self) -> Ended | None:
        if self.cancelled.is_set():
            return Ended("CANCELLED", CANCELLED, "the job was cancelled")
        # Not scaled: the work is no faster here than it is.
        if self._timeout_s and time.monotonic() - self._began_at > self._timeout_s:
            return Ended("FAILED", DEADLINE_EXCEEDED, f"the job ran longer than its timeout of {self._timeout_s:.0f} s")
        if self._nodes[0].code == 0:
            return Ended("SUCCEEDED")
        for number, node in enumerate(self._nodes):
            if node.code not in (None, 0):
                return self._after_exit(number, node.code or 0)
        if self._notice is not None:
            return self._take_away(self._notice) if time.monotonic() >= self._notice.deadline else None
        if self._is_spot and (preemption := self._find_due()) is not None:
            return self._preempt(preemption)
        return None

    # --- preemptions --------------------------------------------------------------------------------------------------

    def _find_due(self) -> Preemption | None:
        if not self._market.missing:
            return None
        first = self._nodes[0].watch
        first.look()
        return self._market.due(self._job.display_name, len(self._nodes), first.step, first.total)

    def _preempt(self, preemption: Preemption) -> Ended | None:
        """Tell a machine that it is taken away, or take it away at once; one that is done is let alone."""
        node = self._nodes[preemption.node]
        if node.code is not None:
            return None
        told = preemption.kind == "sigterm"
        step, grace_s = self._nodes[0].watch.step, self._grace_s if told else 0.0
        notice = _Notice(preemption, step, time.monotonic() + grace_s)
        if not told:
            return self._take_away(notice)
        node.host.give_notice()
        node.tree.send(signal.SIGTERM)
        self._notice = notice
        return None

    def _take_away(self, notice: _Notice) -> Ended | None:
        """Kill a machine's container, and restart what the loss of a machine restarts."""
        self._notice = None
        number = notice.preemption.node
        node = self._nodes[number]
        node.tree.kill()
        if node.code == 0:
            # It had finished before it was hit.
            return None
        self._note_preemption(notice, escalated=notice.preemption.kind == "sigterm")
        scope = self._budget.after_loss(number)
        if scope is not None:
            self._restart(number, scope, new_disk=True)
            return None
        if not self._budget.may_restart:
            return Ended("FAILED", RESOURCE_EXHAUSTED, f"{node.machine.name} was preempted, and retries are disabled")
        restarts = f"{MAX_WORKER_RESTARTS} times, and the job {MAX_JOB_RESTARTS} times"
        message = f"STOCKOUT: {node.machine.name} was preempted, and its worker had been restarted {restarts}"
        return Ended("FAILED", RESOURCE_EXHAUSTED, message)

    def _note_preemption(self, notice: _Notice, *, escalated: bool) -> None:
        preemption, node = notice.preemption, self._nodes[notice.preemption.node]
        happened = Preempted(
            self._job.name,
            self._job.display_name,
            preemption.node,
            preemption.kind,
            notice.step,
            self._starts,
            self._now(),
            exit_code=node.tree.returncode,
            escalated=escalated,
        )
        self._market.note(preemption, happened)
        self._say(node.machine, f"{node.machine.name} was preempted at step {notice.step}", "WARNING")

    # --- exits --------------------------------------------------------------------------------------------------------

    def _after_exit(self, number: int, code: int) -> Ended | None:
        machine = self._nodes[number].machine
        was_told = self._notice is not None and self._notice.preemption.node == number
        if self._notice is not None and was_told:
            # It ended before its time was over: its exit code was there before the machine was gone.
            self._note_preemption(self._notice, escalated=False)
            self._notice = None
        what = f"The replica {machine.name} exited with a non-zero status of {code}."
        self._say(machine, what, "ERROR")
        scope = self._budget.after_exit(code)
        if scope is not None:
            self._restart(number, scope, new_disk=was_told)
            return None
        if not self._budget.may_restart:
            what += " Retries are disabled."
        elif code not in TRANSIENT_CODES:
            what += " Termination reason: Error."
        else:
            what += f" The job was restarted {MAX_JOB_RESTARTS} times."
        return Ended("FAILED", INVALID_ARGUMENT, what)

    def _restart(self, number: int, scope: Scope, *, new_disk: bool) -> None:
        if scope == "job" or self._all_together:
            self._stop_all()
            self._start_all(new_disks=new_disk or scope == "job")
            return
        node = self._nodes[number]
        node.tree.kill()
        if new_disk:
            self._remove(node)
        self._starts += 1
        self._nodes[number] = self._start(node.machine, None if new_disk else node)

    # --- starts and ends ----------------------------------------------------------------------------------------------

    def _start_all(self, *, new_disks: bool) -> None:
        self._pools = cluster(self._machines, free_ports(len(self._machines)))
        if new_disks:
            for node in self._nodes:
                self._remove(node)
            self._nodes = []
        self._notice = None
        self._starts += 1
        order = list(range(len(self._machines)))
        # Any may be the first to come; of one job it is always the same.
        random.Random(f"{self._job.name} {self._starts}").shuffle(order)
        # One that is not started again, because the job is cancelled, is still there to be removed.
        nodes = dict(enumerate(self._nodes))
        for place, number in enumerate(order):
            if place and self.cancelled.wait(STAGGER_S * self._scale.time_scale):
                break
            nodes[number] = self._start(self._machines[number], nodes.get(number))
            self._nodes = [nodes[one] for one in sorted(nodes)]

    def _remove(self, node: _Node) -> None:
        node.host.close()
        shutil.rmtree(node.disk, ignore_errors=True)

    def _start(self, machine: Machine, before: _Node | None) -> _Node:
        """Start a machine's container: on the machine that it was on, or on a new one with an empty disk."""
        if before is None:
            self._disks += 1
            disk = self._folder / f"disk-{self._disks}-{machine.name}"
            host = self._network.add(host_name(machine, self._job), identity_of(machine, self._job, self._token))
        else:
            host, disk = before.host, before.disk
        folders = {name: disk / name for name in ("home", "tmp", "work")}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        link = self._links / f"{machine.node}"
        link.unlink(missing_ok=True)
        link.symlink_to(folders["tmp"].absolute())
        environment = {
            **self._environment,
            "HOME": str(folders["home"]),
            "TMPDIR": str(link),
            **environment_of(machine, self._machines, self._job, self._scale, self._pools),
        }
        tree = host.start(
            machine.words,
            environment=environment,
            folder=folders["work"],
            on_line=lambda line: self._say(machine, line, severity_of(line)),
            cores=cores_of(machine, len(self._machines)),
        )
        return _Node(machine, host, tree, disk, self._market.watch(folders["tmp"]))

    def _stop_all(self) -> None:
        """End all: each is told to stop at the same time, and killed when its time is over."""
        stops = [threading.Thread(target=node.tree.stop, args=(self._grace_s,)) for node in self._nodes]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()
