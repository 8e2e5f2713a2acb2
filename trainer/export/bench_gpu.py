"""The parts of the bench that need a GPU: ONNX Runtime on CUDA, and engines, with their tensors on the device.

Not executed so far: written after the documentation of ONNX Runtime's I/O binding and the API of tensorrt_rtx 1.7; the
first run on a GPU is the first test of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from contracts.artifacts import EngineEntry
from contracts.errors import CheckFailed, ConfigError
from trainer.export.onnx_graph import INPUT_NAME, OUTPUT_NAME

Prepare = Callable[[int], Callable[[], object]]
PROVIDER = "CUDAExecutionProvider"


def prepare_onnx(path: Path, shape: tuple[int, int, int]) -> Prepare:
    """Return what makes calls of an ONNX file on CUDA, by batch size. Inputs stay on the device, logits as well.

    What it returns raises ConfigError where the installed ONNX Runtime has no CUDA.
    """
    import onnxruntime  # type: ignore[import-untyped]

    sessions: list[Any] = []

    def prepare(batch: int) -> Callable[[], object]:
        if not sessions:
            if PROVIDER not in onnxruntime.get_available_providers():
                raise ConfigError(
                    f"onnxruntime {onnxruntime.__version__} has no {PROVIDER}",
                    allowed="onnxruntime-gpu",
                    todo="install onnxruntime-gpu of the same version in place of onnxruntime",
                )
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            session = onnxruntime.InferenceSession(path, options, providers=[PROVIDER])
            # Where CUDA cannot be loaded it goes on without it, and says so in a log only.
            if PROVIDER not in session.get_providers():
                raise ConfigError(
                    f"onnxruntime {onnxruntime.__version__} did not take {PROVIDER}",
                    allowed="a GPU, and the CUDA and cuDNN that it was built for",
                    todo="see what onnxruntime logs",
                )
            sessions.append(session)
        binding = sessions[0].io_binding()
        images = np.random.default_rng(batch).standard_normal((batch, *shape), dtype=np.float32)
        on_device = onnxruntime.OrtValue.ortvalue_from_numpy(images, "cuda", 0)
        binding.bind_ortvalue_input(INPUT_NAME, on_device)
        binding.bind_output(OUTPUT_NAME, "cuda")

        def call() -> None:
            sessions[0].run_with_iobinding(binding)
            binding.synchronize_outputs()

        return call

    return prepare


def prepare_engine(path: Path, entry: EngineEntry, shape: tuple[int, int, int], *, num_classes: int) -> Prepare:
    """Return what makes calls of an engine, by batch size; it is opened as `engine_run.open_engine` opens it."""
    import torch

    from trainer.export.engine_run import open_engine

    opened: list[Any] = []

    def prepare(batch: int) -> Callable[[], object]:
        if not opened:
            opened.append(open_engine(path, entry, num_classes=num_classes))
        _, engine = opened[0].owners
        context = engine.create_execution_context()
        images = torch.randn(batch, *shape, device="cuda")
        logits = torch.empty(batch, num_classes, device="cuda")
        if not context.set_input_shape(INPUT_NAME, tuple(images.shape)):
            raise CheckFailed(f"{path.name} refuses {batch} images")
        context.set_tensor_address(INPUT_NAME, images.data_ptr())
        context.set_tensor_address(OUTPUT_NAME, logits.data_ptr())
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()  # the images are there before another stream reads them

        def call() -> None:
            if not context.execute_async_v3(stream.cuda_stream):
                raise CheckFailed(f"{path.name} does not run {batch} images")
            stream.synchronize()

        # Its memory must live as long as it is called.
        call.owners = (images, logits, context)  # type: ignore[attr-defined]
        return call

    return prepare
