"""How long a user waits before anything runs on Vertex AI: help, compile, the dry run of a submission, a rehearsal.

    python benchmarks/vertex.py [--record] [--rounds N] [--no-rehearsal]

Wall times of whole commands, as a user starts them, beside the start of an interpreter that imports kfp (what no
compile of a pipeline can be faster than). The rehearsal is that of the digits with two preemptions, the undisturbed
training that it is compared with included. Needs a quiet machine; the load is recorded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

from benchmarks.figures import describe_machine, quotients, record, summary

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "digits-vertex.yaml"
RESULTS = Path(__file__).parent / "results"
# Images that no registry has: the configuration names none, and nothing is pulled.
IMAGES = [
    f"cloud.images.{role}=us-central1-docker.pkg.dev/acme-vision/shardline/{role}@sha256:{sha256(role.encode()).hexdigest()}"
    for role in ("pipeline", "trainer", "export")
]
CLI = [sys.executable, "-m", "pipelines.cli"]
HELP_LINE_S, COMPILE_LINE_S, DRY_RUN_LINE_S, REHEARSAL_LINE_S = 0.3, 2.0, 5.0, 120.0


def timed(command: list[str], folder: Path) -> float:
    """Return the wall time of a command in seconds."""
    began = time.monotonic()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.monotonic() - began


def main() -> None:
    """Measure and print, and write benchmarks/results/vertex-DATE.json with --record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--no-rehearsal", action="store_true")
    options = parser.parse_args()
    arms = {
        "--help": [*CLI, "--help"],
        "import kfp": [sys.executable, "-c", "import kfp.compiler"],
        "compile": [*CLI, "compile", str(CONFIG), *IMAGES, "--output", "line.yaml"],
        "submit --dry-run": [*CLI, "submit", str(CONFIG), *IMAGES, "--dry-run"],
    }
    times: dict[str, list[float]] = {name: [] for name in arms}
    with tempfile.TemporaryDirectory() as folder:
        for command in arms.values():
            timed(command, Path(folder))
        for _ in range(options.rounds):
            for name, command in arms.items():
                times[name].append(timed(command, Path(folder)))
        found: dict[str, object] = {
            "machine": describe_machine("kfp", "google-cloud-pipeline-components", "google-cloud-aiplatform"),
            "wall_s": {name: summary(values) for name, values in times.items()},
            "over import kfp": {
                name: summary(quotients(times[name], times["import kfp"])) for name in ("compile", "submit --dry-run")
            },
            "lines_s": {
                "--help": HELP_LINE_S,
                "compile": COMPILE_LINE_S,
                "submit --dry-run": DRY_RUN_LINE_S,
                "rehearsal": REHEARSAL_LINE_S,
            },
        }
        if not options.no_rehearsal:
            raw = Path(folder) / "raw"
            subprocess.run(
                [sys.executable, str(ROOT / "examples" / "digits.py"), str(raw)], check=True, capture_output=True
            )
            began = time.monotonic()
            done = subprocess.run(
                [*CLI, "rehearse", str(CONFIG), *IMAGES, "--source", str(raw), "--preempt", "2", "-o", "json"],
                cwd=folder,
                check=True,
                capture_output=True,
                text=True,
            )
            told = json.loads(done.stdout)
            jobs = {name: seconds for name, _, seconds, _ in told["jobs"]}
            found["rehearsal"] = {"wall_s": round(time.monotonic() - began, 1), "custom jobs, s": jobs}
    print(json.dumps(found, indent=1))
    if options.record:
        record(RESULTS, "vertex", found)


if __name__ == "__main__":
    main()
