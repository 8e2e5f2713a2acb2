"""Processor time of this process and those that it started."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


def processor_s() -> float:
    """Return the processor time in seconds that this process and its living children have used so far.

    The kernel counts in ticks (10 ms): differences over less than some tenths of a second say little. Without /proc
    only this process counts.
    """
    return time.process_time() + sum(_of(pid) for pid in _children())


def _children() -> list[str]:
    try:
        return [pid for path in Path("/proc/self/task").iterdir() for pid in (path / "children").read_text().split()]
    except OSError:
        return []


def _of(pid: str) -> float:
    try:
        # The name in parentheses may hold anything; utime and stime are the 14th and 15th field (proc_pid_stat(5)).
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S
