"""The work of one export, top to bottom: graph, proof of fp32, the precision that holds, engines, and what ships.

Here: `make`, run by trainer/export/task.py. Every heavy step is a process of its own; what it computes is in another
module. Nothing here imports torch, onnx or a builder.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from contracts import storage
from contracts.artifacts import Attempt, Calibration, EngineEntry, FileEntry, Gate, Parity
from contracts.artifacts.signature import Signature
from contracts.config.export import MIN_CALIBRATION_SAMPLES
from contracts.errors import CheckFailed
from trainer.export import bench, calibration, engine, engine_run, onnx_graph, parity, proof
from trainer.export.arrays import StoredArrays
from trainer.export.choosing import choose_precision
from trainer.export.inputs import Inputs
from trainer.export.processes import Cost
from trainer.export.proof import Ends, TestSplit
from trainer.export.scores import Scores, measure_scores
from trainer.export.targets import Builder, gpu_target, gpus_of
from trainer.export.workshop import Workshop, describe_failed, hash_file
from trainer.weights.source import WEIGHTS_NAME

FP32_NAME = "model.fp32.onnx"
# A batch differs from its samples one by one by how sums are grouped; one that leaks into others differs by far.
BATCH_LIMIT = 1e-5


def make(work: Workshop) -> None:
    """Do all of it; what ships lies in the workshop's shipment afterwards.

    Raises:
        CheckFailed: A gate failed that nothing can fall back from.
        ConfigError: The precision that is left is none that a target has.
    """
    _write_fp32(work)
    _judge_fp32(work)
    choose_precision(work)
    _build_engines(work)
    _write_bundle(work)
    _judge_engines(work)
    if work.settings.bench:
        _measure_latency(work)


def _write_fp32(work: Workshop) -> None:
    traced = work.folder / "traced" / "model.onnx"
    traced.parent.mkdir()
    _read_samples(work)
    found = work.step(
        "trace",
        _trace,
        work.inputs,
        traced,
        work.shipment,
        work.split,
        work.folder / "torch-outputs",
        opset=work.settings.opset,
        threads=work.threads,
    )
    work.reference, work.kind, work.scores[parity.REFERENCE], work.ends, torch_s = found
    # torch's own outputs are the gates', and take as long as there are samples.
    trace = work.costs["trace"]
    work.costs |= {
        "trace": Cost(trace.seconds - torch_s, trace.peak_bytes),
        "torch": Cost(torch_s, trace.peak_bytes),
    }
    work.graph_inputs, work.graph_outputs = work.step(
        "join", onnx_graph.join_graph, traced, work.path("fp32"), work.signature
    )
    shutil.rmtree(traced.parent)
    work.tell("fp32 graph")


def _read_samples(work: Workshop) -> None:
    """Prepare the test split, and training samples where activations are looked at."""
    wanted = 0 if work.settings.precision == "fp32" else work.settings.calibration_samples
    work.signature, work.split, calibrated = work.step(
        "samples",
        _write_samples,
        work.inputs,
        work.folder,
        samples=wanted,
        seed=work.seed,
        least=MIN_CALIBRATION_SAMPLES if work.settings.precision == "int8" else 1,
    )
    if calibrated is not None:
        work.calibration_inputs, work.calibration = calibrated


def _judge_fp32(work: Workshop) -> None:
    found = [*work.judge_graph(work.path("fp32"), "fp32"), _judge_batches(work), *_judge_sizes(work)]
    work.gates += found
    if failed := describe_failed(found):
        raise CheckFailed("the exported model does not compute what torch computes; nothing is published\n  " + failed)
    asked = work.settings.precision == "fp32"
    work.settle(Attempt(precision="fp32", outcome="kept", reason="" if asked else "the reference of all others"))


def _judge_batches(work: Workshop) -> Gate:
    sizes = sorted({1, work.settings.opt_batch, work.settings.max_batch})
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
    inputs, reference = work.ends
    outputs = work.step(
        "sizes",
        proof.write_graph_outputs,
        work.path("fp32"),
        inputs,
        work.folder / "sizes-outputs",
        batch_size=proof.END_SAMPLES,
        threads=work.threads,
    )
    ran = parity.name_of_onnx("fp32")
    compared = parity.compare_stored(reference, outputs, work.signature, ran=ran, precision="fp32")
    numbers = parity.judge(compared, "fp32")[0]
    return [numbers.model_copy(update={"name": "sizes"})]


def _build_engines(work: Workshop) -> None:
    graph = work.path(work.precision)
    for target in work.inputs.builder.targets:
        name = f"model.{work.precision}.{target}.engine"
        builder = Builder(work.inputs.builder.module, work.inputs.builder.version, (target,))
        step = f"engine {target}"
        tensors = work.step(
            step,
            engine.build_engine,
            graph,
            work.shipment / name,
            builder=builder,
            signature=work.signature,
            opt_batch=work.settings.opt_batch,
            max_batch=work.settings.max_batch,
            min_batch=work.settings.min_batch,
        )
        entry = FileEntry.of(storage.normalise(work.shipment), name)
        work.engines.append(
            EngineEntry(
                **entry.model_dump(),
                sha256=hash_file(work.shipment / name),
                onnx_sha256=work.graphs[-1].sha256,
                builder=builder.name,
                precision=work.precision,
                target=target,
                gpus=gpus_of(target),
                min_batch=work.settings.min_batch,
                opt_batch=work.settings.opt_batch,
                max_batch=work.settings.max_batch,
                tensors=tensors,
                build_s=round(work.costs[step].seconds, 3),
                peak_bytes=work.costs[step].peak_bytes,
            )
        )
    work.tell(f"{len(work.engines)} engines by {work.inputs.builder.name}")


def _judge_engines(work: Workshop) -> None:
    """Run each engine whose GPU is here, at the profile's ends; the others did not run, and their gates say so."""
    here = gpu_target()
    for entry in work.engines:
        if entry.target != here:
            reason = "not run: no GPU" if here is None else f"not run: this machine's GPU is {here}"
            work.parity["engine"][entry.target] = Parity(ran=reason)
            work.gates.append(
                Gate(
                    name=f"engine {entry.target}",
                    precision=entry.precision,
                    status="not run",
                    ran=reason,
                    reason=f"shardline verify on a GPU of {entry.target} completes the proof",
                )
            )
            continue
        work.gates.append(_run_engine(work, entry))


def _run_engine(work: Workshop, entry: EngineEntry) -> Gate:
    """Hold an engine against torch at each batch size of its profile. Not executed so far: no GPU."""
    gate, found = engine_run.judge_engine(
        work.shipment / entry.name,
        entry,
        work.signature,
        work.split.inputs,
        work.reference,
        work=work.folder,
        run=work.step,
    )
    work.parity["engine"][entry.target] = found
    if gate.status == "failed":
        raise CheckFailed(f"the engine does not compute what torch computes; nothing is published\n  {gate.reason}")
    return gate


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
        batches=sorted({work.settings.min_batch, work.settings.opt_batch, work.settings.max_batch}),
        threads=work.threads,
    )
    work.latency, work.latency_left_out = found.latency, found.left_out
    work.tell("latency")


def _write_bundle(work: Workshop) -> None:
    work.bundle.write_bundle(
        work.shipment,
        work.inputs,
        work.signature,
        model_name=work.path(work.precision).name,
        max_batch=work.settings.max_batch,
    )
    gate = work.step(
        "bundle",
        work.bundle.check_bundle,
        work.shipment,
        work.inputs,
        work.split,
        work.fp32_outputs,
        work.scores["fp32"],
        model_name=FP32_NAME,
        threads=work.threads,
    )
    work.gates.append(gate)
    if failed := describe_failed([gate]):
        raise CheckFailed(f"the shipped preprocessing is not the trainer's; nothing is published\n  {failed}")
    work.tell("bundle")


def _trace(
    inputs: Inputs, path: Path, shipment: Path, split: TestSplit, folder: Path, *, opset: int, threads: int
) -> tuple[StoredArrays, str, Scores, Ends | None, float]:
    """Write graph and weights, and the outputs that all is compared with; return these, and the seconds of that.

    Raises:
        ModelError: The network fails at a size that its signature allows.
    """
    import torch

    from trainer.export.tensors import kind_of
    from trainer.model.build import example_inputs
    from trainer.model.sizes import check_sizes
    from trainer.tasks.load import network_name
    from trainer.weights.save import save_weights

    torch.set_num_threads(threads)
    model, task = inputs.load_model(), inputs.load_task()
    example = example_inputs(task, onnx_graph.EXAMPLE_BATCH)
    check_sizes(model, example, task.signature, name=network_name(inputs.config))
    onnx_graph.export_graph(model, path, signature=task.signature, example=example, opset=opset)
    save_weights(model, inputs.checkpoint.classes, shipment)
    began = time.monotonic()
    with torch.inference_mode():
        kind = kind_of(model(*example))
    outputs = proof.write_torch_outputs(model, task.signature, split.inputs, folder)
    ends = proof.write_ends(model, task.signature, split.inputs, folder.parent)
    scores = measure_scores(task, inputs.config, split, outputs, kind)
    return outputs, kind, scores, ends, time.monotonic() - began


def _write_samples(
    inputs: Inputs, folder: Path, *, samples: int, seed: int, least: int
) -> tuple[Signature, TestSplit, tuple[StoredArrays, Calibration] | None]:
    task = inputs.load_task()
    split = proof.write_test_split(inputs, task, folder)
    if not samples:
        return task.signature, split, None
    calibrated = calibration.write_calibration(
        inputs, task, folder / "calibration", samples=samples, seed=seed, least=least
    )
    return task.signature, split, calibrated
