"""A step of the export in a process of its own: its memory is given back, and its peak is known.

Tracing, conversion, quantization and builds each take several times the weights; one after the other in one process
their remains would add up.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from contracts.errors import TryAgain
from contracts.process import end_with_parent

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Cost:
    """What a step took."""

    seconds: float
    """From before its process was started until its result was here."""
    peak_bytes: int
    """Largest resident memory of its process; 0 where it is not known."""

    def add(self, other: Cost) -> Cost:
        """Return the cost of two steps, one after the other."""
        return Cost(self.seconds + other.seconds, max(self.peak_bytes, other.peak_bytes))


def run_step(
    function: Callable[Parameters, Result], /, *arguments: Parameters.args, **named: Parameters.kwargs
) -> tuple[Result, Cost]:
    """Call a function in a process that ends with it; what it raises is raised here.

    Args:
        function: Of a module; it, its arguments and its result are pickled.
        arguments: For it.
        named: For it.

    Raises:
        TryAgain: The process died, for lack of memory most likely.
    """
    began = time.monotonic()
    # Spawned: a fork would copy whatever this process has, its threads' locks included.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=end_with_parent) as pool:
        try:
            result, peak_bytes = pool.submit(_call, function, arguments, named).result()
        except BrokenProcessPool:
            raise TryAgain(
                f"the process of {function.__name__} died, killed from outside: most likely memory ran out "
                "(see the machine's log); a machine with more memory may do"
            ) from None
    return result, Cost(time.monotonic() - began, peak_bytes)


def _call(function: Callable[..., Result], arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Result, int]:
    return function(*arguments, **named), _peak_bytes()


def _peak_bytes() -> int:
    """Return this process's largest resident memory; getrusage would count the parent's, from before exec."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
