"""Time and memory of an fp16 export beside the same calls made by hand, for TensorRT-RTX and sm89, without a GPU.

    python benchmarks/export.py [--models resnet vit] [--rounds 3] [--record benchmarks/results]

By hand is one process: torch.onnx.export of the fp32 and of the half model, and one engine build. The stage has a
process for each and for gates, which its manifest's `steps` tell apart: the ratio of times leaves them out. Weights are
of one training step: neither time nor memory depends on them.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.shared import describe_machine, ratios, record, run, summary, write_pictures
from contracts.artifacts import ExportManifest
from contracts.process import available_cores, thread_environment

SIZE, CLASSES, PROFILE = 224, 10, (1, 8, 32)
# Steps that judge or measure; all others make what ships.
GATES = ("gates", "program", "latency")
PACKAGES = ("torch", "onnx", "onnxruntime", "onnxscript", "transformers", "tensorrt_rtx_cu13")


def main() -> None:
    """Measure, and print the result as JSON; or export by hand."""
    if sys.argv[1:2] == ["by-hand"]:
        export_by_hand(sys.argv[2], Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # transformers' own defaults of the two are ResNet-50 and ViT-B/16.
    parser.add_argument("--models", nargs="+", choices=("resnet", "vit"), default=("resnet", "vit"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    options = parser.parse_args()
    about = {**describe_machine(*PACKAGES), "rounds": options.rounds, "profile": PROFILE}
    parts: dict[str, object] = {}
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            parts[model] = {"about": about, **measure(Path(folder), model, options.rounds)}
    print(json.dumps(parts, indent=1))
    if options.record:
        record(options.record, "export", parts)


def measure(folder: Path, model: str, rounds: int) -> dict[str, object]:
    """Return seconds and peaks of the stage and of the calls by hand, and their ratios round by round."""
    environment = thread_environment(available_cores())
    write_pictures(folder / "raw", total_bytes=80 * 12_000, file_bytes=12_000)
    config = {
        "sharding": {"source": str(folder / "raw"), "splits": {"train": 0.7, "validation": 0.1, "test": 0.2}},
        "data": {"image_size": SIZE, "num_workers": 0},
        "model": {"architecture": model},
        "train": {"global_batch_size": 8, "max_steps": 1},
        "export": {"runtime": "tensorrt_rtx", "target": "sm89", "max_batch": PROFILE[2]},
    }

    def stage(module: str, *inputs: str) -> str:
        options = [f"--config-json={json.dumps(config)}", f"--root={tempfile.mkdtemp(dir=folder)}"]
        return run([sys.executable, "-m", module, *options, *inputs], environment).splitlines()[-1]

    shards = stage("sharding.task")
    inputs = [f"--shards={shards}", f"--checkpoint={stage('trainer.task', f'--shards={shards}')}"]
    seconds: dict[str, list[float]] = {"stage": [], "stage without gates": [], "by hand": []}
    peaks: dict[str, list[float]] = {"stage": [], "by hand": []}
    for _ in range(rounds):
        began = time.perf_counter()
        steps = ExportManifest.load(stage("trainer.export.task", *inputs)).steps
        seconds["stage"].append(time.perf_counter() - began)
        gates_s = sum(cost["seconds"] for name, cost in steps.items() if name.endswith(GATES))
        seconds["stage without gates"].append(seconds["stage"][-1] - gates_s)
        peaks["stage"].append(max(cost["peak_bytes"] for cost in steps.values()))
        began = time.perf_counter()
        peak = run([sys.executable, __file__, "by-hand", model, tempfile.mkdtemp(dir=folder)], environment)
        seconds["by hand"].append(time.perf_counter() - began)
        peaks["by hand"].append(float(peak.splitlines()[-1]))
    return {
        "seconds": {name: summary(values) for name, values in seconds.items()},
        "peak bytes": {name: summary(values) for name, values in peaks.items()},
        "time without gates over that by hand": ratios(seconds["stage without gates"], seconds["by hand"]),
        "peak over that by hand": ratios(peaks["stage"], peaks["by hand"]),
        "steps of the last round": steps,
    }


def export_by_hand(architecture: str, folder: Path) -> None:
    """Trace the fp32 and the half model, build an engine, and print the largest resident memory in bytes."""
    import tensorrt_rtx as trt
    import torch
    from transformers import AutoConfig, AutoModelForImageClassification

    config = AutoConfig.for_model(architecture, num_labels=CLASSES)
    model = AutoModelForImageClassification.from_config(config).eval()
    example, dynamic = (torch.zeros(2, 3, SIZE, SIZE),), ({0: torch.export.Dim("batch", min=1)},)
    for precision, dtype in (("fp32", torch.float32), ("fp16", torch.float16)):
        graph, cast = folder / f"{precision}.onnx", [tensor.to(dtype) for tensor in example]
        torch.onnx.export(model.to(dtype), tuple(cast), graph, dynamo=True, dynamic_shapes=dynamic, opset_version=20)
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert trt.OnnxParser(network, logger).parse_from_file(str(graph))
    settings, profile = builder.create_builder_config(), builder.create_optimization_profile()
    profile.set_shape(network.get_input(0).name, *((size, 3, SIZE, SIZE) for size in PROFILE))
    settings.add_optimization_profile(profile)
    settings.num_compute_capabilities = 1
    settings.set_compute_capability(trt.ComputeCapability.SM89, 0)
    (folder / "model.engine").write_bytes(builder.build_serialized_network(network, settings))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main()
