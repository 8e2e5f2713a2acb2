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
from trainer.export.engines.timing import Queued
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
    """Return what makes calls of an engine, by batch size; it is opened as `engine_open.open_engine` opens it.

    Args:
        path: The engine.
        entry: What the manifest says of it.
        signature: Its inputs and outputs.
        inputs: Samples.
        with_graph: Record the call once as a CUDA graph, and replay that.
    """
    from trainer.export.engines.engine_open import Engine, open_engine

    opened: list[Engine] = []

    def prepare(batch: int) -> Callable[[], object]:
        if not opened:
            opened.append(open_engine(path, entry, signature))
        placed = opened[0].place(inputs.fill(batch), own_context=True)
        return Queued(placed.record() if with_graph else placed.enqueue, placed.finish)

    return prepare
