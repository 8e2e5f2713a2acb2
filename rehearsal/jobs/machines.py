"""Machines of one custom job: start, preemption, restart and end.

Restart rules are in rehearsal/jobs/restarts.py. Other rules
(https://docs.cloud.google.com/vertex-ai/docs/training/understanding-training-service, .../use-spot-vms):

    container of the first machine exits with 0   the job has succeeded; the others are stopped
    container of another machine exits with 0     that machine is done
    a machine is preempted                        its container gets SIGTERM and is killed 30 s later, or is killed at
                                                  once; an earlier exit code counts like any other
    machines start one by one                     the job is running when all are up

With restart_job_on_worker_restart, the restart of one machine restarts all; running containers get SIGTERM first.
"""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.rpc.code_pb2 import CANCELLED, DEADLINE_EXCEEDED, INVALID_ARGUMENT, OK, RESOURCE_EXHAUSTED

from rehearsal.jobs.market import Market, Preempted, Preemption, Progress
from rehearsal.jobs.restarts import MAX_JOB_RESTARTS, MAX_WORKER_RESTARTS, TRANSIENT_CODES, RestartBudget, Scope
from rehearsal.jobs.threads import Place
from rehearsal.machines.machine import (
    LINKS_PREFIX,
    Machine,
    Scale,
    cluster,
    cores_of,
    environment_of,
    free_ports,
    make_folders,
    tenant_identity,
)
from rehearsal.machines.metadata import MetadataServer
from rehearsal.machines.processes import ProcessTree, clean_environment
from rehearsal.vertex.logs import severity_of

# Time between preemption notice and end of a spot machine: https://docs.cloud.google.com/compute/docs/instances/spot#preemption
NOTICE_S = 30.0
# Time between the starts of a job's machines: undocumented, our choice.
STAGGER_S = 5.0
_POLL_S = 0.1


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    state: str
    """SUCCEEDED, FAILED or CANCELLED."""
    code: int = OK
    """google.rpc.Code."""
    message: str = ""


@dataclass
class _Node:
    """A running machine and its container."""

    machine: Machine
    metadata: MetadataServer
    disk: Path
    tree: ProcessTree
    progress: Progress | None

    @property
    def code(self) -> int | None:
        """Exit code as Vertex AI shows it, 128 + N for signal N; None while it runs."""
        code = self.tree.returncode
        return code if code is None or code >= 0 else 128 - code

    def remove(self) -> None:
        """Kill the machine's processes and delete its disk."""
        self.tree.kill()
        self.metadata.close()
        shutil.rmtree(self.disk, ignore_errors=True)


@dataclass(frozen=True)
class _Notice:
    """A preemption notice."""

    preemption: Preemption
    step: int
    """Training step at the notice."""
    deadline: float
    """End of the machine, by the monotonic clock."""


class JobMachines:
    """Runs the machines of one job.

    `log` receives machine, text and severity of each line. `on_running` is called once, when all machines are up. Once
    `is_closed`, machines are killed without time to save.
    """

    def __init__(
        self,
        job: Any,
        machines: Sequence[Machine],
        *,
        place: Place,
        market: Market,
        scale: Scale,
        log: Callable[[Machine, str, str], None],
        on_running: Callable[[], None],
        cancelled: threading.Event,
        is_closed: Callable[[], bool],
    ) -> None:
        self._job, self._machines, self._place = job, machines, place
        self._market, self._scale, self._log = market, scale, log
        self._on_running, self._cancelled, self._is_closed = on_running, cancelled, is_closed
        scheduling = job.job_spec.scheduling
        self._restarts_all = bool(scheduling.restart_job_on_worker_restart)
        self._budget = RestartBudget(may_restart=not scheduling.disable_retries)
        self._is_spot = scheduling.strategy.name == "SPOT"
        self._timeout_s = scheduling.timeout.total_seconds() if scheduling.timeout else 0.0
        self._grace_s = NOTICE_S * scale.time_scale
        self._nodes: list[_Node] = []
        self._num_starts = self._num_disks = 0
        self._notice: _Notice | None = None
        self._began_at = 0.0
        self._pools: dict[str, list[str]] = {}
        # TMPDIR is a short link to the machine's disk: data loaders create sockets in it, and a socket's path has at
        # most 107 characters.
        self._links = Path(tempfile.mkdtemp(prefix=LINKS_PREFIX))

    def run(self) -> Outcome:
        """Run the machines until the job has ended."""
        self._began_at = time.monotonic()
        try:
            self._start_all(new_disks=True)
            if not self._cancelled.is_set():
                self._on_running()
            while (outcome := self._step()) is None:
                self._cancelled.wait(_POLL_S)
            return outcome
        finally:
            self._stop_all()
            for node in self._nodes:
                node.remove()
            shutil.rmtree(self._links, ignore_errors=True)

    def _step(self) -> Outcome | None:
        if self._cancelled.is_set():
            return Outcome("CANCELLED", CANCELLED, "the job was cancelled")
        # Not scaled by time_scale, since real work is not faster.
        if self._timeout_s and time.monotonic() - self._began_at > self._timeout_s:
            text = f"the job ran longer than its timeout of {self._timeout_s:.0f} s"
            return Outcome("FAILED", DEADLINE_EXCEEDED, text)
        if self._nodes[0].code == 0:
            return Outcome("SUCCEEDED")
        for number, node in enumerate(self._nodes):
            if node.code:
                return self._after_exit(number, node.code)
        if self._notice is not None:
            return self._kill_preempted(self._notice) if time.monotonic() >= self._notice.deadline else None
        progress = self._nodes[0].progress
        if self._is_spot and self._market.missing and progress is not None:
            progress.read()
            due = self._market.due(self._job.display_name, len(self._nodes), progress.step, progress.total)
            # Finished machines are not preempted.
            if due is not None and self._nodes[due.node].code is None:
                return self._preempt(due, progress.step)
        return None

    def _preempt(self, preemption: Preemption, step: int) -> Outcome | None:
        """Send a machine a preemption notice, or kill it at once."""
        if preemption.kind == "sigkill":
            return self._kill_preempted(_Notice(preemption, step, 0.0))
        self._notice = _Notice(preemption, step, time.monotonic() + self._grace_s)
        node = self._nodes[preemption.node]
        node.metadata.preempt()
        node.tree.send(signal.SIGTERM)
        return None

    def _kill_preempted(self, notice: _Notice) -> Outcome | None:
        """Kill a preempted machine's container, and restart it or the job."""
        self._notice = None
        number = notice.preemption.node
        node = self._nodes[number]
        node.tree.kill()
        if node.code == 0:
            return None
        self._record(notice, is_escalated=notice.preemption.kind == "sigterm")
        scope = self._budget.after_loss(number)
        if scope is not None:
            self._restart(number, scope, new_disk=True)
            return None
        text = f"{node.machine.name} was preempted"
        if not self._budget.may_restart:
            return Outcome("FAILED", RESOURCE_EXHAUSTED, f"{text}, and retries are disabled")
        restarts = f"{MAX_WORKER_RESTARTS} times, and the job {MAX_JOB_RESTARTS} times"
        return Outcome("FAILED", RESOURCE_EXHAUSTED, f"STOCKOUT: {text}, and its worker had been restarted {restarts}")

    def _record(self, notice: _Notice, *, is_escalated: bool) -> None:
        preemption, node = notice.preemption, self._nodes[notice.preemption.node]
        preempted = Preempted(
            self._job.display_name,
            preemption.node,
            preemption.kind,
            notice.step,
            exit_code=node.tree.returncode,
            escalated=is_escalated,
        )
        self._market.record(preemption, preempted)
        self._log(node.machine, f"{node.machine.name} was preempted at step {notice.step}", "WARNING")

    def _after_exit(self, number: int, code: int) -> Outcome | None:
        machine = self._nodes[number].machine
        had_notice = self._notice is not None and self._notice.preemption.node == number
        if self._notice is not None and had_notice:
            # The container exited before the deadline.
            self._record(self._notice, is_escalated=False)
            self._notice = None
        text = f"The replica {machine.name} exited with a non-zero status of {code}."
        self._log(machine, text, "ERROR")
        scope = self._budget.after_exit(code)
        if scope is not None:
            self._restart(number, scope, new_disk=had_notice)
            return None
        if not self._budget.may_restart:
            text += " Retries are disabled."
        elif code not in TRANSIENT_CODES:
            text += " Termination reason: Error."
        else:
            text += f" The job was restarted {MAX_JOB_RESTARTS} times."
        return Outcome("FAILED", INVALID_ARGUMENT, text)

    def _restart(self, number: int, scope: Scope, *, new_disk: bool) -> None:
        if scope == "job" or self._restarts_all:
            self._stop_all()
            self._start_all(new_disks=new_disk or scope == "job")
            return
        node = self._nodes[number]
        node.tree.kill()
        if new_disk:
            node.remove()
        self._num_starts += 1
        self._nodes[number] = self._start(node.machine, None if new_disk else node)

    def _start_all(self, *, new_disks: bool) -> None:
        self._pools = cluster(self._machines, free_ports(len(self._machines)))
        if new_disks:
            for node in self._nodes:
                node.remove()
            self._nodes = []
        self._notice = None
        self._num_starts += 1
        order = list(range(len(self._machines)))
        # Machines start in random order, deterministic per job and start.
        random.Random(f"{self._job.name} {self._num_starts}").shuffle(order)
        # Includes nodes that are not restarted because the job is cancelled: `run` removes them.
        nodes = dict(enumerate(self._nodes))
        for place, number in enumerate(order):
            if place and self._cancelled.wait(STAGGER_S * self._scale.time_scale):
                break
            nodes[number] = self._start(self._machines[number], nodes.get(number))
            self._nodes = [nodes[index] for index in sorted(nodes)]

    def _start(self, machine: Machine, previous: _Node | None) -> _Node:
        """Start a machine's container, on the disk of `previous` or on a new, empty one."""
        number = self._job.name.rpartition("/")[2]
        if previous is None:
            self._num_disks += 1
            disk = self._place.folder / number / f"disk-{self._num_disks}-{machine.name}"
            metadata = self._make_metadata(machine)
        else:
            disk, metadata = previous.disk, previous.metadata
        folders = make_folders(disk)
        link = self._links / f"{machine.node}"
        link.unlink(missing_ok=True)
        link.symlink_to(folders["tmp"].absolute())
        environment = {
            **clean_environment(self._place.environment),
            **metadata.environment,
            "HOME": str(folders["home"]),
            "TMPDIR": str(link),
            **environment_of(machine, self._machines, self._job, self._scale, self._pools),
        }
        progress = self._market.watch(folders["tmp"]) if self._market.watch is not None else None
        tree = ProcessTree(
            machine.command,
            environment=environment,
            folder=folders["work"],
            on_line=lambda line: self._log(machine, line, severity_of(line)),
            cores=cores_of(machine, len(self._machines)),
        )
        return _Node(machine, metadata, disk, tree, progress)

    def _make_metadata(self, machine: Machine) -> MetadataServer:
        _, project, _, region, _, number = self._job.name.split("/")
        identity = tenant_identity(project, region, machine.type, self._job.job_spec.service_account, self._place.token)
        # In the form of Vertex AI's host names; unchanged by restarts.
        name = f"cmle-training-workerpool{machine.pool}-{number}-{machine.index}"
        return MetadataServer(name, identity, self._place.on_refused)

    def _stop_all(self) -> None:
        """Send SIGTERM to all; kill the rest after the notice time, or once the cloud is closed."""
        for node in self._nodes:
            node.tree.send(signal.SIGTERM)
        deadline = time.monotonic() + self._grace_s
        while any(node.code is None for node in self._nodes):
            if self._is_closed() or time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        for node in self._nodes:
            node.tree.kill()
