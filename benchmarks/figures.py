"""What all benchmarks say about numbers and about the machine they were taken on."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from contracts.process import available_cores


def ratios(one: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """Summarise the ratio of two arms, round by round."""
    return summary(quotients(one, other))


def quotients(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the ratio of two arms of each round."""
    return [top / bottom for top, bottom in zip(one, other, strict=True)]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return median and range."""
    return {
        "median": float(f"{statistics.median(values):.5g}"),
        "least": float(f"{min(values):.5g}"),
        "most": float(f"{max(values):.5g}"),
    }


def judge(
    found: Sequence[float], again: Sequence[float], *, at_most: float | None = None, at_least: float | None = None
) -> dict[str, object]:
    """Say whether a line was reached, or that noise covers it.

    Args:
        found: The line's value, round by round.
        again: Ratio of an arm to itself in the same rounds (A/A); its median must lie within half of the line's margin.
        at_most: The line; its margin is its distance from 1, or where it is 1 or no ratio, the median's from it.
        at_least: The same, the other way.
    """
    line = at_most if at_most is not None else at_least
    assert line is not None
    median, noise = statistics.median(found), abs(statistics.median(again) - 1)
    margin = line - 1 if at_most is not None and line > 1 else abs(median / line - 1)
    reached = median <= line if at_most is not None else median >= line
    verdict = "undecided" if noise > margin / 2 else "reached" if reached else "missed"
    words = f"{'<=' if at_most is not None else '>='} {line}"
    return {**summary(found), "line": words, "A/A": summary(again), "rounds": len(found), "verdict": verdict}


def record(folder: Path, name: str, parts: dict[str, object]) -> None:
    """Write the parts of a benchmark into its result of today; parts measured earlier today stay beside them."""
    path = folder / f"{name}-{datetime.now(UTC):%Y-%m-%d}.json"
    folder.mkdir(parents=True, exist_ok=True)
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **parts}, indent=1) + "\n")


def describe_machine(*packages: str) -> dict[str, object]:
    """Return date, commit, load, hardware, and the versions of Python and of packages."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": commit.stdout.strip(),
        "load": os.getloadavg()[0],
        "cores": available_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "machine": platform.processor() or platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }
