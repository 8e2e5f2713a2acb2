"""The machines of one custom job, started, watched, taken away and started again, until the job has ended.

What Vertex does when a container ends, as far as its documentation says it
(https://docs.cloud.google.com/vertex-ai/docs/training/overview, .../use-spot-vms, and issues of those who saw it):

    the first machine's container ends with 0     the job has succeeded; the others are ended
    another's ends with 0                         that machine is done
    one ends otherwise                            it is started again on the same machine, up to 5 times; then the whole
                                                  job on new machines, up to 3 times; then the job has failed
    a machine is taken away                       a new one, without what was on the old one's disk, up to 6 times

With restart_job_on_worker_restart a restart of one is one of all. disable_retries allows none. What else runs when all
are started again is told to stop first, as long as a container is given: how Vertex does that is not documented.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rehearsal.jobs.logbook import severity_of
from rehearsal.jobs.market import Market, Preempted, Preemption
from rehearsal.jobs.steps import StepWatch
from rehearsal.machines.machine import Machine, Scale, cores_of, environment_of, free_ports
from rehearsal.machines.mount import with_python, write_python
from rehearsal.machines.processes import MEMORY_VARIABLE, Tree, clean_environment

# Between a notice and the end of a spot machine: https://docs.cloud.google.com/compute/docs/instances/spot#preemption
NOTICE_S = 30.0
MAX_PREEMPTIONS = 6
MAX_RESTARTS = 5
MAX_RETRIES = 3
_POLL_S = 0.1
# google.rpc.Code
INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, CANCELLED = 3, 4, 8, 1

Say = Callable[[Machine, str, str], None]
"""Machine, text and severity of a line for the log."""


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    state: str
    """SUCCEEDED, FAILED or CANCELLED."""
    code: int = 0
    message: str = ""


@dataclass
class _Node:
    machine: Machine
    tree: Tree
    disk: Path
    watch: StepWatch
    restarts: int = 0
    """On this machine."""

    @property
    def code(self) -> int | None:
        return self.tree.returncode


class Gang:
    """Runs one job's machines.

    Args:
        job: The CustomJob.
        machines: Its machines.
        folder: For their disks.
        environment: Of all containers.
        say: Takes the log.
        market: Takes machines away.
        scale: Of the rehearsal.
        now: The rehearsed time, in seconds since the epoch.
    """

    def __init__(
        self,
        job: Any,
        machines: Sequence[Machine],
        *,
        folder: Path,
        environment: Mapping[str, str],
        say: Say,
        market: Market,
        scale: Scale,
        now: Callable[[], float],
    ) -> None:
        self._job, self._machines, self._folder = job, machines, folder
        self._environment = with_python(clean_environment(environment), write_python(folder / "bin"))
        self._say, self._market, self._scale, self._now = say, market, scale, now
        scheduling = job.job_spec.scheduling
        self._all_together = bool(scheduling.restart_job_on_worker_restart)
        self._may_retry = not scheduling.disable_retries
        self._is_spot = scheduling.strategy.name == "SPOT"
        self._timeout_s = scheduling.timeout.total_seconds() if scheduling.timeout else 0.0
        self._grace_s = NOTICE_S * scale.time_scale
        self._nodes: list[_Node] = []
        self._starts = self._preemptions = self._retries = 0
        self._disks = 0
        self._drawn: list[Preemption] = []
        self._began_at = self._started_at = 0.0
        self._port = 0
        # A socket's path has 107 characters at most, and loaders of a training make theirs below TMPDIR: it is a short
        # link to the machine's disk, however deep that lies.
        self._links = Path(tempfile.mkdtemp(prefix="shl-"))
        self.cancelled = threading.Event()

    def run(self) -> Ended:
        """Run until the job has ended; nothing of it runs then."""
        self._began_at = time.monotonic()
        try:
            self._start_all(new_disks=True)
            while (ended := self._step()) is None:
                self.cancelled.wait(_POLL_S)
            return ended
        finally:
            self._stop_all()
            for node in self._nodes:
                shutil.rmtree(node.disk, ignore_errors=True)
            shutil.rmtree(self._links, ignore_errors=True)

    def _step(self) -> Ended | None:
        if self.cancelled.is_set():
            return Ended("CANCELLED", CANCELLED, "the job was cancelled")
        # Not scaled: the work is no faster here than it is.
        if self._timeout_s and time.monotonic() - self._began_at > self._timeout_s:
            return Ended("FAILED", DEADLINE_EXCEEDED, f"the job ran longer than its timeout of {self._timeout_s:.0f} s")
        if self._nodes[0].code == 0:
            return Ended("SUCCEEDED")
        for node in self._nodes:
            if node.code not in (None, 0):
                return self._after_failure(node)
        if self._is_spot and (preemption := self._find_due()) is not None:
            return self._preempt(preemption)
        return None

    # --- preemptions --------------------------------------------------------------------------------------------------

    def _find_due(self) -> Preemption | None:
        first = self._nodes[0].watch
        first.look()
        running_s = (time.monotonic() - self._started_at) / self._scale.time_scale
        return self._market.due(
            self._drawn, self._job.display_name, len(self._nodes), (first.step, first.total, running_s)
        )

    def _preempt(self, preemption: Preemption) -> Ended | None:
        node = self._nodes[preemption.node]
        if node.code is not None:
            return None
        step = self._nodes[0].watch.step
        escalated = False
        if preemption.kind == "sigterm":
            node.tree.send(signal.SIGTERM)
            if node.tree.wait(self._grace_s) is None:
                escalated = True
                node.tree.kill()
        else:
            node.tree.kill()
        code = node.code
        if code == 0:
            # It had finished before it was hit.
            return None
        happened = Preempted(
            self._job.name,
            self._job.display_name,
            preemption.node,
            preemption.kind,
            step,
            self._starts,
            self._now(),
            exit_code=code,
            escalated=escalated,
        )
        self._market.note(preemption, happened)
        self._say(node.machine, f"{node.machine.name} was preempted at step {step}", "WARNING")
        self._preemptions += 1
        if not self._may_retry:
            return Ended("FAILED", RESOURCE_EXHAUSTED, f"{node.machine.name} was preempted, and retries are disabled")
        if self._preemptions > MAX_PREEMPTIONS:
            return Ended(
                "FAILED",
                RESOURCE_EXHAUSTED,
                f"STOCKOUT: machines of the job were preempted {self._preemptions} times; it was started again "
                f"{MAX_PREEMPTIONS} times, and is not any more",
            )
        self._restart(node, new_disks=True)
        return None

    # --- failures -----------------------------------------------------------------------------------------------------

    def _after_failure(self, node: _Node) -> Ended | None:
        code = node.code or 0
        shown = 128 - code if code < 0 else code
        what = f"The replica {node.machine.name} exited with a non-zero status of {shown}."
        self._say(node.machine, what, "ERROR")
        if not self._may_retry:
            return Ended("FAILED", INVALID_ARGUMENT, f"{what} Retries are disabled.")
        if node.restarts < MAX_RESTARTS:
            node.restarts += 1
            self._restart(node, new_disks=False)
            return None
        if self._retries < MAX_RETRIES:
            self._retries += 1
            self._stop_all()
            self._start_all(new_disks=True)
            return None
        restarts = f"{MAX_RESTARTS} times on its machine, and the job {MAX_RETRIES} times on new ones"
        return Ended("FAILED", INVALID_ARGUMENT, f"{what} It was started again {restarts}.")

    def _restart(self, node: _Node, *, new_disks: bool) -> None:
        if self._all_together:
            self._stop_all()
            self._start_all(new_disks=new_disks)
            return
        node.tree.kill()
        if new_disks:
            shutil.rmtree(node.disk, ignore_errors=True)
        place = self._nodes.index(node)
        disk = self._new_disk(node.machine) if new_disks else node.disk
        self._starts += 1
        self._nodes[place] = self._start(node.machine, disk, 0 if new_disks else node.restarts)
        self._begin_to_count()

    # --- starts and ends ----------------------------------------------------------------------------------------------

    def _start_all(self, *, new_disks: bool) -> None:
        self._port = free_ports()
        before = self._nodes
        if new_disks:
            for node in before:
                shutil.rmtree(node.disk, ignore_errors=True)
        self._nodes = []
        self._starts += 1
        for number, machine in enumerate(self._machines):
            old = before[number] if before and not new_disks else None
            disk = old.disk if old else self._new_disk(machine)
            self._nodes.append(self._start(machine, disk, old.restarts if old else 0))
        self._begin_to_count()

    def _begin_to_count(self) -> None:
        self._started_at = time.monotonic()
        # A rate has no memory: whoever was spared so far is drawn for again.
        self._drawn = self._market.draw(len(self._machines), self._job.display_name) if self._is_spot else []

    def _new_disk(self, machine: Machine) -> Path:
        self._disks += 1
        return self._folder / f"disk-{self._disks}-{machine.name}"

    def _start(self, machine: Machine, disk: Path, restarts: int) -> _Node:
        folders = {name: disk / name for name in ("home", "tmp", "work", "memory")}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        link = self._links / f"{machine.node}"
        link.unlink(missing_ok=True)
        link.symlink_to(folders["tmp"].absolute())
        environment = {
            **self._environment,
            "HOME": str(folders["home"]),
            "TMPDIR": str(link),
            MEMORY_VARIABLE: str(folders["memory"]),
            **environment_of(machine, self._machines, self._job, self._scale, self._port),
        }
        tree = Tree(
            machine.words,
            environment=environment,
            folder=folders["work"],
            on_line=lambda line: self._say(machine, line, severity_of(line)),
            cores=cores_of(machine, len(self._machines)),
        )
        return _Node(machine, tree, disk, StepWatch(folders["tmp"]), restarts)

    def _stop_all(self) -> None:
        """End all: each is told to stop at the same time, and killed when its time is over."""
        stops = [threading.Thread(target=node.tree.stop, args=(self._grace_s,)) for node in self._nodes]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()
