"""What every process of the line sets: its thread count, that it ends with its parent, and a fast start and end."""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from contracts.environment import settle

# ONNX Runtime 1.31 reports its use to its maker unless this is 1 when it is loaded. Seen by the guard of a rehearsal,
# which refuses every host but its own.
_QUIET = {"ORT_DISABLE_TELEMETRY": "1"}
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
    """Return environment variables that fix the intra-op threads of a child process.

    The library tokenizers gets none: those that it has when a process is forked are missing in the new one, which would
    wait for them.
    """
    return {**dict.fromkeys(THREAD_VARIABLES, str(threads)), "TOKENIZERS_PARALLELISM": "false"}


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere nothing happens)."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(os.EX_TEMPFAIL)


def end_with(pid: int) -> None:
    """End this process when another one ends that need not be its parent (Linux; elsewhere nothing happens)."""
    if not hasattr(os, "pidfd_open"):
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(os.EX_TEMPFAIL)
    except OSError:
        return  # a kernel without it

    def watch() -> None:
        # It becomes readable when the process ends.
        select.select([descriptor], [], [])
        os._exit(os.EX_TEMPFAIL)

    threading.Thread(target=watch, name="end with the command", daemon=True).start()


def run_process(main: Callable[[], int]) -> NoReturn:
    """Run the main function of a process, and exit with the code that it returns.

    Until `imports_done`, and at the end, nobody looks for garbage in cycles: torch or Beam leave a million objects to
    look through and none to free. That saves 0.3 s of a start and 0.3 s of an end (medians of five, one core).
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    settle()
    gc.disable()
    code = main()
    gc.freeze()
    sys.exit(code)


def refuse_import(name: str) -> None:
    """Let `import name` fail in this process, whatever folder of that name lies in its path.

    Any folder passes for a package. kfp.local does without the package docker where it is not installed, and ends with
    an AttributeError where the user's project, or this one, has a folder that is called so.
    """
    sys.modules[name] = None  # type: ignore[assignment]


def imports_done() -> None:
    """Say that what comes now is the work."""
    gc.enable()
