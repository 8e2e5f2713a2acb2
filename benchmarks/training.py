"""The training loop beside a bare torch DDP loop and Lightning, and a restart beside a start, as ratios from one run.

    python benchmarks/training.py                                      # without Lightning
    python benchmarks/training.py --peers FOLDER --record benchmarks/results

The bare loop runs twice in each round: its ratio to itself (A/A) is what noise alone makes. A line is decided only when
A/A lies within half of the line's margin. Two gloo ranks of one thread each; a round runs all arms in turn, and a ratio
is that of one round. A run's time is the median of those between two looks at the loss, so that starts, evaluation and
checkpoints are not in it; its processor time is that of all its processes from the first look to the last, in which a
neighbour that takes the cores does not count. Lightning needs an environment of its own, made in `--peers FOLDER`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.figures import describe_machine, judge, quotients, record, summary
from benchmarks.pictures import write_pictures
from benchmarks.processor_time import ProcessorTime
from benchmarks.reading import make_peers, run
from contracts import storage
from contracts.events import EVENTS_NAME, EventReader
from contracts.process import thread_environment
from trainer.drill.training import find_ranks

REPOSITORY = Path(__file__).parents[1]
ARMS = Path(__file__).parent / "training_arms.py"
PEERS = {"lightning": ("lightning==2.6.*",)}
# Our loop's own (trainer/train.py, LOG_EVERY_STEPS).
EVERY = 20
RANKS = 2
# Steps of about 0.1 s on one core of 2.5 GHz.
CONFIG: dict[str, Any] = {
    "data": {"image_size": 64, "num_workers": 0},
    "model": {
        "architecture": "resnet",
        "arguments": {"layer_type": "basic", "embedding_size": 16, "hidden_sizes": [16, 32, 64], "depths": [1, 1, 1]},
    },
    "train": {"global_batch_size": 64, "epochs": 1},
    "parallel": {"slot_size": 32},
    "resources": {"ranks": RANKS},
}


def main() -> None:
    """Run what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=160, help="optimizer steps of a run [default: 160]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=Path, default=None, help="folder for Lightning's environment")
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    parser.add_argument("--only", choices=("loop", "restart"), default=None)
    parser.add_argument("--notes", default="", help="what was expected; kept with the result")
    options = parser.parse_args()
    asked = {"steps": options.steps, "rounds": options.rounds, "config": CONFIG, "notes": options.notes}
    about: dict[str, object] = {**describe_machine("torch"), **asked}
    parts: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shards = shard(place, samples=options.steps * CONFIG["train"]["global_batch_size"])
        if options.only in (None, "loop"):
            arms: dict[str, Callable[[], Run]] = {
                "bare": lambda: run_peer("bare", shards, sys.executable),
                "shardline": lambda: run_ours(shards, place),
                "bare again": lambda: run_peer("bare", shards, sys.executable),
            }
            peers, missing = make_peers(options.peers, PEERS, sees_ours=True)
            for name, python in peers.items():
                arms[name] = functools.partial(run_peer, name, shards, python)
            versions = {name: version_of(python, name) for name, python in peers.items()}
            parts["loop"] = {"about": {**about, **versions}, "not installed": missing, **compare(arms, options.rounds)}
        if options.only in (None, "restart"):
            parts["restart"] = {"about": about, **time_restarts(shards, place, options.rounds)}
    print(json.dumps(parts, indent=1))
    if options.record:
        record(options.record, "training", parts)


def version_of(python: str, package: str) -> str:
    """Return the version of a package that an interpreter has."""
    return run([python, "-c", f"from importlib.metadata import version; print(version({package!r}))"]).strip()


@dataclass(frozen=True)
class Run:
    """One run of a loop."""

    step_s: float
    processor_s: float
    """Seconds of processor time a step, of all ranks and whatever runs beside them."""


def compare(arms: dict[str, Callable[[], Run]], rounds: int) -> dict[str, object]:
    """Run all arms in turn, in an order drawn anew each round; return seconds a step, and the lines."""
    found: dict[str, list[Run]] = {name: [] for name in arms}
    failed: list[str] = []
    draw = random.Random(0)
    for number in range(rounds):
        for name in draw.sample(sorted(arms), len(arms)):
            try:
                found[name].append(arms[name]())
            except subprocess.CalledProcessError:
                # Once: a second failure ends all.
                failed.append(name)
                found[name].append(arms[name]())
            run = found[name][-1]
            text = f"{run.step_s * 1000:.1f} ms a step, {run.processor_s * 1000:.1f} ms of processor time"
            print(f"round {number + 1}: {name} {text}", file=sys.stderr, flush=True)
    return {
        "seconds a step": _lines({name: [run.step_s for run in runs] for name, runs in found.items()}),
        "processor seconds a step": _lines({name: [run.processor_s for run in runs] for name, runs in found.items()}),
        "runs that failed and were taken again": failed,
    }


def _lines(found: dict[str, list[float]]) -> dict[str, object]:
    ours, again = found["shardline"], quotients(found["bare again"], found["bare"])
    lines: dict[str, object] = {name: summary(values) for name, values in found.items()}
    lines["over the bare loop's"] = judge(quotients(ours, found["bare"]), again, at_most=1.02)
    if "lightning" in found:
        lines["Lightning's over ours"] = judge(quotients(found["lightning"], ours), again, at_least=1.0)
    return lines


def time_restarts(shards: str, place: Path, rounds: int) -> dict[str, object]:
    """Return the time from a cold start, and from the kill of a rank, to the first step taken.

    Each round starts twice and kills once in each: starts to each other are the noise.
    """
    cold, after_kill = [], []
    for number in range(2 * rounds):
        trace = place / f"trace{number}"
        began = time.time()
        process = subprocess.Popen(
            _stage(shards, place / f"restart{number}", {"checkpoint": {"every_steps": 10}}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_environment({"SHARDLINE_TRACE": str(trace)}),
        )
        try:
            cold.append(_first_step(trace, began) - began)
            while len(list(trace.glob("*"))) < RANKS or _steps(trace) < 15:
                time.sleep(0.02)
            killed = time.time()
            os.kill(find_ranks(process.pid)[RANKS - 1], signal.SIGKILL)
            after_kill.append(_first_step(trace, killed) - killed)
        finally:
            process.terminate()
            process.wait()
        print(
            f"round {number + 1}: start {cold[-1]:.2f} s, restart {after_kill[-1]:.2f} s", file=sys.stderr, flush=True
        )
    return {
        "cold start to first step, s": summary(cold),
        "kill to first resumed step, s": summary(after_kill),
        "restart over start": judge(quotients(after_kill, cold), quotients(cold[1::2], cold[::2]), at_most=1.3),
    }


def _first_step(trace: Path, since: float, *, patience_s: float = 120) -> float:
    """Return when a process that was started after `since` has taken its first step."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        for path in trace.glob("*.jsonl"):
            if int(path.name.partition(".")[0]) / 1e9 > since and path.stat().st_size:
                return float(json.loads(path.read_text().splitlines()[0])["time"])
        time.sleep(0.02)
    raise TimeoutError(f"no step within {patience_s:.0f} s")


def _steps(trace: Path) -> int:
    return max((len(path.read_text().splitlines()) for path in trace.glob("*.jsonl")), default=0)


def run_ours(shards: str, place: Path) -> Run:
    """Train by the stage's own command."""
    output = Path(tempfile.mkdtemp(dir=place)) / "out"
    with ProcessorTime() as spent:
        run(_stage(shards, output, {}))
    (events,) = (output.parent / "attempts").glob(f"*/{EVENTS_NAME}")
    steps = [(event["done"], event["time"]) for event in EventReader(events).poll() if event["event"] == "progress"]
    return _run_of([at for done, at in steps if done % EVERY == 0], spent)


def run_peer(kind: str, shards: str, python: str) -> Run:
    """Train by a peer's loop under torchrun."""
    given = json.dumps({"config": CONFIG, "shards": shards, "every": EVERY})
    command = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    with ProcessorTime() as spent:
        times = json.loads(run([*command, str(ARMS), kind, given]).splitlines()[-1])
    return _run_of(times, spent)


def _run_of(looks: list[float], spent: ProcessorTime) -> Run:
    """Return the median over the stretches between two looks at the loss, and the mean of the processor time."""
    step_s = statistics.median(later - earlier for earlier, later in pairwise(looks)) / EVERY
    return Run(step_s, spent.between(looks[0], looks[-1]) / (EVERY * (len(looks) - 1)))


def _stage(shards: str, output: Path, changes: dict[str, Any]) -> list[str]:
    text = json.dumps({**CONFIG, **changes})
    return [sys.executable, "-m", "trainer.task", f"--shards={shards}", f"--output={output}", f"--config-json={text}"]


def shard(place: Path, *, samples: int) -> str:
    """Write pictures and their shards; return their URI."""
    write_pictures(place / "raw", total_bytes=samples * 3000, file_bytes=3000)
    splits = {"train": 1.0, "validation": 0.0, "test": 0.0}
    config = {"sharding": {"source": str(place / "raw"), "splits": splits, "verify": "decode"}}
    run([sys.executable, "-m", "sharding.task", f"--config-json={json.dumps(config)}", f"--output={place / 'shards'}"])
    return storage.normalise(place / "shards")


def _environment(more: dict[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, **thread_environment(1), "PYTHONPATH": str(REPOSITORY), **(more or {})}


if __name__ == "__main__":
    main()
