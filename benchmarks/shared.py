"""What the benchmarks share: ratios and their verdicts, the machine, synthetic photographs, peers' environments."""

from __future__ import annotations

import json
import os
import platform
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from contracts.process import available_cores, thread_environment

REPOSITORY = Path(__file__).parents[1]
# What trainer/data imports, beside a peer itself; torch is the one that pip finds for the peer.
PEERS_PACKAGES = ("simplejpeg==1.9.0", "pillow==12.3.0", "pydantic", "google-crc32c", "PyYAML")
NUM_DISTINCT_PICTURES = 24
NUM_CLASSES = 10
# Grain that brings a picture of this many pixels near the wished size at quality 90.
_BYTES_PER_PIXEL = 0.33
# Between two looks at processor time: short beside what is measured, long beside what a look costs (a millisecond).
_INTERVAL_S = 0.1


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


def write_pictures(folder: Path, *, total_bytes: int, file_bytes: int, seed: int = 0) -> int:
    """Write class folders with `total_bytes` of pictures of about `file_bytes` each; return the number of files.

    JPEG files that decode at the cost of photographs: smooth structure with a little grain, so that the share of coded
    blocks is that of a photograph and not of noise. A few dozen are encoded; every file is one of them with a comment
    of its own, so that no two are equal.

    Raises:
        FileExistsError: The folder is there.
    """
    folder.mkdir(parents=True)
    bases = [_encode_near(file_bytes, np.random.default_rng([seed, number])) for number in range(NUM_DISTINCT_PICTURES)]
    written = number = 0
    while written < total_bytes:
        content = _with_comment(bases[number % NUM_DISTINCT_PICTURES], b"picture %d" % number)
        place = folder / f"class{number % NUM_CLASSES:02d}"
        place.mkdir(exist_ok=True)
        (place / f"{number:07d}.jpg").write_bytes(content)
        written += len(content)
        number += 1
    return number


def _encode_near(file_bytes: int, random: np.random.Generator) -> bytes:
    """Return a picture at or a little above a size."""
    # Here: an environment of a peer that only reads has no need of it.
    import simplejpeg

    side = int((file_bytes / _BYTES_PER_PIXEL) ** 0.5)
    while True:
        content = simplejpeg.encode_jpeg(_draw(side, random), quality=90, colorspace="RGB", colorsubsampling="420")
        if len(content) >= file_bytes:
            return bytes(content)
        side = int(side * 1.05) + 1


def _draw(side: int, random: np.random.Generator) -> np.ndarray:
    from PIL import Image

    height, width = side * 3 // 4, side * 4 // 3
    layers = np.zeros((height, width, 3), np.float32)
    for cells, strength in ((6, 70), (24, 35), (96, 14)):
        coarse = Image.fromarray(random.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32)
        layers += (smooth / 255 - 0.5) * strength * 2
    layers += random.normal(0, 3, (height, width, 1))
    return np.ascontiguousarray(np.clip(layers + 128, 0, 255).astype(np.uint8))


def _with_comment(content: bytes, comment: bytes) -> bytes:
    """Insert a COM segment behind the start marker (ITU T.81, B.2.4.5)."""
    return content[:2] + b"\xff\xfe" + struct.pack(">H", len(comment) + 2) + comment + content[2:]


class ProcessorTime:
    """Looks at the processor time of this process's descendants from a thread, while a program runs.

    What a noisy neighbour takes from a core is not in it.
    """

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
        while not self._done.wait(_INTERVAL_S):
            self._looks.append((time.time(), sum(_spent_s(pid) for pid in descendants(os.getpid()))))


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes below one."""
    for task in _read(f"/proc/{pid}/task", folder=True).split():
        for child in _read(f"/proc/{pid}/task/{task}/children").split():
            yield int(child)
            yield from descendants(int(child))


def _spent_s(pid: int) -> float:
    # Fields 14 and 15 of proc_pid_stat(5); the name, in parentheses, may hold spaces.
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _read(path: str, *, folder: bool = False) -> str:
    try:
        return " ".join(os.listdir(path)) if folder else Path(path).read_text()  # noqa: PTH208  # names alone
    except OSError:
        return ""


def make_peers(
    folder: Path | None, wanted: dict[str, tuple[str, ...]], *, sees_ours: bool = False
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the interpreters of the environments of peers with what each wants, and why others have none.

    Args:
        folder: Where they are made, once; None: there are none.
        wanted: By name of the peer, what pip is asked for.
        sees_ours: They see this environment's packages, so that torch is the same; else they have `PEERS_PACKAGES`.
    """
    if folder is None:
        return {}, dict.fromkeys(wanted, "no --peers folder was given")
    peers, missing = {}, {}
    for name, requirements in wanted.items():
        python = folder / name / "bin/python"
        try:
            if not python.exists():
                run([sys.executable, "-m", "venv", str(folder / name)])
            if sees_ours:
                (site,) = (folder / name).glob("lib/python*/site-packages")
                (site / "ours.pth").write_text("".join(f"{path}\n" for path in sys.path if "site-packages" in path))
            shared = () if sees_ours else PEERS_PACKAGES
            run([str(python), "-m", "pip", "install", "--quiet", *requirements, *shared])
        except subprocess.CalledProcessError as error:
            missing[name] = error.stderr.strip().splitlines()[-1]
            continue
        peers[name] = str(python)
    return peers, missing


def run(command: list[str], more: dict[str, str] | None = None) -> str:
    """Run a command on one thread, with more variables; return what it prints."""
    environment = {**os.environ, **thread_environment(1), "PYTHONPATH": str(REPOSITORY), **(more or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
        done.check_returncode()
    return done.stdout
