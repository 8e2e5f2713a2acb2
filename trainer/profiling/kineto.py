"""Reads the chrome trace of torch's profiler (kineto): its events, steps, rank and GPUs. Needs no torch.

Names of categories and arguments are those that kineto writes (libkineto/src/output_json.cpp and
CuptiActivity.cpp of github.com/pytorch/kineto) and torch 2.13 adds; docs/profiling.md lists what is used.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import DataError

STEP_PREFIX = "ProfilerStep#"
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(slots=True)
class Event:
    """Something that took time. Times are in microseconds on the clock of the trace."""

    name: str
    category: str
    start_us: float
    end_us: float
    process: str
    thread: str
    arguments: dict[str, Any]

    @property
    def duration_us(self) -> float:
        """How long it took, in microseconds."""
        return self.end_us - self.start_us


@dataclass(frozen=True)
class Trace:
    """The events of one rank, in the order of their start; of two that start together, the longer one first."""

    events: list[Event]
    memory: list[Event]
    """The allocator's instant events, which take no time."""
    steps: list[Event]
    """Optimizer steps, as the host went through them."""
    thread_names: dict[tuple[str, str], str]
    rank: int
    gpus: dict[int, str]
    """Names of the machine's GPUs by number."""

    def of(self, *categories: str) -> list[Event]:
        """Return the events of some categories."""
        return [event for event in self.events if event.category in categories]


def read_document(path: Path) -> dict[str, Any]:
    """Return the JSON of a trace, .json or .json.gz.

    Raises:
        DataError: It is no chrome trace, or is cut short.
    """
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        # Kernels' names come as the driver gives them, control characters and all.
        document = json.loads(data.decode(errors="replace"), strict=False)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise not_a_trace(path, f"{type(error).__name__}: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise not_a_trace(path, "it has no list traceEvents")
    return document


def read_trace(path: Path) -> Trace:
    """Return what a trace holds.

    Raises:
        DataError: It is no trace of torch's profiler, or has no steps.
    """
    document = read_document(path)
    events: list[Event] = []
    memory: list[Event] = []
    names: dict[tuple[str, str], str] = {}
    for raw in document["traceEvents"]:
        if not isinstance(raw, dict):
            raise not_a_trace(path, "traceEvents holds something that is no event")
        event = _event(raw)
        if raw.get("ph") == "M" and raw.get("name") == "thread_name":
            names.setdefault((event.process, event.thread), str(event.arguments.get("name", "")))
        elif raw.get("ph") == "i" and raw.get("name") == "[memory]":
            memory.append(event)
        elif raw.get("ph") == "X" and event.category not in ("Trace", ""):
            events.append(event)
    events.sort(key=lambda event: (event.start_us, -event.end_us))
    memory.sort(key=lambda event: event.start_us)
    steps = [event for event in events if event.name.startswith(STEP_PREFIX) and event.category == "user_annotation"]
    if not steps:
        raise not_a_trace(path, f"no step is marked in it ({STEP_PREFIX}N)")
    return Trace(events, memory, steps, names, _rank(document), _gpus(document))


def _event(raw: dict[str, Any]) -> Event:
    start, duration, arguments = raw.get("ts"), raw.get("dur"), raw.get("args")
    start_us = float(start) if isinstance(start, int | float) else 0.0
    duration_us = float(duration) if isinstance(duration, int | float) else 0.0
    return Event(
        str(raw.get("name", "")),
        str(raw.get("cat", "")),
        start_us,
        start_us + max(0.0, duration_us),
        str(raw.get("pid", "")),
        str(raw.get("tid", "")),
        arguments if isinstance(arguments, dict) else {},
    )


def _rank(document: dict[str, Any]) -> int:
    """A process that is alone has no group, and writes no distributedInfo."""
    info = document.get("distributedInfo")
    rank = info.get("rank", 0) if isinstance(info, dict) else 0
    return rank if isinstance(rank, int) else 0


def _gpus(document: dict[str, Any]) -> dict[int, str]:
    found: dict[int, str] = {}
    properties = document.get("deviceProperties")
    for one in properties if isinstance(properties, list) else []:
        if isinstance(one, dict) and isinstance(one.get("id"), int) and isinstance(one.get("name"), str):
            found[one["id"]] = one["name"]
    return found


def intervals(events: Iterable[Event]) -> list[tuple[float, float]]:
    """Return the times of events, in microseconds, as they come."""
    return [(event.start_us, event.end_us) for event in events]


def not_a_trace(path: Path, reason: str) -> DataError:
    """Return the error for a file that is no trace."""
    return DataError(
        f"{path.name} is no trace of torch's profiler: {reason}",
        allowed="what torch.profiler's export_chrome_trace writes, .json or .json.gz, with steps (profiler.step())",
        todo="profile again; a trace that was cut short cannot be read",
    )
