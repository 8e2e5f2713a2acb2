"""Times the digits line end to end: `python benchmarks/line.py [--runs 3]`.

Prints medians and spreads of the whole run, of kfp itself, and of process starts and imports, from run.json; and of
`shardline --help` against a bare interpreter. Writes a dated file below benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

from contracts.process import available_cores

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("torch", "apache-beam", "kfp", "transformers", "onnxruntime")


def time_command(command: list[str]) -> float:
    """Return the wall time of a command in seconds."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=REPOSITORY)
    return time.perf_counter() - start


def run_line(folder: Path, number: int) -> dict[str, float]:
    """Run the digits once into a folder of its own and return its figures."""
    shardline = [sys.executable, "-m", "pipelines.cli", "run", "configs/digits.yaml"]
    root = folder / f"runs{number}"
    time_command([*shardline, f"sharding.source={folder / 'raw'}", f"run.root={root}"])
    record = json.loads((root / "digits/run.json").read_text())
    stages = {f"stage {stage['name']}": stage["wall_s"] for stage in record["stages"]}
    totals = {name: record[name] for name in ("wall_s", "kfp_s", "process_start_s")}
    return totals | stages | {"test_accuracy": record["results"]["metrics"]["test_accuracy"]}


def spread(values: list[float]) -> dict[str, float]:
    """Return median, least and largest."""
    return {"median": round(median(values), 4), "min": round(min(values), 4), "max": round(max(values), 4)}


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        time_command([sys.executable, "examples/digits.py", str(folder / "raw")])
        runs = [run_line(folder, number) for number in range(options.runs)]
    figures = {key: spread([run[key] for run in runs]) for key in runs[0]}
    starts = [(time_command([sys.executable, "-m", "pipelines.cli", "--help"]), bare()) for _ in range(11)]
    figures["help_s"] = spread([with_help for with_help, _ in starts])
    figures["help_over_bare_interpreter"] = spread([with_help / alone for with_help, alone in starts])
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "runs": options.runs,
        "cores": available_cores(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
        "figures": figures,
    }
    text = json.dumps(result, indent=1)
    print(text)
    target = REPOSITORY / "benchmarks/results" / f"line-{result['date']}.json"
    target.write_text(text + "\n")
    print(f"written to {target.relative_to(REPOSITORY)}")


def bare() -> float:
    """Return the wall time of an interpreter that does nothing."""
    return time_command([sys.executable, "-c", "pass"])


if __name__ == "__main__":
    main()
