"""Processes of the line: thread counts, end with the parent, fast start and exit, and exit codes on Vertex AI.

Vertex AI treats the exit code of a container as follows
(https://docs.cloud.google.com/vertex-ai/docs/training/understanding-training-service):
any code other than 0 is a user code exception, which shuts down all workers of the job; 6 and 134 (SIGABRT), 11 and
139 (SIGSEGV) may be transient, and the job is restarted up to three times. 75 and 143 are not mentioned. Therefore, on
Vertex AI,

    a preempted process                       saves, and waits to be killed with its machine, without an exit code
    a process that requests another attempt   ends with 134
    all others                                end as on other platforms

134 is an exit code, not a signal: the command may be process 1 of its container, for which the kernel drops SIGABRT, so
that abort() ends it by SIGSEGV.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing.util
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from contracts.environment import settle
from contracts.errors import EXIT_TRY_AGAIN, ErrorDocument, Preempted

# ONNX Runtime 1.31 sends telemetry unless this is 1 when it is loaded.
_QUIET = {"ORT_DISABLE_TELEMETRY": "1"}
# Read by OpenMP, MKL and OpenBLAS when they are loaded: they must be set before torch or numpy is imported.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_PR_SET_PDEATHSIG = 1
JOB_ID_VARIABLE = "CLOUD_ML_JOB_ID"
"""Environment variable with the name of a Vertex AI custom job; no other platform sets it:
https://docs.cloud.google.com/vertex-ai/docs/training/code-requirements"""
EXIT_ABORTED = 134
"""128 + SIGABRT, as container runtimes report it."""
ASKS_AGAIN = (EXIT_TRY_AGAIN, EXIT_ABORTED)
"""Exit codes of a stage that requests another attempt, on any platform."""
# More than the longest notice of Compute Engine, 120 s, plus 30 s of shutdown:
# https://docs.cloud.google.com/compute/docs/instances/spot#preemption
KILL_LIMIT_S = 180.0

Say = Callable[[str], None]


def available_cores() -> int:
    """Return the number of cores that this process may use (cpusets counted)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def threads_per_rank(ranks: int) -> int:
    """Return cores per rank, at least one; without a limit, competing thread pools were measured 50 times slower."""
    return max(1, available_cores() // ranks)


def thread_environment(threads: int) -> dict[str, str]:
    """Return environment variables that fix the intra-op threads of a child process.

    The library tokenizers gets none: a forked process lacks its threads and would wait for them.
    """
    return {**dict.fromkeys(THREAD_VARIABLES, str(threads)), "TOKENIZERS_PARALLELISM": "false"}


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(os.EX_TEMPFAIL)


def end_with(pid: int) -> None:
    """End this process when the process `pid` ends, which need not be its parent (Linux only)."""
    if not hasattr(os, "pidfd_open"):
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(os.EX_TEMPFAIL)
    except OSError:
        return  # not supported by this kernel

    def watch() -> None:
        # A pidfd becomes readable when its process ends.
        select.select([descriptor], [], [])
        os._exit(os.EX_TEMPFAIL)

    threading.Thread(target=watch, name="end with the command", daemon=True).start()


def run_process(main: Callable[[], int]) -> NoReturn:
    """Run the main function of a process, and exit with the code that it returns.

    Garbage collection is off until `imports_done` and at exit: torch or Beam leave a million objects and no garbage.
    That saves 0.3 s at the start and 0.3 s at exit (medians of five, one core).
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    settle()
    gc.disable()
    code = main()
    gc.freeze()
    sys.exit(code)


def imports_done() -> None:
    """Enable garbage collection; call it after the imports."""
    gc.enable()


def is_vertex(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a container of a Vertex AI custom job."""
    return bool(environment.get(JOB_ID_VARIABLE))


def without_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the mark of a Vertex AI job, for a stage whose exit code its parent reads."""
    return {name: value for name, value in environment.items() if name != JOB_ID_VARIABLE}


@contextmanager
def outliving_notice(say: Say) -> Iterator[None]:
    """Ignore SIGTERM in the block, on Vertex AI and unless it has a handler: the work continues until it is killed.

    So does a command that is process 1 of its container. The launcher of a training and a profile set their own
    handlers inside the block.

    Args:
        say: Logs a message.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not is_vertex() or not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def go_on(number: int, frame: FrameType | None) -> None:
        say(f"told to stop ({signal.Signals(number).name}): there is nothing to save; going on until it is killed")

    # Not SIG_IGN, which child processes would inherit.
    signal.signal(signal.SIGTERM, go_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def final_exit_code(code: int, error: ErrorDocument | None, say: Say, *, limit_s: float = KILL_LIMIT_S) -> int:
    """Return the exit code of a finished process; on Vertex AI a preempted process first waits to be killed.

    Args:
        code: Exit code on other platforms.
        error: Error that ends the process; None: it has finished.
        say: Logs a message.
        limit_s: Seconds that a preempted process waits.
    """
    if not is_vertex() or code != EXIT_TRY_AGAIN:
        return code
    if error is not None and error.kind == Preempted.__name__:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            say(
                f"told to stop, and everything is saved: waiting up to {limit_s:.0f} s to be killed, since any exit "
                "code may end the job"
            )
            time.sleep(limit_s)
        except KeyboardInterrupt as interrupt:
            return ErrorDocument.of(interrupt).exit_code
        say(f"not killed within {limit_s:.0f} s")
    say(f"ending with {EXIT_ABORTED}, for which Vertex AI starts a job again (elsewhere {code})")
    return EXIT_ABORTED


# multiprocessing adds about 35 bytes to the temporary folder's path; a socket's path has at most 107 bytes.
_MAX_TEMPORARY, _SHORT_FOLDER = 70, "/tmp"
_folder_choice = threading.Lock()


def use_short_socket_folder() -> None:
    """Make multiprocessing create its sockets in /tmp if TMPDIR is too long; call it before its first use."""
    if len(tempfile.gettempdir()) <= _MAX_TEMPORARY or not os.access(_SHORT_FOLDER, os.W_OK):
        return
    with _folder_choice:
        configured = tempfile.tempdir
        tempfile.tempdir = _SHORT_FOLDER
        try:
            multiprocessing.util.get_temp_dir()
        finally:
            tempfile.tempdir = configured
