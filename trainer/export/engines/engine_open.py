"""Engines loaded on this machine's GPU. Without a GPU it says why an engine does not run.

Here: `require_gpu`, `open_engine`, and what it returns: an `Engine`, with batches that are `Placed` on the device. Not
executed on a GPU so far: written after the API of tensorrt_rtx 1.7 and the documentation of tensorrt 10 and 11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contracts.artifacts import EngineEntry
from contracts.artifacts.signature import Signature
from contracts.errors import CheckFailed, ConfigError
from trainer.export.engines.engine import load_api, make_logger
from trainer.export.gates.arrays import Array, Arrays
from trainer.export.targets import gpu_target, gpus_of, version_of


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


class Placed:
    """A batch on the device, with the context that computes its outputs.

    Args:
        engine: Its name.
        context: That computes it.
        inputs: By name.
        dtypes: torch's types of the outputs, by name.
        messages: What the builder package says.

    Attributes:
        outputs: Tensors on the device, by name.

    Raises:
        BatchRefused: The batch is outside of the engine's profile.
    """

    def __init__(
        self, engine: str, context: Any, inputs: Mapping[str, Array], dtypes: Mapping[str, Any], messages: list[str]
    ) -> None:
        import torch

        self._engine, self._context, self._messages = engine, context, messages
        # They must live as long as they are read.
        self._inputs = {name: torch.from_numpy(array).cuda() for name, array in inputs.items()}
        shapes = {name: tuple(tensor.shape) for name, tensor in self._inputs.items()}
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise BatchRefused(f"{engine} refuses {shapes}: {' '.join(messages[-3:])}")
        self.outputs = {
            name: torch.empty(tuple(context.get_tensor_shape(name)), dtype=dtype, device="cuda")
            for name, dtype in dtypes.items()
        }
        for name, tensor in {**self._inputs, **self.outputs}.items():
            context.set_tensor_address(name, tensor.data_ptr())
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # The copies above are on torch's current stream; the engine's work must come after them.
        self._stream.wait_stream(torch.cuda.current_stream())

    def enqueue(self) -> None:
        """Start to compute the outputs, behind what was started before."""
        if not self._context.execute_async_v3(self._stream.cuda_stream):
            raise CheckFailed(f"{self._engine} does not run: {' '.join(self._messages[-3:])}")

    def finish(self) -> None:
        """Wait for all that was started."""
        self._stream.synchronize()

    def execute(self) -> None:
        """Compute the outputs."""
        self.enqueue()
        self.finish()

    def record(self) -> Callable[[], None]:
        """Record `enqueue` as a CUDA graph, and return what starts that."""
        import torch

        # The first call loads kernels, which cannot be recorded.
        self.execute()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            self.enqueue()

        def replay() -> None:
            with torch.cuda.stream(self._stream):
                graph.replay()

        return replay


class Engine:
    """An engine that is loaded; called with inputs, it returns outputs (`open_engine`)."""

    def __init__(self, name: str, runtime: Any, engine: Any, dtypes: Mapping[str, Any], messages: list[str]) -> None:
        self._name, self._dtypes, self._messages = name, dtypes, messages
        # The runtime must live as long as the engine, and that as long as its contexts.
        self._runtime, self._engine = runtime, engine
        self._context = engine.create_execution_context()

    def place(self, inputs: Mapping[str, Array], *, own_context: bool = False) -> Placed:
        """Put a batch on the device.

        Args:
            inputs: By name.
            own_context: Keep it computable while other batches are placed.

        Raises:
            BatchRefused: It is outside of the engine's profile.
        """
        context = self._engine.create_execution_context() if own_context else self._context
        return Placed(self._name, context, inputs, self._dtypes, self._messages)

    def __call__(self, inputs: Mapping[str, Array]) -> Arrays:
        """Return the outputs of a batch."""
        placed = self.place(inputs)
        placed.execute()
        return {name: tensor.cpu().numpy() for name, tensor in placed.outputs.items()}


def open_engine(path: Path, entry: EngineEntry, signature: Signature) -> Engine:
    """Load an engine file on the first GPU. Not executed so far (see the module).

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
    if (installed := version_of(module)) != built_with:
        raise ConfigError(
            f"{path.name} was built by {entry.builder}, installed is {module} {installed}",
            allowed="the very version that built it: engines do not load in others",
            todo=f"install {module} {built_with}, or export again",
        )
    messages: list[str] = []
    runtime = api.Runtime(make_logger(api, messages))
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise CheckFailed(f"{path.name} does not load in {entry.builder}: {' '.join(messages[-3:])}")
    return Engine(path.name, runtime, engine, _output_types(api, engine, signature), messages)


def _output_types(api: Any, engine: Any, signature: Signature) -> dict[str, Any]:
    """Return torch's types of an engine's outputs by name: the signature's first, in its order."""
    import torch

    types = {
        "FLOAT": torch.float32,
        "HALF": torch.float16,
        "INT64": torch.int64,
        "INT32": torch.int32,
        "UINT8": torch.uint8,
        "BOOL": torch.bool,
    }
    names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
    outputs = [name for name in names if engine.get_tensor_mode(name) == api.TensorIOMode.OUTPUT]
    ordered = [
        *(name for name in signature.outputs if name in outputs),
        *(n for n in outputs if n not in signature.outputs),
    ]
    return {name: types[engine.get_tensor_dtype(name).name] for name in ordered}
