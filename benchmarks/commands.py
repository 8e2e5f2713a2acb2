"""Seconds of the commands that a user waits for, after `make demo`, and the memory of listing a million files.

    python benchmarks/commands.py [--rounds 7] [--files 1000000] [--record benchmarks/results]

Each command is a process of its own; printed are median and range. `report, 10^6 rows` is the demo's run with a million
rows of scalars. Listing is `shard --dry-run` of class folders of hard links to a few pictures, which also decodes 200.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.shared import REPOSITORY, describe_machine, record, summary
from contracts.scalars import part_name, scalars_line

ROWS, NAMES, PART_ROWS = 1_000_000, 20, 2_000
# Hard links of one file that common file systems allow, with room.
LINKS = 50_000


def seconds(*command: object) -> float:
    """Return how long a command takes; it must succeed."""
    start = time.perf_counter()
    subprocess.run([*map(str, command)], cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return time.perf_counter() - start


def write_rows(line: Path, to: Path) -> Path:
    """Copy a line, replacing its training's scalars by a million rows; return the copy."""
    shutil.copytree(line, to)
    (scalars,) = to.glob("train/*/scalars")
    steps = ROWS // NAMES
    for part, first in enumerate(range(0, steps, PART_ROWS)):
        rows = (
            scalars_line(
                step, step / 10, {f"validation/metric_{name}": (step * 7 + name) % 1000 for name in range(NAMES)}
            )
            for step in range(first, min(first + PART_ROWS, steps))
        )
        (scalars / part_name(1, part)).write_bytes(b"".join(rows))
    return to


def write_links(source: Path, folder: Path, files: int) -> None:
    """Write class folders with hard links to copies of a picture."""
    for number in range(files):
        first = folder / f"class-{number // LINKS:02d}" / f"{number:08d}.png"
        if number % LINKS == 0:
            first.parent.mkdir(parents=True)
            shutil.copy(source, copied := first)
        else:
            os.link(copied, first)


def measure_listing(command: list[str], files: int) -> dict[str, float]:
    """Return seconds and peak memory of a command and its children, which must succeed."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return {"files": files, "seconds": time.perf_counter() - start, "peak_mb": usage.ru_maxrss / 1024}


def main() -> None:
    """Measure, print, and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    line = REPOSITORY / "runs" / "digits"
    shardline = [sys.executable, "-m", "pipelines.cli"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        large = write_rows(line, folder / "runs" / "digits")
        commands: dict[str, list[object]] = {
            "--help": [*shardline, "--help"],
            "compile": [*shardline, "compile", "configs/digits-vertex.yaml", "--to", folder / "line.yaml"],
            "report": [*shardline, "report", line, "--to", folder / "page.html"],
            "report, 10^6 rows": [*shardline, "report", large, "--to", folder / "large.html"],
            "import apache_beam": [sys.executable, "-c", "import apache_beam"],
            "shard, nothing to do": [*shardline, "shard", "configs/digits.yaml"],
        }
        found: dict[str, list[float]] = {what: [] for what in commands}
        for _ in range(options.rounds):
            for what, command in commands.items():
                found[what].append(seconds(*command))
        parts: dict[str, object] = {"about": describe_machine("kfp", "apache-beam", "torch")}
        parts["seconds"] = {what: summary(values) for what, values in found.items()}
        write_links(next((REPOSITORY / "raw" / "digits").rglob("*.png")), folder / "many", options.files)
        overrides = [f"sharding.source={folder / 'many'}", f"run.root={folder / 'listed'}", "sharding.duplicates=off"]
        listing = measure_listing([*shardline, "shard", "configs/digits.yaml", *overrides, "--dry-run"], options.files)
        parts["listing"] = listing
    for what, values in {**parts["seconds"], "listing": listing}.items():  # type: ignore[dict-item]
        print(f"{what:24} {values}")
    if options.record is not None:
        record(options.record, "commands", parts)


if __name__ == "__main__":
    main()
