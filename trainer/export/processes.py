"""Steps of the export, each in its own process: memory is freed after the step, and its peak is measured.

Tracing, quantization and builds each take several times the memory of the weights, which one process would not return
to the system. Processes are forked from a server (multiprocessing's forkserver) that has imported torch once.
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
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from contracts.errors import ShardlineError, TryAgain
from contracts.own_code import append_code, code_folder
from contracts.process import end_with, use_short_socket_folder

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# What most steps import; none of it starts a thread.
_PRELOADED = [
    "torch",
    "torch.onnx",
    "onnx",
    "onnxruntime",
    # Half of the time of tracing a small network.
    "onnxscript.function_libs.torch_lib.ops",
    "torch._functorch.aot_autograd",
    "torch._inductor.decomposition",
    "transformers.modeling_utils",
    "trainer.data.loader",
    "trainer.export.onnx_graph",
    "trainer.model.build",
    "trainer.tasks.loading",
    "trainer.tasks.metrics",
]
# Signals from outside of the process: from the kernel when memory runs out, or from a machine that shuts down. Every
# other signal (SIGSEGV, SIGABRT, ...) is a library's fault, and recurs with every attempt.
_FROM_OUTSIDE = {signal.SIGKILL: "most likely memory ran out (see the machine's log)", signal.SIGTERM: "shut down"}


@dataclass(frozen=True)
class Cost:
    """Time and memory of a step."""

    seconds: float
    """From the start of its process until its result is received."""
    peak_bytes: int
    """Peak resident memory of its process or its largest child, whichever is larger."""

    def add(self, other: Cost) -> Cost:
        """Return the cost of two steps, one after the other."""
        return Cost(self.seconds + other.seconds, max(self.peak_bytes, other.peak_bytes))


@dataclass(frozen=True)
class _Outcome:
    """Result of a step, or its error with the traceback as text, since pickling loses it."""

    result: Any = None
    peak_bytes: int = 0
    error: BaseException | None = None
    trace: str = ""


def start_server() -> None:
    """Start the fork server, which imports the modules of `_PRELOADED` in the background."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    use_short_socket_folder()
    forkserver.ensure_running()


def run_step(
    function: Callable[Parameters, Result], /, *arguments: Parameters.args, **named: Parameters.kwargs
) -> tuple[Result, Cost]:
    """Call a function in a new process, and return its result or raise its error.

    Args:
        function: Of a module; it, its arguments and its result are pickled.
        arguments: For it.
        named: For it.

    Raises:
        TryAgain: The process was killed from outside, or there was no memory for it.
        ShardlineError: The process crashed; the message has the step and the signal or exit code.
    """
    began = time.monotonic()
    start_server()
    context = multiprocessing.get_context("forkserver")
    parent_end, child_end = context.Pipe()
    process = context.Process(target=_serve, args=(child_end, os.getpid(), dict(os.environ)), name=function.__name__)
    process.start()
    child_end.close()
    with parent_end:
        try:
            outcome = _exchange(parent_end, (code_folder(), pickle.dumps((function, arguments, named))))
            process.join()
        finally:
            # Still alive where this process was interrupted, or could not send the work.
            process.kill()
            process.join()
    if outcome is None:
        raise _exit_error(function.__name__, process.exitcode or 0)
    if isinstance(outcome.error, MemoryError):
        raise TryAgain(
            f"memory ran out in {function.__name__}: {outcome.error!r}; a machine with more memory may do"
        ) from outcome.error
    if outcome.error is not None:
        outcome.error.add_note(f"in the process of {function.__name__}:\n{outcome.trace}")
        raise outcome.error
    return outcome.result, Cost(time.monotonic() - began, outcome.peak_bytes)


def _exchange(connection: Connection, work: object) -> _Outcome | None:
    """Send the work and return its outcome; None: the process died."""
    content = pickle.dumps(work)
    try:
        connection.send_bytes(content)
        answer = connection.recv_bytes()
    except (EOFError, OSError):
        return None
    outcome: _Outcome = pickle.loads(answer)
    return outcome


def _exit_error(step: str, code: int) -> ShardlineError:
    if code >= 0:
        return ShardlineError(f"the process of {step} ended with exit code {code} and without a result")
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if -code in _FROM_OUTSIDE:
        why = _FROM_OUTSIDE[signal.Signals(-code)]
        return TryAgain(f"the process of {step} was killed from outside by {name}: {why}; a larger machine may do")
    return ShardlineError(f"the process of {step} died of {name}: a fault in a library that it uses")


def _serve(connection: Connection, parent: int, environment: dict[str, str]) -> None:
    """Execute the work received over the connection, and exit without torch's teardown, which takes over a second."""
    # The server is this process's parent, and lives as long as this process does.
    end_with(parent)
    os.environ.clear()
    os.environ.update(environment)
    connection.send_bytes(_execute(connection.recv_bytes()))
    # After all other finalizers, which release semaphores.
    Finalize(None, _leave, exitpriority=-1000)


def _leave() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def _execute(content: bytes) -> bytes:
    try:
        folder, work = pickle.loads(content)
        if folder is not None:
            append_code(folder)
        function, arguments, named = pickle.loads(work)
        return pickle.dumps(_Outcome(function(*arguments, **named), _peak_bytes()))
    except BaseException as error:  # noqa: BLE001 - it is raised in the parent
        trace = traceback.format_exc()
        try:
            failure = pickle.dumps(_Outcome(error=error, trace=trace))
            pickle.loads(failure)  # some exceptions can be pickled but not unpickled
        except Exception:  # noqa: BLE001 - a class may raise anything while it is copied
            plain = ShardlineError(f"{type(error).__name__}: {error}")
            failure = pickle.dumps(_Outcome(error=plain, trace=trace))
        return failure


def _peak_bytes() -> int:
    """Return the largest resident memory of this process, or of the largest child that it waited for.

    getrusage would count this process's parent, from before exec; for a child that is this process, which is counted.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    own_peak = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
    return max(own_peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
