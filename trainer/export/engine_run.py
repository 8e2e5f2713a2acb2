"""Runs an engine on a GPU, for its parity with torch. Without a GPU it says why it did not run.

Not executed so far: this project has had no GPU. Written after the API of tensorrt_rtx 1.7 and the documentation of
tensorrt 10 and 11; the first run on a GPU is the first test of it. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import numpy as np

from contracts.artifacts import EngineEntry, Gate, Parity
from contracts.errors import CheckFailed, ConfigError
from trainer.export import parity
from trainer.export.arrays import write_array
from trainer.export.engine import load_api, make_logger
from trainer.export.onnx_graph import INPUT_NAME, OUTPUT_NAME
from trainer.export.parity import Array, Runner
from trainer.export.proof import TestImages
from trainer.export.targets import gpu_target, gpus_of


class NoGpu(ConfigError):
    """An engine was to be opened where it cannot run."""


class BatchRefused(Exception):
    """A batch is outside of the engine's profile."""


def require_gpu(entry: EngineEntry) -> None:
    """See to it that an engine can run here.

    Raises:
        NoGpu: There is no GPU, or another one than the engine was built for.
    """
    here = gpu_target()
    if here == entry.target:
        return
    raise NoGpu(
        f"{entry.name} was built for {entry.target} ({', '.join(gpus_of(entry.target))}); this machine has "
        f"{'no GPU' if here is None else f'a GPU of {here}'}",
        allowed="a machine with a GPU of that compute capability: an engine is compiled for it",
        todo="run it there; here the ONNX graph beside it gives the same answers (predict.py), or build an engine for "
        "this GPU with export.targets",
    )


def open_engine(path: Path, entry: EngineEntry, *, num_classes: int) -> Runner:
    """Return a function that runs an engine file on the first GPU. Not executed so far (see the module).

    Args:
        path: The engine.
        entry: What the manifest says of it.
        num_classes: Width of the logits.

    Raises:
        NoGpu: There is no GPU that it was built for.
        ConfigError: The builder package does not load, or is of another version than the one that built it.
        CheckFailed: The engine does not load.
    """
    require_gpu(entry)
    module, _, built_with = entry.builder.partition(" ")
    api = load_api(module)
    if (installed := version(packages_distributions()[module][0])) != built_with:
        raise ConfigError(
            f"{path.name} was built by {entry.builder}, installed is {module} {installed}",
            allowed="the very version that built it: engines do not load in others",
            todo=f"install {module} {built_with}, or export again",
        )
    import torch

    messages: list[str] = []
    runtime = api.Runtime(make_logger(api, messages))
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise CheckFailed(f"{path.name} does not load in {entry.builder}: {' '.join(messages[-3:])}")
    context = engine.create_execution_context()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def run(images: Array) -> Array:
        device_images = torch.from_numpy(np.ascontiguousarray(images)).cuda()
        device_logits = torch.empty(len(images), num_classes, dtype=torch.float32, device="cuda")
        if not context.set_input_shape(INPUT_NAME, tuple(device_images.shape)):
            raise BatchRefused(f"{path.name} refuses {len(images)} images: {' '.join(messages[-3:])}")
        context.set_tensor_address(INPUT_NAME, device_images.data_ptr())
        context.set_tensor_address(OUTPUT_NAME, device_logits.data_ptr())
        # The copies above are on torch's current stream; the engine's work must come after them.
        stream.wait_stream(torch.cuda.current_stream())
        if not context.execute_async_v3(stream.cuda_stream):
            raise CheckFailed(f"{path.name} does not run {len(images)} images: {' '.join(messages[-3:])}")
        stream.synchronize()
        logits: Array = device_logits.cpu().numpy()
        return logits

    # The runtime and the engine must live as long as the context that the closure holds.
    run.owners = (runtime, engine)  # type: ignore[attr-defined]
    return run


def write_engine_logits(
    path: Path, entry: EngineEntry, images: TestImages, target: Path, *, num_classes: int
) -> tuple[bool, str]:
    """Write an engine's logits [sizes, N, classes] at the smallest, the tuned and the largest batch to a .npy file.

    Returns:
        Whether it refuses a batch of one more than the largest, and the name of the GPU.

    Raises:
        NoGpu: As `open_engine`.
        CheckFailed: The engine does not load, or does not run.
    """
    import torch

    run = open_engine(path, entry, num_classes=num_classes)
    sizes = sorted({entry.min_batch, entry.opt_batch, entry.max_batch})
    write_array(target, np.stack([_run_all(run, images, size, entry.min_batch) for size in sizes]))
    one_more = next(images.batches(1)).repeat(entry.max_batch + 1, axis=0)
    try:
        run(one_more)
    except BatchRefused:
        refuses = True
    else:
        refuses = False
    return refuses, torch.cuda.get_device_name()


def judge_engine(
    path: Path,
    entry: EngineEntry,
    images: TestImages,
    reference: Array,
    *,
    work: Path,
    run: Callable[..., Any],
) -> tuple[Gate, Parity]:
    """Hold an engine against the reference's logits [N, classes] at each batch size of its profile.

    The figures are those of the worst batch size.

    Args:
        path: The engine.
        entry: What the manifest says of it.
        images: What the reference saw.
        reference: Logits of torch, or of the fp32 graph that agrees with it.
        work: A folder for files in between.
        run: Calls a function in a process of its own, after the name of the step.
    """
    target = work / f"{entry.target}.npy"
    refuses, device = run(
        f"engine {entry.target} logits",
        write_engine_logits,
        path,
        entry,
        images,
        target,
        num_classes=reference.shape[1],
    )
    ran = f"{entry.builder} on {device} ({entry.target})"
    found = [parity.compare(reference, logits, ran=ran, precision=entry.precision) for logits in np.load(target)]
    worst = max(found, key=lambda one: (not one.passed, one.relative_error or 0.0))
    logits_gate, top1 = parity.judge(worst, entry.precision)
    reasons = [gate.reason for gate in (logits_gate, top1) if gate.reason]
    if not refuses:
        reasons.append(f"it runs a batch of {entry.max_batch + 1}, its profile ends at {entry.max_batch}")
    failed = not refuses or "failed" in (logits_gate.status, top1.status)
    gate = Gate(
        name=f"engine {entry.target}",
        precision=entry.precision,
        status="failed" if failed else "passed",
        ran=ran,
        figures={**logits_gate.figures, **top1.figures, "refuses_max_batch_and_one": refuses},
        limits={**logits_gate.limits, **(top1.limits if top1.status != "not decidable" else {})},
        reason="; ".join(reasons),
    )
    return gate, worst


def _run_all(run: Runner, images: TestImages, size: int, least: int) -> Array:
    """Return the logits of all images in batches of a size; the last is filled up to the smallest batch there is."""
    parts = []
    for batch in images.batches(size):
        missing = max(0, least - len(batch))
        filled = np.concatenate([batch, batch[:1].repeat(missing, axis=0)]) if missing else batch
        parts.append(run(filled)[: len(batch)])
    return np.concatenate(parts)
