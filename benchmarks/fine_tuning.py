"""Gain and cost of pretrained weights: steps to an accuracy, and seconds to the first step.

    python benchmarks/fine_tuning.py --only steps
    python benchmarks/fine_tuning.py --only start --record benchmarks/results

steps: a network is trained on half of the digits' classes. Then all classes are trained from random weights, from that
run, from its safetensors file, and from a folder that plain transformers saved; each evaluates every few steps. Told is
the first step at which validation reaches an accuracy, for each seed.

start: a ResNet-50 (25.6 million parameters) takes one step, from random weights and from the file of another one, in
turn; the second random arm says what noise makes. From the start of the command to the first step taken.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.figures import describe_machine, record, summary
from contracts import storage
from contracts.artifacts import CheckpointManifest
from contracts.events import EVENTS_NAME, EventReader
from contracts.process import thread_environment
from examples.digits import write_digits

ACCURACIES = (0.9, 0.95, 0.98)
HALF = tuple("01234")
DIGITS: dict[str, Any] = {
    "sharding": {"splits": {"train": 0.2, "validation": 0.7, "test": 0.1}, "target_shard_bytes": 65536},
    "data": {"image_size": 32, "num_workers": 0},
    "model": {
        "architecture": "resnet",
        "arguments": {"layer_type": "basic", "embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1]},
    },
    # A constant rate: with a schedule an earlier end would be another training.
    "train": {"global_batch_size": 32, "epochs": 16, "learning_rate": 1e-3, "schedule": "constant"},
    "parallel": {"slot_size": 16},
    "resources": {"ranks": 1, "threads": 1},
    "checkpoint": {"keep_last": 99},
}
LARGE: dict[str, Any] = {
    "data": {"image_size": 64, "num_workers": 0},
    "model": {"architecture": "resnet"},
    "train": {"global_batch_size": 4, "epochs": 1, "max_steps": 1},
    "parallel": {"slot_size": 4},
    "resources": {"ranks": 1, "threads": 1},
}


def main() -> None:
    """Run what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("steps", "start"), default=None)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    parser.add_argument("--notes", default="", help="what was expected; kept with the result")
    options = parser.parse_args()
    parts: dict[str, object] = {"about": {**describe_machine("torch", "transformers"), "notes": options.notes}}
    with tempfile.TemporaryDirectory() as name:
        if options.only in (None, "steps"):
            parts["steps"] = measure_steps(Path(name) / "steps", options.seeds)
        if options.only in (None, "start"):
            parts["start"] = measure_start(Path(name) / "start", options.rounds)
    print(json.dumps(parts, indent=1))
    if options.record is not None:
        record(options.record, "fine-tuning", parts)


def measure_steps(place: Path, seeds: int) -> dict[str, object]:
    """Return the first step at each accuracy, by where the weights came from and by seed."""
    images, half = place / "all", place / "half"
    write_digits(images)
    for digit in HALF:
        shutil.copytree(images / digit, half / digit)
    found: dict[str, dict[float, list[int | None]]] = {}
    for seed in range(seeds):
        folder = place / str(seed)
        config = {**DIGITS, "run": {"seed": seed}}
        pretrained = train(folder / "half", shard(folder / "half-shards", half, config), config)
        shards = shard(folder / "shards", images, config)
        for name, weights in sources(folder, pretrained).items():
            model = {**config["model"], **({"weights": weights} if weights else {})}
            uri = train(folder / name.replace(" ", "-"), shards, {**config, "model": model})
            reached = first_steps(uri)
            for accuracy in ACCURACIES:
                found.setdefault(name, {}).setdefault(accuracy, []).append(reached.get(accuracy))
            print(f"seed {seed}, {name}: {reached}", file=sys.stderr, flush=True)
    return {"config": DIGITS, "classes of the first training": HALF, "first step at an accuracy, by seed": found}


def sources(folder: Path, pretrained: str) -> dict[str, str]:
    """Return the weights to start from; a folder of transformers is written by transformers itself."""
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForImageClassification

    weights = storage.local_path(pretrained) / "model.safetensors"
    if not weights.exists():
        (entry,) = CheckpointManifest.load(pretrained).files_of("model")
        weights = storage.local_path(entry.uri(pretrained))
    copied = folder / "half.safetensors"
    shutil.copy(weights, copied)
    labels = dict(enumerate(HALF))
    config = AutoConfig.for_model("resnet", **DIGITS["model"]["arguments"], id2label=labels, num_labels=len(HALF))
    theirs: Any = AutoModelForImageClassification.from_config(config)  # type: ignore[no-untyped-call]
    theirs.load_state_dict(load_file(copied))
    theirs.save_pretrained(folder / "saved")
    return {
        "random weights": "",
        "its run": pretrained,
        "its safetensors file": str(copied),
        "a folder of transformers": str(folder / "saved"),
    }


def first_steps(uri: str) -> dict[float, int]:
    """Return the step of the first evaluation that reached each accuracy."""
    found: dict[float, int] = {}
    folder = storage.local_path(uri)
    manifests = [
        CheckpointManifest.load(storage.normalise(path.parent)) for path in folder.glob("checkpoints/*/manifest.json")
    ]
    for manifest in sorted(manifests, key=lambda document: document.step):
        for accuracy in ACCURACIES:
            if manifest.evaluated and manifest.metrics["validation_accuracy"] >= accuracy:
                found.setdefault(accuracy, manifest.step)
    return found


def measure_start(place: Path, rounds: int) -> dict[str, object]:
    """Return seconds from the command to the first step, from random weights and from a file."""
    pictures = place / "pictures"
    write_digits(pictures)
    config = {"sharding": {"splits": {"train": 0.96, "validation": 0.02, "test": 0.02}}, **LARGE}
    shards = shard(place / "shards", pictures, config)
    first = train(place / "first", shards, config)
    weights = place / "weights.safetensors"
    entry = CheckpointManifest.load(first).files_of("model")[0]
    shutil.copy(storage.local_path(entry.uri(first)), weights)
    model = {**config["model"], "weights": str(weights)}
    arms: dict[str, dict[str, Any]] = {
        "random": config,
        "file": {**config, "model": model},
        "random again": config,
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds):
        for name, arm in arms.items():
            folder = place / f"{name.replace(' ', '-')}-{number}"
            began = time.time()
            train(folder, shards, arm)
            seconds[name].append(first_step_at(folder) - began)
        print({name: round(values[-1], 2) for name, values in seconds.items()}, file=sys.stderr, flush=True)
    beyond = [one - other for one, other in zip(seconds["file"], seconds["random"], strict=True)]
    noise = [one - other for one, other in zip(seconds["random again"], seconds["random"], strict=True)]
    return {
        "bytes of the file": weights.stat().st_size,
        "seconds": {name: summary(values) for name, values in seconds.items()},
        "seconds beyond random": summary(beyond),
        "A/A, seconds": summary(noise),
        "line": "< 2 s",
        "verdict": "reached" if statistics.median(beyond) < 2 else "missed",
    }


def first_step_at(folder: Path) -> float:
    """Return when the first step was told, in seconds since the epoch."""
    (events,) = folder.glob(f"attempts/*/{EVENTS_NAME}")
    return float(next(e["time"] for e in EventReader(events).poll() if e["event"] == "progress" and e["done"] >= 1))


def shard(folder: Path, source: Path, config: dict[str, Any]) -> str:
    """Shard pictures into a folder and return its URI."""
    sections = {"sharding": {**config["sharding"], "source": str(source)}, "run": config.get("run", {})}
    return run_stage("sharding.task", "--output", folder, sections)


def train(folder: Path, shards: str, config: dict[str, Any]) -> str:
    """Train in a folder and return the URI of what it left."""
    sections = {name: section for name, section in config.items() if name != "sharding"}
    return run_stage("trainer.task", "--root", folder, sections, f"--shards={shards}")


def run_stage(module: str, place: str, folder: Path, sections: dict[str, Any], *more: str) -> str:
    """Run a stage's command and return the URI that it prints last."""
    command = [sys.executable, "-m", module, place, str(folder), "--config-json", json.dumps(sections), *more]
    environment = {**os.environ, **thread_environment(1)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{module} failed:\n{done.stderr}")
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    main()
