"""Runs an engine on a GPU, for its parity with torch. Without a GPU it says why it did not run.

Not executed so far: this project has had no GPU. Written after the API of tensorrt_rtx 1.7 and the documentation of
tensorrt 10 and 11; the first run on a GPU is the first test of it. Nothing is timed.
"""

from __future__ import annotations

from pathlib import Path

from contracts.errors import CheckFailed
from trainer.export.engine import load_api, make_logger
from trainer.export.onnx_graph import INPUT_NAME, OUTPUT_NAME
from trainer.export.parity import Array, Runner
from trainer.export.targets import Builder, gpu_target


def reason_not_to_run(builder: Builder) -> str | None:
    """Return why an engine of `builder` cannot run here, or None when it can."""
    import torch

    gpu = gpu_target()
    if gpu is None:
        return "no GPU"
    if gpu not in builder.targets:
        return f"{builder.name} has no target for this GPU ({gpu})"
    if not torch.cuda.is_available():
        return "torch has no CUDA here"
    return None


def open_engine(path: Path, *, builder: Builder, num_classes: int) -> Runner:
    """Return a function that runs an engine file on the first GPU. Not executed so far (see the module).

    Args:
        path: The engine.
        builder: What built it: engines load only in the same package and version.
        num_classes: Width of the logits.

    Raises:
        CheckFailed: The engine does not load, or does not run a batch.
    """
    import torch

    api = load_api(builder.module)
    messages: list[str] = []
    runtime = api.Runtime(make_logger(api, messages))
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise CheckFailed(f"{path.name} does not load in {builder.name}: {' '.join(messages[-3:])}")
    context = engine.create_execution_context()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def run(images: Array) -> Array:
        device_images = torch.from_numpy(images).cuda().contiguous()
        device_logits = torch.empty(len(images), num_classes, dtype=torch.float32, device="cuda")
        context.set_input_shape(INPUT_NAME, tuple(device_images.shape))
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
