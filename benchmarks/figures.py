"""What all benchmarks say about numbers and about the machine they were taken on."""

from __future__ import annotations

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
    return summary([top / bottom for top, bottom in zip(one, other, strict=True)])


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return median and range."""
    return {
        "median": round(statistics.median(values), 4),
        "least": round(min(values), 4),
        "most": round(max(values), 4),
    }


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
