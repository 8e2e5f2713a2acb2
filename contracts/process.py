"""What every process of the line sets: its thread count, and that it ends with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

# Read by OpenMP, MKL and OpenBLAS when they are loaded: they must be set before torch or numpy is imported.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_PR_SET_PDEATHSIG = 1


def available_cores() -> int:
    """Number of cores this process may use (cpusets counted)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def threads_per_rank(ranks: int) -> int:
    """Cores divided by ranks, at least one: two unset thread pools on busy cores were seen 50 times slower."""
    return max(1, available_cores() // ranks)


def thread_environment(threads: int) -> dict[str, str]:
    """Return environment variables that fix the intra-op threads of a child process."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere nothing happens)."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(os.EX_TEMPFAIL)
