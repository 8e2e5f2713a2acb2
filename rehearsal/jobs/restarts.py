"""Restart rules of a custom job after the exit of a container or the loss of a machine.

A non-zero exit code is a user code exception and fails the job. Exit codes 6 and 134 (SIGABRT), 11 and 139 (SIGSEGV)
may be transient: the job is restarted up to three times. After the loss of a machine, its worker is restarted up to
five times, then the job up to three times. Scheduling.disable_retries disables all restarts.
https://docs.cloud.google.com/vertex-ai/docs/training/understanding-training-service,
https://docs.cloud.google.com/vertex-ai/docs/training/use-spot-vms; docs/rehearsal.md has our undocumented choices.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Scope = Literal["worker", "job"]
"""Scope of a restart: one container, or all on new machines."""
MAX_WORKER_RESTARTS = 5
MAX_JOB_RESTARTS = 3
# SIGABRT and SIGSEGV, as signal numbers and as exit codes of shells and container runtimes.
TRANSIENT_CODES = frozenset({6, 134, 11, 139})


@dataclass
class RestartBudget:
    """Remaining restarts of one job.

    Args:
        may_restart: False: Scheduling.disable_retries is set.
    """

    may_restart: bool = True
    _worker_restarts: Counter[int] = field(default_factory=Counter)
    """By machine, since the job was last restarted."""
    _job_restarts: int = 0

    def after_exit(self, code: int) -> Scope | None:
        """Spend a restart after a container's exit with a code other than 0; None: the job has failed."""
        return self._spend_job() if code in TRANSIENT_CODES else None

    def after_loss(self, node: int) -> Scope | None:
        """Spend a restart after the loss of a machine; None: the job has failed."""
        if self.may_restart and self._worker_restarts[node] < MAX_WORKER_RESTARTS:
            self._worker_restarts[node] += 1
            return "worker"
        return self._spend_job()

    def _spend_job(self) -> Scope | None:
        if not self.may_restart or self._job_restarts >= MAX_JOB_RESTARTS:
            return None
        self._job_restarts += 1
        self._worker_restarts.clear()
        return "job"
