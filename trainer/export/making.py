"""The work of one export, top to bottom: graph, proof of fp32, the precision that holds, engines, and what ships.

Here: `make`, run by trainer/export/task.py. Every heavy step is a process of its own; what it computes is in another
module. Nothing here imports torch, onnx or a builder.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np

from contracts import storage
from contracts.artifacts import Attempt, Calibration, EngineEntry, FileEntry, Gate, Parity
from contracts.config.export import MIN_CALIBRATION_SAMPLES
from contracts.errors import CheckFailed
from trainer.export import bench, bundle, calibration, engine, engine_run, onnx_graph, parity, proof
from trainer.export.choosing import choose_precision
from trainer.export.inputs import Inputs
from trainer.export.processes import Cost
from trainer.export.proof import TestImages
from trainer.export.targets import Builder, gpu_target, gpus_of
from trainer.export.workshop import Workshop, describe_failed, hash_file
from trainer.weights.source import WEIGHTS_NAME

FP32_NAME = "model.fp32.onnx"
# A batch differs from its images one by one by how sums are grouped; an image that leaks into others differs by far.
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
    traced, torch_logits = work.folder / "traced" / "model.onnx", work.folder / "torch.npy"
    traced.parent.mkdir()
    _read_images(work)
    torch_s = work.step(
        "trace",
        _trace,
        work.inputs,
        traced,
        work.shipment,
        work.images,
        torch_logits,
        opset=work.settings.opset,
        threads=work.threads,
    )
    # torch's own answers are the gates', and take as long as there are images.
    trace = work.costs["trace"]
    work.costs |= {
        "trace": Cost(trace.seconds - torch_s, trace.peak_bytes),
        "torch": Cost(torch_s, trace.peak_bytes),
    }
    work.graph_inputs, work.graph_outputs = work.step("join", onnx_graph.join_graph, traced, work.path("fp32"))
    shutil.rmtree(traced.parent)
    work.tell("fp32 graph")
    work.reference = np.load(torch_logits)
    work.labels = work.images.read_labels()
    work.right[parity.REFERENCE] = parity.count_right(work.reference, work.labels)


def _read_images(work: Workshop) -> None:
    """Decode the test split, and training images where activations are looked at."""
    wanted = 0 if work.settings.precision == "fp32" else work.settings.calibration_samples
    work.images, work.calibration = work.step(
        "images",
        _write_images,
        work.inputs,
        work.folder,
        work.calibration_path,
        samples=wanted,
        seed=work.seed,
        least=MIN_CALIBRATION_SAMPLES if work.settings.precision == "int8" else 1,
    )


def _judge_fp32(work: Workshop) -> None:
    found = [*work.judge_graph(work.path("fp32"), "fp32"), _judge_batches(work)]
    work.gates += found
    if failed := describe_failed(found):
        raise CheckFailed("the exported model does not compute what torch computes; nothing is published\n  " + failed)
    asked = work.settings.precision == "fp32"
    work.settle(Attempt(precision="fp32", outcome="kept", reason="" if asked else "the reference of all others"))


def _judge_batches(work: Workshop) -> Gate:
    sizes = sorted({1, work.settings.opt_batch, work.settings.max_batch})
    found = work.step("batches", proof.measure_batches, work.path("fp32"), work.images, sizes, threads=work.threads)
    # Written so that a NaN fails.
    alone = all(error <= BATCH_LIMIT for error in found.values())
    return Gate(
        name="batch",
        precision="fp32",
        status="passed" if alone else "failed",
        ran=parity.name_of_onnx("fp32"),
        figures={f"relative_error at {size}": error for size, error in found.items()},
        limits={f"relative_error at {size}": BATCH_LIMIT for size in found},
        reason="" if alone else "an image's logits depend on the others of its batch",
    )


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
            image_shape=(onnx_graph.CHANNELS, work.inputs.image_size, work.inputs.image_size),
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
        work.images,
        work.reference,
        work=work.folder,
        run=work.step,
    )
    work.parity["engine"][entry.target] = found
    if gate.status == "failed":
        raise CheckFailed(f"the engine does not compute what torch computes; nothing is published\n  {gate.reason}")
    return gate


def _measure_latency(work: Workshop) -> None:
    checkpoint = work.inputs.checkpoint
    found = work.step(
        "bench",
        bench.measure_latency,
        {entry.precision: work.shipment / entry.name for entry in work.graphs},
        [(work.shipment / entry.name, entry) for entry in work.engines],
        precision=work.precision,
        model=checkpoint.model,
        weights=work.shipment / WEIGHTS_NAME,
        num_classes=len(checkpoint.classes),
        image_size=work.inputs.image_size,
        batches=sorted({work.settings.min_batch, work.settings.opt_batch, work.settings.max_batch}),
        threads=work.threads,
    )
    work.latency, work.latency_left_out = found.latency, found.left_out
    work.tell("latency")


def _write_bundle(work: Workshop) -> None:
    bundle.write_bundle(
        work.shipment,
        work.inputs.checkpoint,
        model_name=work.path(work.precision).name,
        max_batch=work.settings.max_batch,
    )
    evaluation, missing = work.inputs.find_evaluation()
    gate = work.step(
        "bundle",
        bundle.check_bundle,
        work.shipment,
        work.inputs.shards_uri,
        work.inputs.shards,
        model_name=FP32_NAME,
        expected_right=None if evaluation is None else round(evaluation.metrics["accuracy"] * evaluation.samples),
        transformed_right=work.right["fp32"],
        expected_score=parity.mean_score(work.fp32_logits[work.labels != proof.NOISE]),
        data=work.inputs.data,
        threads=work.threads,
    )
    if missing:
        gate = gate.model_copy(update={"reason": "; ".join(part for part in (gate.reason, missing) if part)})
    work.gates.append(gate)
    if failed := describe_failed([gate]):
        raise CheckFailed(f"the shipped preprocessing is not the trainer's; nothing is published\n  {failed}")
    work.tell("bundle")


def _trace(
    inputs: Inputs, path: Path, shipment: Path, images: TestImages, logits: Path, *, opset: int, threads: int
) -> float:
    """Write graph and weights, and the logits that all is compared with; return the seconds of the latter."""
    import torch

    from trainer.weights.save import save_weights

    torch.set_num_threads(threads)
    model = inputs.load_model()
    onnx_graph.export_graph(model, path, image_size=inputs.image_size, opset=opset)
    save_weights(model, inputs.checkpoint.classes, shipment)
    began = time.monotonic()
    proof.write_torch_logits(model, images, logits)
    return time.monotonic() - began


def _write_images(
    inputs: Inputs, work: Path, calibration_path: Path, *, samples: int, seed: int, least: int
) -> tuple[TestImages, Calibration | None]:
    transform = inputs.transform
    images = proof.write_test_images(inputs.shards_uri, inputs.shards, transform, inputs.data, work)
    if not samples:
        return images, None
    calibrated = calibration.write_calibration(
        inputs.shards_uri,
        inputs.shards,
        transform,
        calibration_path,
        samples=samples,
        seed=seed,
        data=inputs.data,
        least=least,
    )
    return images, calibrated
