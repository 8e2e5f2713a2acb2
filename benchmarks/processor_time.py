"""Processor time of a program and all that it starts: what a noisy neighbour takes from a core is not in it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

# Short beside what is measured (seconds), long beside what a look costs (about a millisecond).
INTERVAL_S = 0.1


class ProcessorTime:
    """Looks at the processor time of this process's descendants from a thread, while a program runs."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, float]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def between(self, start: float, end: float) -> float:
        """Return the processor seconds between two times since the epoch; no process may end meanwhile."""
        times, spent = np.array(self._looks).T
        return float(np.diff(np.interp([start, end], times, spent))[0])

    def _watch(self) -> None:
        while not self._done.wait(INTERVAL_S):
            self._looks.append((time.time(), sum(_spent_s(pid) for pid in _descendants(os.getpid()))))


def _descendants(pid: int) -> Iterator[int]:
    for task in _read(f"/proc/{pid}/task", folder=True).split():
        for child in _read(f"/proc/{pid}/task/{task}/children").split():
            yield int(child)
            yield from _descendants(int(child))


def _spent_s(pid: int) -> float:
    # Fields 14 and 15 of proc_pid_stat(5); the name, in parentheses, may hold spaces.
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _read(path: str, *, folder: bool = False) -> str:
    try:
        return " ".join(os.listdir(path)) if folder else Path(path).read_text()  # noqa: PTH208  # names alone
    except OSError:
        return ""
