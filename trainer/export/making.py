"""The work of one export, top to bottom: graph, proof of fp32, the precision that holds, engines, and what ships.

Here: `make`, run by trainer/export/task.py. Every heavy step is a process of its own; what it computes is in another
module. Nothing here imports torch, onnx or a builder.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from contracts import storage
from contracts.artifacts import Attempt, Calibration, EngineEntry, Gate, Parity, ShippedFile
from contracts.artifacts.export import Container
from contracts.artifacts.signature import Signature
from contracts.errors import CheckFailed
from contracts.proof import SERVED
from contracts.serving import CONFIG_NAME, REPOSITORY, TENSORRT, model_name
from trainer.export.bundle.triton import describe_served, write_repository
from trainer.export.bundle.triton_config import ServedModel
from trainer.export.choosing import choose_precision
from trainer.export.engines import bench, engine, engine_run, onnx_run
from trainer.export.gates import parity, proof
from trainer.export.gates.arrays import StoredArrays
from trainer.export.gates.proof import Ends, TestSplit
from trainer.export.gates.scores import Scores, judge_evaluation, measure_scores
from trainer.export.graph import onnx_graph
from trainer.export.graph.onnx_graph import Shapes
from trainer.export.inputs import Inputs
from trainer.export.processes import Cost
from trainer.export.targets import Builder, gpu_target, gpus_of
from trainer.export.workshop import Workshop, describe_failed, hash_file
from trainer.predict.bundle import ExportedFiles, kind_of, read_labels, write_bundle
from trainer.predict.program_gate import judge_program
from trainer.weights.source import WEIGHTS_NAME

# A batch differs from its samples one by one by how sums are grouped; one that leaks into others differs by far.
BATCH_LIMIT = 1e-5
CALIBRATION_SAMPLES = 512
"""Training samples whose activations decide int8's scales and which nodes fit into fp16, drawn by the seed."""
PROOF_SAMPLES = 512
"""Most samples of the test split that the gates run, the same share of each class, drawn by the seed."""


def make(work: Workshop) -> None:
    """Do all of it; what ships lies in the workshop's shipment afterwards.

    Raises:
        CheckFailed: A gate failed that nothing can fall back from.
        ConfigError: The precision that is left is none that a target has.
    """
    _write_fp32(work)
    _judge_fp32(work)
    if work.runner is None:
        settings = work.settings
        work.runner = engine_run.runner_here(work.inputs.builder, work.signature, settings.batches, work.step)
    if work.server is None:
        model = _describe_model(work, "fp32", sha256="", has_labels=False)
        work.server = onnx_run.runner_here(model, work.step, gpu=gpu_target())
    choose_precision(work)
    _place_graph(work)
    _build_engines(work)
    _write_files(work)
    _judge_program(work)
    _conclude(work)
    if work.settings.bench:
        _measure_latency(work)


def _write_fp32(work: Workshop) -> None:
    _read_samples(work)
    found = work.step(
        "trace",
        _trace,
        work.inputs,
        work.path("fp32"),
        work.shipment,
        work.split,
        work.folder / "torch-outputs",
        opset=onnx_graph.OPSET,
        threads=work.threads,
    )
    (work.graph_inputs, work.graph_outputs), work.reference, work.kind, scores, work.ends, torch = found
    work.scores[parity.REFERENCE] = scores
    # torch's own outputs are the gates', and take as long as there are samples.
    trace = work.costs["trace"]
    torch = replace(torch, peak_bytes=trace.peak_bytes)
    rest = trace.seconds - torch.seconds, trace.peak_bytes, trace.processor_s - torch.processor_s
    work.costs |= {"trace": Cost(*rest), "torch": torch}
    work.tell("fp32 graph")


def _read_samples(work: Workshop) -> None:
    """Prepare samples of the test split, and training samples where activations are looked at."""
    wanted = 0 if work.settings.precision == "fp32" else CALIBRATION_SAMPLES
    work.signature, work.split, calibrated = work.step(
        "samples",
        _write_samples,
        work.inputs,
        work.folder,
        most=PROOF_SAMPLES,
        samples=wanted,
        seed=work.seed,
    )
    if calibrated is not None:
        work.calibration_inputs, work.calibration = calibrated


def _judge_fp32(work: Workshop) -> None:
    found = [*work.judge_graph(work.path("fp32"), "fp32"), _judge_batches(work), *_judge_sizes(work)]
    ran = parity.name_of_onnx("fp32")
    found.append(judge_evaluation(work.inputs, work.split, work.scores, ran))
    work.gates += found
    if failed := describe_failed(found):
        raise CheckFailed("the exported model does not compute what torch computes; nothing is published\n  " + failed)
    asked = work.settings.precision == "fp32"
    work.settle(Attempt(precision="fp32", outcome="kept", reason="" if asked else "the reference of all others"))


def _judge_batches(work: Workshop) -> Gate:
    sizes = sorted(set(work.settings.batches))
    found = work.step(
        "batches", proof.measure_batches, work.path("fp32"), work.split.inputs, sizes, threads=work.threads
    )
    # Written so that a NaN fails.
    alone = all(error <= BATCH_LIMIT for error in found.values())
    return Gate(
        name="batch",
        precision="fp32",
        status="passed" if alone else "failed",
        ran=parity.name_of_onnx("fp32"),
        figures={f"relative_error at {size}": error for size, error in found.items()},
        limits={f"relative_error at {size}": BATCH_LIMIT for size in found},
        reason="" if alone else "a sample's outputs depend on the others of its batch",
    )


def _judge_sizes(work: Workshop) -> list[Gate]:
    """Hold the graph against torch at the ends of each dimension: a number may have become a constant of the graph."""
    if work.ends is None:
        return []
    outputs = work.step(
        "sizes",
        proof.write_graph_outputs,
        work.path("fp32"),
        work.ends.inputs,
        work.folder / "sizes-outputs",
        batch_size=proof.END_SAMPLES,
        threads=work.threads,
    )
    ran = parity.name_of_onnx("fp32")
    compared = parity.compare_stored(work.ends.reference, outputs, work.signature, ran=ran, precision="fp32")
    numbers = parity.judge(compared, "fp32")[0]
    return [numbers.model_copy(update={"name": "sizes"})]


def _place_graph(work: Workshop) -> None:
    """Move the graph that ships to where Triton looks for it, unless Triton loads a plan."""
    if work.runtime == TENSORRT:
        return
    entry, name = work.graphs[-1], work.served_name
    target = work.shipment / name
    target.parent.mkdir(parents=True)
    (work.shipment / entry.name).rename(target)
    work.graphs[-1] = entry.model_copy(update={"name": name})


def _build_engines(work: Workshop) -> None:
    settings = work.settings
    for target in work.inputs.builder.targets:
        name = work.served_name if work.runtime == TENSORRT else f"model.{work.precision}.{target}.engine"
        (work.shipment / name).parent.mkdir(parents=True, exist_ok=True)
        builder = Builder(work.inputs.builder.module, work.inputs.builder.version, (target,))
        step = f"engine {target}"
        if work.runner is not None and work.runner.target == target:
            # It has passed its gate: another build may be another engine.
            made = work.candidates[work.precision]
            tensors, build_s = made.tensors, made.build_s
            work.candidate_path(work.precision).rename(work.shipment / name)
        else:
            tensors = work.step(
                step,
                engine.build_engine,
                work.path(work.precision),
                work.shipment / name,
                builder=builder,
                signature=work.signature,
                min_batch=settings.batches[0],
                opt_batch=settings.batches[1],
                max_batch=settings.batches[2],
                precision=work.precision,
            )
            build_s = work.costs[step].seconds
            _leave_engine(work, target)
        entry = ShippedFile.of(storage.normalise(work.shipment), name)
        work.engines.append(
            EngineEntry(
                **entry.model_dump(),
                onnx_sha256=work.graphs[-1].sha256,
                builder=builder.name,
                precision=work.precision,
                target=target,
                gpus=gpus_of(target),
                min_batch=settings.batches[0],
                opt_batch=settings.batches[1],
                max_batch=settings.batches[2],
                tensors=tensors,
                build_s=round(build_s, 3),
                peak_bytes=work.costs[step].peak_bytes if step in work.costs else 0,
            )
        )
    if work.engines:
        work.tell(f"{len(work.engines)} engines by {work.inputs.builder.name}")


def _leave_engine(work: Workshop, target: str) -> None:
    """Say of an engine whose GPU is not here that it did not run."""
    here = gpu_target()
    reason = "not run: no GPU" if here is None else f"not run: this machine's GPU is {here}"
    work.parity["engine"][target] = Parity(ran=reason)
    work.gates.append(
        Gate(
            name=f"engine {target}",
            precision=work.precision,
            status="not run",
            ran=reason,
            reason=f"shardline verify on a GPU of {target} completes the proof",
        )
    )


def _measure_latency(work: Workshop) -> None:
    found = work.step(
        "bench",
        bench.measure_latency,
        {entry.precision: work.shipment / entry.name for entry in work.graphs},
        [(work.shipment / entry.name, entry) for entry in work.engines],
        precision=work.precision,
        signature=work.signature,
        build_model=work.inputs.build_model,
        weights=work.shipment / WEIGHTS_NAME,
        inputs=work.split.inputs,
        batches=sorted(set(work.settings.batches)),
        threads=work.threads,
    )
    work.latency, work.latency_left_out = found.latency, found.left_out
    work.tell("latency")


def _write_files(work: Workshop) -> None:
    """Write the bundle, and the Triton repository around the model that lies there."""
    write_bundle(work.shipment, work.inputs, work.signature, model_name=work.graphs[-1].name, precision=work.precision)
    labels = read_labels(work.shipment)
    entry = work.engines[0] if work.runtime == TENSORRT else work.graphs[-1]
    work.model = _describe_model(work, work.precision, sha256=entry.sha256, has_labels=labels is not None)
    builder = work.inputs.builder.name
    work.step("repository", write_repository, work.shipment, work.model, builder=builder, labels=labels)


def _describe_model(work: Workshop, precision: str, *, sha256: str, has_labels: bool) -> ServedModel:
    settings = work.settings
    return ServedModel(
        name=model_name(work.inputs.config.task.name),
        runtime=work.runtime,
        precision=precision,
        sha256=sha256,
        signature=work.signature,
        batches=settings.batches,
        has_labels=has_labels,
    )


def _conclude(work: Workshop) -> None:
    """Say what is served, and what ran of it."""
    ran, gpu = work.parity["onnx"][work.precision].ran, ""
    if work.runtime == TENSORRT:
        gpu = work.engines[0].target
        ran = work.parity["engine"][gpu].ran
    elif on_gpu := [gate for gate in work.gates if (gate.name, gate.precision) == (SERVED, work.precision)]:
        ran, gpu = on_gpu[-1].ran, work.server.target if work.server is not None else ""
    config = f"{REPOSITORY}/{work.model.name}/{CONFIG_NAME}"
    work.served = describe_served(
        work.model,
        path=work.served_name,
        config=config,
        config_sha256=hash_file(work.shipment / config),
        ran=ran,
        gpu=gpu,
    )


def _judge_program(work: Workshop) -> None:
    inputs = work.inputs
    if kind_of(inputs.config.task.name) == "own":
        return
    files = ExportedFiles(
        work.shipment,
        inputs.config.task.name,
        work.graphs[0].name,
        inputs.shards_uri,
        inputs.shards,
        work.split.places,
    )
    gate = work.step("program", judge_program, files, work.fp32_outputs)
    work.gates.append(gate)
    if failed := describe_failed([gate]):
        raise CheckFailed(f"the shipped preprocessing is not the trainer's; nothing is published\n  {failed}")
    work.tell("program")


def _trace(
    inputs: Inputs, path: Path, shipment: Path, split: TestSplit, folder: Path, *, opset: int, threads: int
) -> tuple[tuple[Shapes, Shapes], StoredArrays, Container, Scores, Ends | None, Cost]:
    """Write graph and weights, and the outputs that all is compared with; return these, and the cost of the outputs.

    Raises:
        ModelError: The network fails at a size that its signature allows.
    """
    import torch

    from trainer.export.gates.tensors import kind_of
    from trainer.model.build import check_sizes, example_inputs
    from trainer.tasks.loading import network_name
    from trainer.weights.save import save_weights

    torch.set_num_threads(threads)
    model, task = inputs.load_model(), inputs.load_task()
    example = example_inputs(task, onnx_graph.EXAMPLE_BATCH)
    check_sizes(model, example, task.signature, name=network_name(inputs.config))
    shapes = onnx_graph.export_graph(model, path, signature=task.signature, example=example, opset=opset)
    save_weights(model, inputs.checkpoint.classes, shipment)
    began = time.monotonic(), time.process_time()
    with torch.inference_mode():
        kind = kind_of(model(*example))
    if torch.cuda.is_available():
        # For this process alone. TF32 has 10 of fp32's 23 bits, and convolutions take it by default.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        model = model.cuda()
    outputs = proof.write_torch_outputs(model, task.signature, split.inputs, folder)
    ends = proof.write_ends(model, task.signature, split.inputs, folder.parent)
    scores = measure_scores(task, inputs.config, split, outputs, kind)
    cost = Cost(time.monotonic() - began[0], 0, time.process_time() - began[1])
    return shapes, outputs, kind, scores, ends, cost


def _write_samples(
    inputs: Inputs, folder: Path, *, most: int, samples: int, seed: int
) -> tuple[Signature, TestSplit, tuple[StoredArrays, Calibration] | None]:
    # Here: it imports torch.
    from trainer.export.gates import calibration

    task = inputs.load_task()
    split = proof.write_test_split(inputs, task, folder, most=most, seed=seed)
    if not samples:
        return task.signature, split, None
    calibrated = calibration.write_calibration(inputs, task, folder / "calibration", samples=samples, seed=seed)
    return task.signature, split, calibrated
