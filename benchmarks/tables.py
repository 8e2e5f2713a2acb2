"""Sharding of a table: the time of `shardline shard`, whole, from a file of rows to the manifest.

    python benchmarks/tables.py --rows 1000000                # CSV: 10 columns of numbers, 2 of categories, a label
    python benchmarks/tables.py --form parquet --rounds 3 --record benchmarks/results

The line is 60 s for 10^6 rows of the CSV on two cores. Processor seconds are those of the command and of all that it
started, waited for; where others use the cores, they say more than the clock.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.figures import describe_machine, record, summary

NUMBERS = 10
_CATEGORIES = (12, 300)
# prctl(2): processes whose parent has ended become this one's, so that their time is counted.
_SET_CHILD_SUBREAPER = 36
FIELDS = {
    "numbers": {"columns": ["*"], "kind": "numbers"},
    "city": {"column": "city", "kind": "category"},
    "code": {"column": "code", "kind": "category"},
    "label": {"column": "label", "kind": "class"},
}


def main() -> None:
    """Run what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--form", choices=("csv", "jsonl", "parquet"), default="csv")
    parser.add_argument("--apart", action="store_true", help="a field for each number instead of one for all")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
    wall, processor = [], []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        source = write_table(place, options.rows, options.form)
        for number in range(options.rounds):
            wall_s, processor_s = run_stage(place, source, number, apart=options.apart)
            print(f"round {number}: {wall_s:.1f} s, {processor_s:.1f} processor seconds", flush=True)
            wall.append(wall_s)
            processor.append(processor_s)
        size = source.stat().st_size
    found = {
        "about": {**describe_machine("apache-beam", "numpy", "pyarrow"), "rows": options.rows, "bytes": size},
        "wall_s": summary(wall),
        "processor_s": summary(processor),
        "rows_per_s": summary([options.rows / one for one in wall]),
    }
    print(json.dumps(found, indent=1))
    if options.record:
        record(options.record, "tables", {options.form + (", fields apart" if options.apart else ""): found})


def write_table(folder: Path, rows: int, form: str) -> Path:
    """Write a table of numbers, two categories and a class with three values; return its path."""
    random = np.random.default_rng(0)
    columns: dict[str, object] = {f"x{number}": random.normal(number, 1.0, rows) for number in range(NUMBERS)}
    for name, count in zip(("city", "code"), _CATEGORIES, strict=True):
        columns[name] = np.char.add(f"{name} ", random.integers(0, count, rows).astype(str))
    columns["label"] = random.choice(["low", "middle", "high"], rows)
    table = pyarrow.table(columns)
    path = folder / f"table.{form}"
    if form == "csv":
        pyarrow.csv.write_csv(table, path)
    elif form == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with path.open("w") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
    return path


def run_stage(place: Path, source: Path, number: int, *, apart: bool) -> tuple[float, float]:
    """Run the command once, in a line of its own; return seconds and processor seconds."""
    fields = dict(FIELDS)
    if apart:
        del fields["numbers"]
        fields |= {f"x{number}": {"column": f"x{number}", "kind": "number"} for number in range(NUMBERS)}
    config = place / f"table-{number}.yaml"
    sections = {
        "run": {"name": f"table-{number}", "root": str(place / "runs")},
        "sharding": {"source": str(source), "fields": fields},
        "task": {"name": "tabular_classification"},
    }
    config.write_text(json.dumps(sections))
    before = _children_s()
    began = time.perf_counter()
    command = [sys.executable, "-m", "pipelines.cli", "shard", str(config)]
    ran = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - began
    if ran.returncode:
        raise SystemExit(ran.stderr)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    return wall_s, _children_s() - before


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
