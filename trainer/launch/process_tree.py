"""Processes below a process, as /proc has them (Linux; elsewhere there are none)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the processes that a process's main thread has started, and that are there."""
    return [int(child) for child in read_proc(pid, f"task/{pid}/children").split()]


def descendants(pid: int) -> Iterator[int]:
    """Yield all processes below a process, each before its own."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def read_proc(pid: int, name: str) -> str:
    """Return a file of a process's folder; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def state(pid: int) -> str:
    """Return the state of a process as proc_pid_stat(5) has it (R, S, T, Z, ...); empty when there is none."""
    fields = read_proc(pid, "stat").rpartition(")")[2].split()
    return fields[0] if fields else ""
