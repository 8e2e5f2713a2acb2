"""The export beside the same three calls by hand, the memory of its processes, and on a GPU the engines' speed.

    python benchmarks/export.py                                       # ResNet-50 and ViT-B; half an hour and more
    python benchmarks/export.py --only wall --models resnet --rounds 3 --record benchmarks/results

`wall`: seconds of an fp16 export for one target without its gates over those of a process of its own
with torch.onnx.export, one conversion and one engine build. Only steps that are named here as gates are left out; all
else counts as ours: the stage's start, the bundle's files, the Triton repository, publishing. What judges and what
serves the judging are said apart: `samples` decodes the test and calibration images that gates run on, `ranges` and
`layers` decide which nodes stay in fp32. A second ratio has what serves among ours. The arm by hand runs twice in
each round: its ratio to itself (A/A) is what noise alone makes.
Beside seconds stand processor seconds (user and system, of all processes): other work changes them less.
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
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.shared import describe_machine, judge, quotients, record, run, summary, write_pictures
from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    CheckpointManifest,
    ExportManifest,
    FileEntry,
    SampleOrder,
    ShardManifest,
)
from contracts.config import ModelSection
from contracts.config.stages import MIN_CALIBRATION_SAMPLES
from contracts.process import available_cores, thread_environment
from trainer.export.targets import gpu_target

# transformers' own defaults of the two are ResNet-50 and ViT-B/16.
NAMES = {"resnet": "ResNet-50", "vit": "ViT-B"}
SIZE = 224
PROFILE = (1, 8, 32)
WEIGHTS_NAME = "model.safetensors"
PARTS = ("wall", "memory", "gpu")
# Steps of an export whose result is proof; "... outputs" beside them: of each graph, and of an engine that runs.
GATES = ("torch", "batches", "engine metrics", "engine speed", "program", "bench")
# Steps whose result the gates need. A step that is in neither counts as making what ships.
SERVING_GATES = ("samples",)
PACKAGES = ("torch", "onnx", "onnxruntime", "onnxscript", "transformers", "tensorrt_rtx_cu13")
FP16_WEIGHTS, FP16_MORE_BYTES, INT8_WEIGHTS = 3, 1e9, 12


def main() -> None:
    """Run what the arguments ask for and print it; or one arm."""
    if sys.argv[1:2] == ["by-hand"]:
        export_by_hand(json.loads(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
        return
    if sys.argv[1:2] == ["checkpoint"]:
        write_checkpoint(sys.argv[2], int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
        return
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
            measure = {"wall": measure_wall, "memory": measure_memory, "gpu": measure_gpu}[part]
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
        command = [sys.executable, __file__, "by-hand", json.dumps(given)]
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
    fields = {
        "precision": "fp16",
        "runtime": "tensorrt_rtx",
        "targets": ["sm89"],
        "max_batch": PROFILE[2],
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
        run([sys.executable, __file__, "checkpoint", model, str(SIZE), shards, str(folder)])
    return str(folder)


def export_by_hand(given: dict[str, Any], weights: str, target: Path) -> None:
    """Export as it is done by hand, and print the seconds of the three calls.

    Nothing of ours is used, and nothing is checked: model, torch.onnx.export, a conversion to fp16, an engine.
    """
    import onnx
    import tensorrt_rtx as trt
    import torch
    from onnxconverter_common import float16
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForImageClassification

    torch.set_num_threads(given["threads"])
    config = AutoConfig.for_model(given["architecture"], num_labels=given["classes"])
    network = AutoModelForImageClassification.from_config(config).eval()
    network.load_state_dict({name.removeprefix("network."): tensor for name, tensor in load_file(weights).items()})
    times = [time.perf_counter()]

    example = torch.zeros(2, 3, given["size"], given["size"])
    batch = torch.export.Dim("batch", min=1)
    torch.onnx.export(
        network,
        (example,),
        target / "fp32.onnx",
        dynamo=True,
        opset_version=20,
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes=({0: batch},),
        external_data=False,
    )
    times.append(time.perf_counter())

    half = float16.convert_float_to_float16(onnx.load(target / "fp32.onnx"), keep_io_types=True)
    onnx.save(half, target / "fp16.onnx")
    times.append(time.perf_counter())

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    parsed = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert trt.OnnxParser(parsed, logger).parse_from_file(str(target / "fp16.onnx"))
    settings, profile = builder.create_builder_config(), builder.create_optimization_profile()
    profile.set_shape("images", *((size, 3, given["size"], given["size"]) for size in given["profile"]))
    settings.add_optimization_profile(profile)
    settings.num_compute_capabilities = 1
    settings.set_compute_capability(trt.ComputeCapability.SM89, 0)
    (target / "model.engine").write_bytes(builder.build_serialized_network(parsed, settings))
    times.append(time.perf_counter())
    print(json.dumps([later - earlier for earlier, later in pairwise(times)]))


def write_checkpoint(architecture: str, size: int, shards_uri: str, place: Path) -> None:
    """Write a finished training's folder with random weights."""
    import torch
    from safetensors.torch import save_file

    from tests.trainer.tasks.for_tests import image_network
    from trainer.model.build import parameters_sha256

    shards = ShardManifest.load(shards_uri)
    torch.manual_seed(0)
    section = ModelSection.model_validate({"architecture": architecture})
    model = image_network(section, len(shards.classes), size)
    place.mkdir(parents=True)
    state = model.state_dict()
    save_file(state, place / WEIGHTS_NAME)
    manifest = CheckpointManifest(
        order=SampleOrder(kind="full"),
        task={"name": "image_classification", "arguments": {}},
        fingerprint="0" * 16,
        finished=True,
        step=0,
        position=0,
        epoch=0,
        slot_size=1,
        model=section.model_dump(mode="json"),
        classes=shards.classes,
        data={"image_size": size, "mean": shards.mean, "std": shards.std},
        shards_fingerprint=shards.fingerprint,
        metrics={},
        best_step=0,
        parameters_sha256=parameters_sha256(state),
        environment={},
        files=[FileEntry.of(storage.normalise(place), WEIGHTS_NAME)],
    )
    (place / MANIFEST_NAME).write_bytes(manifest.to_json())


def _processor_s() -> float:
    """Return the seconds of cores that all processes have taken which this one has started."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def _threads() -> dict[str, str]:
    """Return variables for as many threads as the stage takes by itself."""
    return thread_environment(available_cores())


if __name__ == "__main__":
    main()
