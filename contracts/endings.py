"""The end of a stage's process: the exit code of each platform, and the wait to be killed on Vertex AI.

Vertex AI treats the exit code of a container as follows
(https://docs.cloud.google.com/vertex-ai/docs/training/understanding-training-service):
any code other than 0 is a user code exception, which shuts down all workers of the job; 6 and 134 (SIGABRT), 11 and
139 (SIGSEGV) may be transient, and the job is restarted up to three times. It names neither 75 nor 143. So there

    a process that was told to stop     saves, and waits to be killed with its machine: its exit code is never read
    one that asks for another attempt   ends with 134
    all others                          end as everywhere

134 is returned, not raised as a signal: the command of a container may be process 1 of its namespace, for which the
kernel drops SIGABRT, and which abort() then ends by SIGSEGV.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from contracts.errors import EXIT_TRY_AGAIN, ErrorDocument, Preempted

# What Vertex AI calls a custom job, in the environment of its containers, and of no other platform's:
# https://docs.cloud.google.com/vertex-ai/docs/training/code-requirements
JOB_ID_VARIABLE = "CLOUD_ML_JOB_ID"
# 128 + SIGABRT, as container runtimes report it.
EXIT_ABORTED = 134
# Exit codes of a stage that asks for another attempt, on any platform.
ASKS_AGAIN = (EXIT_TRY_AGAIN, EXIT_ABORTED)
# Longer than the longest notice of Compute Engine, 120 s, with the 30 s of a shutdown behind it:
# https://docs.cloud.google.com/compute/docs/instances/spot#preemption
KILL_LIMIT_S = 180.0

Say = Callable[[str], None]


def is_vertex(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process is of a container of a Vertex AI custom job."""
    return bool(environment.get(JOB_ID_VARIABLE))


def without_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a stage whose exit code its parent reads: none of a Vertex AI custom job.

    Such a stage ends as everywhere, also where its parent is in a container of Vertex AI.
    """
    return {name: value for name, value in environment.items() if name != JOB_ID_VARIABLE}


@contextmanager
def outliving_notice(say: Say) -> Iterator[None]:
    """Let SIGTERM end nothing in the block where this process is of Vertex AI and handles it in no other way.

    The work goes on until the machine is gone, as it does where the command is process 1 of its container. What has a
    handler of its own (the launcher of a training, a profile) sets it inside.

    Args:
        say: Tells the user.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not is_vertex() or not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def go_on(number: int, frame: FrameType | None) -> None:
        say(f"told to stop ({signal.Signals(number).name}): there is nothing to save; going on until it is killed")

    # Not SIG_IGN, which the processes that this one starts would inherit.
    signal.signal(signal.SIGTERM, go_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def final_exit_code(code: int, error: ErrorDocument | None, say: Say, *, limit_s: float = KILL_LIMIT_S) -> int:
    """Return the exit code of a process whose work is over and saved; on Vertex AI, first wait to be killed.

    Args:
        code: What the process ends with elsewhere.
        error: Why it ends; None: it has finished.
        say: Tells the user.
        limit_s: How long a process that was told to stop waits.
    """
    if not is_vertex() or code != EXIT_TRY_AGAIN:
        return code
    if error is not None and error.kind == Preempted.__name__:
        if threading.current_thread() is threading.main_thread():
            # Whatever handler the work has left: it has ended.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            say(
                f"told to stop, and everything is saved: waiting up to {limit_s:.0f} s to be killed, since any exit "
                "code may end the job"
            )
            time.sleep(limit_s)
        except KeyboardInterrupt as interrupt:
            return ErrorDocument.of(interrupt).exit_code
        say(f"nobody has killed this process in {limit_s:.0f} s")
    say(f"ending with {EXIT_ABORTED}, for which Vertex AI starts a job again (elsewhere {code})")
    return EXIT_ABORTED
