"""Runs an engine on a GPU, for its parity with torch. Without a GPU it says why it did not run.

Not executed so far: this project has had no GPU. Written after the API of tensorrt_rtx 1.7 and the documentation of
tensorrt 10 and 11; the first run on a GPU is the first test of it. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from contracts.artifacts import EngineEntry, Gate, Parity
from contracts.artifacts.export import Figure
from contracts.artifacts.signature import Signature
from contracts.errors import CheckFailed, ConfigError
from trainer.export import parity
from trainer.export.arrays import Array, Arrays, StoredArrays, pad_batch, store_arrays
from trainer.export.engine import load_api, make_logger
from trainer.export.parity import Runner
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


def open_engine(path: Path, entry: EngineEntry, signature: Signature) -> Runner:
    """Return a function that runs an engine file on the first GPU. Not executed so far (see the module).

    Args:
        path: The engine.
        entry: What the manifest says of it.
        signature: Its inputs and outputs.

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

    from trainer.model.tensors import DTYPES

    messages: list[str] = []
    runtime = api.Runtime(make_logger(api, messages))
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise CheckFailed(f"{path.name} does not load in {entry.builder}: {' '.join(messages[-3:])}")
    context = engine.create_execution_context()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def run(inputs: Mapping[str, Array]) -> Arrays:
        on_device = {name: torch.from_numpy(array).cuda() for name, array in inputs.items()}
        shapes = {name: list(tensor.shape) for name, tensor in on_device.items()}
        for name, tensor in on_device.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise BatchRefused(f"{path.name} refuses {shapes}: {' '.join(messages[-3:])}")
        outputs = {
            name: torch.empty(tuple(context.get_tensor_shape(name)), dtype=DTYPES[spec.dtype], device="cuda")
            for name, spec in signature.outputs.items()
        }
        for name, tensor in {**on_device, **outputs}.items():
            context.set_tensor_address(name, tensor.data_ptr())
        # The copies above are on torch's current stream; the engine's work must come after them.
        stream.wait_stream(torch.cuda.current_stream())
        if not context.execute_async_v3(stream.cuda_stream):
            raise CheckFailed(f"{path.name} does not run {shapes}: {' '.join(messages[-3:])}")
        stream.synchronize()
        return {name: tensor.cpu().numpy() for name, tensor in outputs.items()}

    # The runtime and the engine must live as long as the context that the closure holds.
    run.owners = (runtime, engine)  # type: ignore[attr-defined]
    return run


def write_engine_outputs(
    path: Path, entry: EngineEntry, signature: Signature, inputs: StoredArrays, folder: Path
) -> tuple[list[StoredArrays], bool, str]:
    """Write an engine's outputs at the smallest, the tuned and the largest batch, each into a folder of its own.

    Args:
        path: The engine.
        entry: What the manifest says of it.
        signature: Its inputs and outputs.
        inputs: What it is given.
        folder: Where the folders are made.

    Returns:
        The outputs by batch size, whether it refuses a batch of one more than the largest, and the name of the GPU.

    Raises:
        NoGpu: As `open_engine`.
        CheckFailed: The engine does not load, or does not run.
    """
    import torch

    run = open_engine(path, entry, signature)
    found = []
    for size in sorted({entry.min_batch, entry.opt_batch, entry.max_batch}):
        # The batches of a part's end too are of this size: an engine may take no smaller ones.
        batches = ((len(next(iter(batch.values()))), pad_batch(batch, size)) for batch in inputs.batches(size))
        parts = ({name: array[:number] for name, array in run(batch).items()} for number, batch in batches)
        found.append(store_arrays(folder / f"{entry.target}-{size}", parts))
    try:
        run(inputs.fill(entry.max_batch + 1))
    except BatchRefused:
        refuses = True
    else:
        refuses = False
    return found, refuses, torch.cuda.get_device_name()


def judge_engine(
    path: Path,
    entry: EngineEntry,
    signature: Signature,
    inputs: StoredArrays,
    reference: StoredArrays,
    *,
    work: Path,
    run: Callable[..., Any],
) -> tuple[Gate, Parity]:
    """Hold an engine against the reference's outputs at each batch size of its profile.

    The figures are those of the worst batch size.

    Args:
        path: The engine.
        entry: What the manifest says of it.
        signature: Its inputs and outputs.
        inputs: What the reference was given.
        reference: Outputs of torch, or of the fp32 graph that agrees with it.
        work: A folder for files in between.
        run: Calls a function in a process of its own, after the name of the step.
    """
    stored, refuses, device = run(
        f"engine {entry.target} outputs", write_engine_outputs, path, entry, signature, inputs, work
    )
    ran = f"{entry.builder} on {device} ({entry.target})"
    found = [
        parity.compare_stored(reference, outputs, signature, ran=ran, precision=entry.precision) for outputs in stored
    ]
    worst = max(found, key=lambda one: (not one.passed, one.relative_error or 0.0))
    gates = parity.judge(worst, entry.precision)
    reasons = [gate.reason for gate in gates if gate.reason]
    if not refuses:
        reasons.append(f"it runs a batch of {entry.max_batch + 1}, its profile ends at {entry.max_batch}")
    figures: dict[str, Figure] = {name: value for gate in gates for name, value in gate.figures.items()}
    decided = [gate for gate in gates if gate.status != "not decidable"]
    gate = Gate(
        name=f"engine {entry.target}",
        precision=entry.precision,
        status="failed" if not refuses or any(gate.status == "failed" for gate in gates) else "passed",
        ran=ran,
        figures={**figures, "refuses_max_batch_and_one": refuses},
        limits={name: value for gate in decided for name, value in gate.limits.items()},
        reason="; ".join(reasons),
    )
    return gate, worst
