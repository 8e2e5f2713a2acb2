"""Jobs as processes of this machine, each with a process group of its own.

A job is one machine here, this one: where a training has several, torchrun's variables (PET_*) in the environment
join the launchers (docs/launch.md).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from pipelines.jobs import JobSpec, JobState, Phase

# Time that a cancelled job has to end by itself. Nothing is lost without it: results are committed by manifests.
_GRACE_S = 3.0
_POLL_S = 0.05


class Local:
    """The processes of this machine; they end with this one by themselves (`end_with_parent`)."""

    def __init__(self, log: Path) -> None:
        """Begin without jobs.

        Args:
            log: File to which everything that the jobs print is appended.
        """
        self._log = log
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cancelled: set[str] = set()

    def submit(self, spec: JobSpec) -> str:
        """Start the command, and return the id of its process."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [*spec.command, *spec.args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(spec.env),
                process_group=0,
            )
        self._processes[str(process.pid)] = process
        return str(process.pid)

    def state(self, job: str) -> JobState:
        """Return how far it is; a job that ended well before it was cancelled has succeeded."""
        exit_code = self._processes[job].poll()
        if exit_code is None:
            return JobState(Phase.RUNNING)
        if exit_code and job in self._cancelled:
            return JobState(Phase.CANCELLED, exit_code)
        return JobState(Phase.FAILED if exit_code else Phase.SUCCEEDED, exit_code)

    def cancel(self, job: str) -> None:
        """End every process of its group: a request first, then no choice; it has ended when this returns."""
        process = self._processes[job]
        if process.poll() is None:
            self._cancelled.add(job)
        deadline = time.monotonic() + _GRACE_S
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(_POLL_S)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def logs(self, job: str) -> Iterator[str]:
        """Yield what all jobs of this log have printed."""
        with self._log.open(encoding="utf-8", errors="replace") as log:
            for line in log:
                yield line.rstrip("\n")
