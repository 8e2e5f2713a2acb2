"""The export beside the same three calls by hand, the memory of its processes, and on a GPU the engines' speed.

    python benchmarks/export.py                                       # ResNet-50 and ViT-B; half an hour and more
    python benchmarks/export.py --only wall --models resnet --rounds 3 --record benchmarks/results
    python benchmarks/export.py --only gates --models resnet --rounds 3

`wall`: seconds of an fp16 export for one target without its gates over those of export_by_hand.py, a process of its own
with torch.onnx.export, one conversion and one engine build. Only steps that are named here as gates are left out; all
else counts as ours: the stage's start, the bundle's files, the Triton repository, publishing. What judges and what
serves the judging are said apart: `samples` decodes the test and calibration images that gates run on, `ranges` and
`layers` decide which nodes stay in fp32. A second ratio has what serves among ours. The arm by hand runs twice in
each round: its ratio to itself (A/A) is what noise alone makes.
Beside seconds stand processor seconds (user and system, of all processes): other work changes them less.
`gates`: seconds of all gates of an fp16 export on 512 test images, decoding and ranges included, over those of
gates_by_hand.py: torch and each graph that ships see each image once.
`memory`: the largest process of an fp16 and of an int8 export of ViT-B over its weights in fp32.
`gpu`: latency of the engine beside torch eager, torch.compile and ONNX Runtime, by the stage's own bench; only where a
GPU is. An engine that does not run there is said with its reason, and the others are compared.

Weights are random: neither time nor memory depends on them, and an int8 export that falls back has quantised before.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.figures import describe_machine, judge, quotients, record, summary
from benchmarks.pictures import write_pictures
from benchmarks.reading import run
from contracts import storage
from contracts.artifacts import ExportManifest, ShardManifest
from contracts.config.export import MIN_CALIBRATION_SAMPLES
from contracts.process import available_cores, thread_environment
from trainer.export.targets import gpu_target

HERE = Path(__file__).parent
REPOSITORY = HERE.parent
# transformers' own defaults of the two are ResNet-50 and ViT-B/16.
NAMES = {"resnet": "ResNet-50", "vit": "ViT-B"}
SIZE = 224
PROFILE = (1, 8, 32)
# As export_checkpoint.py writes it; imported it would bring torch into this process.
WEIGHTS_NAME = "model.safetensors"
PARTS = ("wall", "gates", "memory", "gpu")
# Test images of `gates`.
GATED_IMAGES = 512
# Steps of an export whose result is proof; "... outputs" beside them: of each graph, and of an engine that runs.
GATES = ("torch", "batches", "coverage", "engine metrics", "engine speed", "bundle", "bench")
# Steps whose result the gates need. A step that is in neither counts as making what ships.
SERVING_GATES = ("samples", "ranges", "layers")
PACKAGES = ("torch", "onnx", "onnxruntime", "onnxscript", "transformers", "tensorrt_rtx_cu13")
FP16_WEIGHTS, FP16_MORE_BYTES, INT8_WEIGHTS = 3, 1e9, 12


def main() -> None:
    """Run what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, default=None)
    parser.add_argument("--models", nargs="+", choices=sorted(NAMES), default=sorted(NAMES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--images", type=int, default=16, help="test images of wall and gpu, about; four times as many others"
    )
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    parser.add_argument("--notes", default="", help="what was expected; kept with the result")
    options = parser.parse_args()
    asked = {"rounds": options.rounds, "images": options.images, "profile": PROFILE, "notes": options.notes}
    about: dict[str, object] = {**describe_machine(*PACKAGES), **asked}
    parts: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for part in PARTS if options.only is None else (options.only,):
            measure = {"wall": measure_wall, "gates": measure_gates, "memory": measure_memory, "gpu": measure_gpu}[part]
            models = ["vit"] if part == "memory" else options.models
            for model in models:
                found = measure(place, model, options.rounds, options.images)
                parts[f"{part}, {NAMES[model]}"] = {"about": about, **found}
    print(json.dumps(parts, indent=1))
    if options.record:
        record(options.record, "export", parts)


def measure_wall(place: Path, model: str, rounds: int, images: int) -> dict[str, object]:
    """Return the export's seconds without gates over those by hand, and what the gates and their service took."""
    shards = make_shards(place, images)
    checkpoint = make_checkpoint(place, model, shards)
    gates: list[float] = []
    serving: list[float] = []
    processor: dict[str, list[float]] = {"shardline": [], "by hand": []}

    def ours() -> float:
        before = _processor_s()
        wall_s, document = export(place, model, checkpoint, shards, {})
        left_out = sum(gate_seconds(document, "processor_s"))
        processor["shardline"].append(_processor_s() - before - left_out)
        gates_s, serving_s = gate_seconds(document)
        gates.append(gates_s)
        serving.append(serving_s)
        return wall_s - gates_s - serving_s

    calls: list[list[float]] = []

    def by_hand() -> float:
        folder = Path(tempfile.mkdtemp(dir=place))
        given = {
            "architecture": model,
            "classes": len(ShardManifest.load(shards).classes),
            "size": SIZE,
            "threads": available_cores(),
            "profile": PROFILE,
        }
        command = [sys.executable, str(HERE / "export_by_hand.py"), json.dumps(given)]
        before = _processor_s()
        began = time.perf_counter()
        said = run([*command, str(Path(checkpoint) / WEIGHTS_NAME), str(folder)], _threads())
        seconds = time.perf_counter() - began
        processor["by hand"].append(_processor_s() - before)
        calls.append(json.loads(said.splitlines()[-1]))
        return seconds

    arms: dict[str, Callable[[], float]] = {"shardline": ours, "by hand": by_hand, "by hand again": by_hand}
    found = take_turns(arms, rounds)
    again = quotients(found["by hand again"], found["by hand"])
    with_serving = [sum(pair) for pair in zip(found["shardline"], serving, strict=True)]
    return {
        "seconds": {name: summary(values) for name, values in found.items()},
        "of which by hand: export, conversion, build, s": [summary(values) for values in zip(*calls, strict=True)],
        "time over that by hand": judge(quotients(found["shardline"], found["by hand"]), again, at_most=1.3),
        "the same with what serves the gates": judge(quotients(with_serving, found["by hand"]), again, at_most=1.3),
        "processor seconds": {name: summary(values) for name, values in processor.items()},
        "processor seconds over those by hand": round(
            statistics.median(processor["shardline"]) / statistics.median(processor["by hand"]), 3
        ),
        "gates, s": summary(gates),
        "what serves the gates, s": summary(serving),
    }


def measure_gates(place: Path, model: str, rounds: int, images: int) -> dict[str, object]:
    """Return the seconds of the gates on `GATED_IMAGES` images over the same passes by hand."""
    shards = make_shards(place, GATED_IMAGES)
    checkpoint = make_checkpoint(place, model, shards)
    samples = ShardManifest.load(shards).splits["test"].samples
    graphs: list[str] = []

    def ours() -> float:
        _, document = export(place, model, checkpoint, shards, {"proof_samples": GATED_IMAGES})
        folder = max(place.glob(f"tmp*/{document.fingerprint}"), key=lambda path: path.stat().st_mtime)
        graphs[:] = [str(folder / entry.name) for entry in document.graphs]
        return sum(gate_seconds(document))

    def by_hand() -> float:
        given = {
            "architecture": model,
            "classes": len(ShardManifest.load(shards).classes),
            "size": SIZE,
            "threads": available_cores(),
            "samples": min(samples, GATED_IMAGES),
        }
        command = [sys.executable, str(HERE / "gates_by_hand.py"), json.dumps(given)]
        return float(run([*command, str(Path(checkpoint) / WEIGHTS_NAME), *graphs], _threads()).splitlines()[-1])

    # In this order: the graphs of an export are what the passes by hand run.
    found = {"shardline": [ours() for _ in range(rounds)], "by hand": [by_hand() for _ in range(rounds)]}
    again = quotients(found["by hand"][1:], found["by hand"][:-1]) or [1.0]
    return {
        "test images": samples,
        "seconds": {name: summary(values) for name, values in found.items()},
        "time over that by hand": judge(quotients(found["shardline"], found["by hand"]), again, at_most=1.3),
    }


def measure_memory(place: Path, model: str, rounds: int, images: int) -> dict[str, object]:
    """Return the largest process of an fp16 and of an int8 export over the weights: once, memory hardly varies."""
    shards = make_shards(place, MIN_CALIBRATION_SAMPLES // 2)
    checkpoint = make_checkpoint(place, model, shards)
    weights = (Path(checkpoint) / WEIGHTS_NAME).stat().st_size
    lines: dict[str, object] = {"weights, bytes": weights}
    for precision, most in (("fp16", FP16_WEIGHTS * weights + FP16_MORE_BYTES), ("int8", INT8_WEIGHTS * weights)):
        # TensorRT-RTX has no int8.
        other = {"runtime": "onnxruntime_tensorrt", "targets": []} if precision == "int8" else {}
        _, document = export(place, model, checkpoint, shards, {"precision": precision, **other})
        peaks = {step: int(cost["peak_bytes"]) for step, cost in document.steps.items()}
        step = max(peaks, key=lambda name: peaks[name])
        lines[precision] = {
            "largest process, bytes": peaks[step],
            "its step": step,
            "over the weights": round(peaks[step] / weights, 2),
            "line, bytes": int(most),
            "verdict": "reached" if peaks[step] <= most else "missed",
            "of each step, bytes": peaks,
            "ships": document.precision,
        }
    return lines


def measure_gpu(place: Path, model: str, rounds: int, images: int) -> dict[str, object]:
    """Return latencies by the stage's bench, and the engine's lines where it ran."""
    target = gpu_target()
    if target is None:
        return {"not run": "no GPU"}
    shards = make_shards(place, images)
    checkpoint = make_checkpoint(place, model, shards)
    found: dict[str, list[float]] = {}
    left_out: dict[str, str] = {}
    for number in range(rounds):
        _, document = export(place, model, checkpoint, shards, {"bench": True, "targets": [], "runtime": "auto"})
        left_out |= document.latency_left_out
        for latency in document.latency:
            name = f"{latency.runner}, {latency.precision}, batch {latency.batch}"
            found.setdefault(name, []).append(latency.p50_ms)
        print(f"round {number + 1}: {len(document.latency)} points", file=sys.stderr, flush=True)
    lines: dict[str, object] = {
        "GPU": target,
        "p50, ms": {name: summary(values) for name, values in found.items()},
        "not measured": left_out,
    }
    one = {name: values for name, values in found.items() if name.endswith("fp16, batch 1") and len(values) == rounds}
    engine = next((values for name, values in one.items() if name.startswith("engine")), None)
    if engine is None:
        return {**lines, "engine": "did not run: no figure of TensorRT is claimed"}
    # The same arm one round later: what the machine alone does.
    again = quotients(engine[1:], engine[:-1]) or [1.0]
    for peer, least in (("torch eager", 2.0), ("torch.compile", 1.0)):
        values = next((values for name, values in one.items() if name.startswith(peer)), None)
        if values is not None:
            lines[f"speed over {peer}'s"] = judge(quotients(values, engine), again, at_least=least)
    return lines


def gate_seconds(document: ExportManifest, what: str = "seconds") -> tuple[float, float]:
    """Return the seconds of an export's gates, and of the steps that serve them; of a clock, or of processors."""
    costs = {step: cost[what] for step, cost in document.steps.items()}
    gates = sum(seconds for step, seconds in costs.items() if step in GATES or step.endswith(" outputs"))
    return gates, sum(costs.get(step, 0.0) for step in SERVING_GATES)


def export(
    place: Path, model: str, checkpoint: str, shards: str, settings: dict[str, Any]
) -> tuple[float, ExportManifest]:
    """Run the stage's command into a root of its own; return its seconds and its manifest."""
    root = Path(tempfile.mkdtemp(dir=place))
    least, opt, most = PROFILE
    fields = {
        "precision": "fp16",
        "runtime": "tensorrt_rtx",
        "targets": ["sm89"],
        "min_batch": least,
        "opt_batch": opt,
        "max_batch": most,
        "calibration_samples": MIN_CALIBRATION_SAMPLES,
        **settings,
    }
    config = {"data": {"image_size": SIZE}, "model": {"architecture": model}, "export": fields}
    command = [sys.executable, "-m", "trainer.export.task", f"--config-json={json.dumps(config)}", f"--root={root}"]
    began = time.perf_counter()
    said = run([*command, f"--checkpoint={checkpoint}", f"--shards={shards}"], _threads())
    return time.perf_counter() - began, ExportManifest.load(said.splitlines()[-1])


def take_turns(arms: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run all arms in an order drawn anew each round; return their values."""
    found: dict[str, list[float]] = {name: [] for name in arms}
    draw = random.Random(0)
    for number in range(rounds):
        for name in draw.sample(sorted(arms), len(arms)):
            found[name].append(arms[name]())
            print(f"round {number + 1}: {name} {found[name][-1]:.1f} s", file=sys.stderr, flush=True)
    return found


def make_shards(place: Path, images: int) -> str:
    """Write pictures and their shards, about a fifth of them for tests, unless they are there; return their URI."""
    folder = place / f"shards{images}"
    if not folder.exists():
        write_pictures(place / f"raw{images}", total_bytes=5 * images * 12_000, file_bytes=12_000)
        splits = {"train": 0.8, "validation": 0.0, "test": 0.2}
        config = {"sharding": {"source": str(place / f"raw{images}"), "splits": splits}}
        run([sys.executable, "-m", "sharding.task", f"--config-json={json.dumps(config)}", f"--output={folder}"])
    return storage.normalise(folder)


def make_checkpoint(place: Path, model: str, shards: str) -> str:
    """Write a checkpoint for these shards with random weights, unless it is there; return its folder."""
    folder = place / f"{model}-{shards.rpartition('/')[2]}"
    if not folder.exists():
        run([sys.executable, str(HERE / "export_checkpoint.py"), model, str(SIZE), shards, str(folder)])
    return str(folder)


def _processor_s() -> float:
    """Return the seconds of cores that all processes have taken which this one has started."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def _threads() -> dict[str, str]:
    """Return variables for as many threads as the stage takes by itself."""
    return thread_environment(available_cores())


if __name__ == "__main__":
    main()
