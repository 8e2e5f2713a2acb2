"""The parts of the bench that need a GPU: ONNX Runtime on CUDA, and engines, with their tensors on the device.

Not executed: written after the documentation of ONNX Runtime's I/O binding and the API of tensorrt_rtx 1.7; the
first run on a GPU is the first test of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from contracts.artifacts import EngineEntry
from contracts.artifacts.signature import Signature
from contracts.errors import CheckFailed
from trainer.export.engines.bench import Queued
from trainer.export.gates.arrays import StoredArrays
from trainer.export.gates.sessions import CPU, CUDA, TENSORRT_PROVIDER, open_session

Prepare = Callable[[int], Callable[[], object]]
PROVIDERS = (CUDA, TENSORRT_PROVIDER)


def prepare_onnx(path: Path, inputs: StoredArrays, provider: str) -> Prepare:
    """Return what makes calls of an ONNX file on a GPU, by batch size. Inputs stay on the device, outputs as well.

    What it returns raises ConfigError where the installed ONNX Runtime does not have the provider.
    """
    import onnxruntime  # type: ignore[import-untyped]

    sessions: list[Any] = []

    def prepare(batch: int) -> Callable[[], object]:
        if not sessions:
            sessions.append(open_session(path, providers=list(dict.fromkeys((provider, CUDA, CPU)))))
        binding = sessions[0].io_binding()
        for name, array in inputs.fill(batch).items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
        for item in sessions[0].get_outputs():
            binding.bind_output(item.name, "cuda")

        # The binding's stream runs on: ONNX Runtime waits for it in the end only if it is told to.
        options = onnxruntime.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        return Queued(lambda: sessions[0].run_with_iobinding(binding, options), binding.synchronize_outputs)

    return prepare


def prepare_engine(
    path: Path, entry: EngineEntry, signature: Signature, inputs: StoredArrays, *, with_graph: bool
) -> Prepare:
    """Return what makes calls of an engine, by batch size; it is opened as `engine_run.open_engine` opens it.

    Args:
        path: The engine.
        entry: What the manifest says of it.
        signature: Its inputs and outputs.
        inputs: Samples.
        with_graph: Record the call once as a CUDA graph, and replay that.
    """
    import torch

    from trainer.export.engines.engine_run import open_engine
    from trainer.model.tensors import DTYPES

    opened: list[Any] = []

    def prepare(batch: int) -> Callable[[], object]:
        if not opened:
            opened.append(open_engine(path, entry, signature))
        _, engine = opened[0].owners
        context = engine.create_execution_context()
        given = {name: torch.from_numpy(array).cuda() for name, array in inputs.fill(batch).items()}
        for name, tensor in given.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise CheckFailed(f"{path.name} refuses a batch of {batch}")
        outputs = {
            name: torch.empty(tuple(context.get_tensor_shape(name)), dtype=DTYPES[spec.dtype], device="cuda")
            for name, spec in signature.outputs.items()
        }
        for name, tensor in {**given, **outputs}.items():
            context.set_tensor_address(name, tensor.data_ptr())
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()  # the inputs are there before another stream reads them

        def enqueue() -> None:
            if not context.execute_async_v3(stream.cuda_stream):
                raise CheckFailed(f"{path.name} does not run a batch of {batch}")

        call = enqueue
        if with_graph:
            # The first call loads kernels, which cannot be recorded.
            enqueue()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                enqueue()

            def call() -> None:
                with torch.cuda.stream(stream):
                    graph.replay()

        # Its memory must live as long as it is called.
        call.owners = (given, outputs, context)  # type: ignore[attr-defined]
        return Queued(call, stream.synchronize)

    return prepare
