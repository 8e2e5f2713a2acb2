"""A step of the export in a process of its own: its memory is given back, and its peak is known.

Tracing, conversion, quantization and builds each take several times the weights; one after the other in one process
their remains would add up.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

from contracts.errors import ShardlineError, TryAgain
from contracts.own_code import append_code, code_folder
from contracts.process import end_with_parent

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# How a process ends that somebody else ended: the kernel that is out of memory, or a machine that is taken away. Every
# other signal (SIGSEGV, SIGABRT, ...) is a library's fault, and would come again with every attempt.
_FROM_OUTSIDE = {signal.SIGKILL: "most likely memory ran out (see the machine's log)", signal.SIGTERM: "told to stop"}


@dataclass(frozen=True)
class Cost:
    """What a step took."""

    seconds: float
    """From before its process was started until its result was here."""
    peak_bytes: int
    """Largest resident memory of its process, or of the largest that it started; 0 where it is not known."""
    processor_s: float = 0.0
    """Seconds of a core that its process and what it started took, its start included."""

    def add(self, other: Cost) -> Cost:
        """Return the cost of two steps, one after the other."""
        return Cost(
            self.seconds + other.seconds,
            max(self.peak_bytes, other.peak_bytes),
            self.processor_s + other.processor_s,
        )


@dataclass(frozen=True)
class _Failure:
    """What a step raised, and where: tracebacks do not cross processes."""

    error: BaseException
    where: str


def run_step(
    function: Callable[Parameters, Result], /, *arguments: Parameters.args, **named: Parameters.kwargs
) -> tuple[Result, Cost]:
    """Call a function in a process that ends with it; what it raises is raised here.

    Args:
        function: Of a module; it, its arguments and its result are pickled.
        arguments: For it.
        named: For it.

    Raises:
        TryAgain: The process was killed from outside, or there was no memory for it.
        ShardlineError: It died by itself: the step and its signal or exit code are named.
    """
    began = time.monotonic()
    # Spawned: a fork would copy whatever this process has, its threads' locks included.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), name=function.__name__)
    process.start()
    theirs.close()
    with ours:
        try:
            outcome, peak_bytes, processor_s = _ask(ours, (code_folder(), pickle.dumps((function, arguments, named))))
            process.join()
        finally:
            # Still alive where this process was interrupted, or could not send the work.
            process.kill()
            process.join()
    if outcome is None:
        raise _why_it_died(function.__name__, process.exitcode or 0)
    if isinstance(outcome, _Failure):
        if isinstance(outcome.error, MemoryError):
            raise TryAgain(
                f"memory ran out in {function.__name__}: {outcome.error!r}; a machine with more memory may do"
            ) from outcome.error
        outcome.error.add_note(f"in the process of {function.__name__}:\n{outcome.where}")
        raise outcome.error
    return cast(tuple[Result], outcome)[0], Cost(time.monotonic() - began, peak_bytes, processor_s)


def _ask(connection: Connection, work: object) -> tuple[object, int, float]:
    """Send the work; return a tuple with the result or a _Failure, or None where the process died, and what it took."""
    content = pickle.dumps(work)
    try:
        connection.send_bytes(content)
        answer = connection.recv_bytes()
    except (EOFError, OSError):
        return None, 0, 0.0
    return cast(tuple[object, int, float], pickle.loads(answer))


def _why_it_died(step: str, code: int) -> ShardlineError:
    if code >= 0:
        return ShardlineError(f"the process of {step} ended with exit code {code} and without a result")
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if -code in _FROM_OUTSIDE:
        why = _FROM_OUTSIDE[signal.Signals(-code)]
        return TryAgain(f"the process of {step} was killed from outside by {name}: {why}; a larger machine may do")
    return ShardlineError(f"the process of {step} died of {name}: a fault in a library that it uses")


def _serve(connection: Connection) -> None:
    """Be the process of a step. The work comes over the connection: importing it is under the parent's eyes already."""
    end_with_parent()
    connection.send_bytes(_answer(connection.recv_bytes()))
    # After all other finalizers: semaphores are given back there.
    Finalize(None, _leave, exitpriority=-1000)


def _leave() -> None:
    """End this process at once: to take torch apart takes a second and more, and all that is left is memory."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def _answer(content: bytes) -> bytes:
    try:
        folder, work = pickle.loads(content)
        if folder is not None:
            append_code(folder)
        function, arguments, named = pickle.loads(work)
        return pickle.dumps(((function(*arguments, **named),), _peak_bytes(), _processor_s()))
    except BaseException as error:  # noqa: BLE001 - it is raised in the parent
        where = traceback.format_exc()
        try:
            failure = pickle.dumps((_Failure(error, where), 0, 0.0))
            pickle.loads(failure)  # some can be written only
        except Exception:  # noqa: BLE001 - a class may raise anything while it is copied
            error = ShardlineError(f"{type(error).__name__}: {error}")
            failure = pickle.dumps((_Failure(error, where), 0, 0.0))
        return failure


def _processor_s() -> float:
    found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in found)


def _peak_bytes() -> int:
    """Return the largest resident memory of this process, or of the largest child that it waited for.

    getrusage would count this process's parent, from before exec; for a child that is this process, which is counted.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    own = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
