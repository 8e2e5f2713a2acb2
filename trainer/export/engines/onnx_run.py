"""Runs the ONNX file that Triton serves on this machine's GPU, by the settings that Triton's configuration names.

Here: `OnnxRunner`, an `EngineRunner` (engine_gate.py) of which an engine is a copy of the graph with its configuration
beside it; `runner_here`; `read_settings`. What ONNX Runtime's CUDA and TensorRT providers do was not executed so far:
tests run it with the CPU's provider, which shows settings, trials and gates, and nothing of a GPU's arithmetic.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts import storage
from contracts.artifacts import EngineTensor, hash_content
from contracts.errors import CheckFailed, ShardlineError
from contracts.serving import CACHE_KEYS, GRAPH_LEVELS, TENSORRT
from trainer.export.bundle.triton_config import ServedModel, config_as_text, make_config, triton_messages
from trainer.export.engines.engine_gate import Ran, Trials
from trainer.export.engines.engine_run import drive_trials, median_ms
from trainer.export.gates.arrays import Array, Arrays, StoredArrays
from trainer.export.gates.sessions import CPU, CUDA, TENSORRT_PROVIDER, Provider, find_outside, open_session
from trainer.export.targets import version_of

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig  # type: ignore[import-untyped]


@dataclass(frozen=True)
class OnnxRunner:
    """ONNX Runtime on this machine, as Triton's backend opens it; each call is a process of its own.

    Args:
        model: What is served; precision and sha256 are those of each graph. None where nothing is built.
        provider: The execution provider that must run; those behind it in the configuration's order may take the rest.
        target: Compute capability of the GPU.
        step: Calls a function in a process of its own, after the name of the step.
    """

    model: ServedModel | None
    provider: str
    target: str
    step: Callable[..., Any]

    @property
    def name(self) -> str:
        """ONNX Runtime's version and provider."""
        return f"onnxruntime {version_of('onnxruntime')} {self.provider}"

    def limits_of(self, precision: str) -> str:
        """Return whose limits a graph is held to: on a GPU fp32 is TF32, which Triton's backend cannot turn off."""
        return "tf32" if precision == "fp32" and self.provider != CPU else precision

    def build(self, graph: Path, engine: Path, *, precision: str) -> list[EngineTensor]:
        """Copy the graph and write its configuration; the provider builds when it is opened. See `EngineRunner`."""
        assert self.model is not None
        shutil.copyfile(graph, engine)
        sha256 = hash_content(storage.normalise(engine))
        config = make_config(replace(self.model, precision=precision, sha256=sha256))
        config_of(engine).write_text(config_as_text(config), encoding="utf-8")
        return []

    def run(self, engine: Path, trials: Trials, folder: Path) -> Ran:
        """See `EngineRunner`; what must be refused is not asked: Triton does so by its max_batch_size."""
        found: Ran = self.step("served outputs", run_served, engine, self.provider, trials, folder)
        return found

    def time(self, engines: Sequence[Path], inputs: StoredArrays, batch: int) -> list[float]:
        """See `EngineRunner`; copies to the GPU and back are in the times, as they are in Triton's."""
        found: list[float] = self.step("served speed", time_served, engines, self.provider, inputs, batch)
        return found


def runner_here(model: ServedModel, step: Callable[..., Any], *, gpu: str | None) -> OnnxRunner | None:
    """Return what runs the served ONNX file on this machine's GPU; None where there is no GPU, or no provider for it.

    Where the configuration's own provider does not load, the next one of its order is taken: what that leaves unproven
    is said by `describe_served`.

    Args:
        model: What is served, with any precision.
        step: As `OnnxRunner` takes it.
        gpu: Compute capability of the GPU (`targets.gpu_target`), or None.
    """
    if gpu is None or model.runtime == TENSORRT:
        return None
    provider = step("served provider", find_provider, list_providers(make_config(model)))
    return None if provider is None else OnnxRunner(model, provider, gpu, step)


def list_providers(config: ModelConfig) -> list[str]:
    """Return the GPU's execution providers that a configuration names, the one that is to run first."""
    _, providers = read_settings(config, Path())
    return [one if isinstance(one, str) else one[0] for one in providers if one != CPU]


def find_provider(wanted: Sequence[str]) -> str | None:
    """Return the first execution provider that opens a graph on this machine: to be offered alone says little."""
    from onnx import TensorProto, helper

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("given", "found")]
    node = helper.make_node("Relu", ["given"], ["found"])
    graph = helper.make_graph([node], "probe", tensors[:1], tensors[1:])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    for provider in wanted:
        # Where libraries are missing ONNX Runtime raises, or goes on without the provider, by version and environment.
        with suppress(Exception):
            open_session(content, providers=list(dict.fromkeys((provider, CPU))))
            return provider
    return None


def read_settings(config: ModelConfig, cache: Path) -> tuple[str, list[Provider]]:
    """Return optimisation level and providers that Triton's ONNX Runtime backend takes on a machine with a GPU.

    Args:
        config: Triton's configuration of the model.
        cache: Folder for built plans, in place of the one in Triton's container.
    """
    levels = {number: name for name, number in GRAPH_LEVELS.items()}
    providers: list[Provider] = []
    for accelerator in config.optimization.execution_accelerators.gpu_execution_accelerator:
        assert accelerator.name == "tensorrt", "the only one that make_config writes"
        _, folder = CACHE_KEYS
        providers.append((TENSORRT_PROVIDER, {**accelerator.parameters, folder: str(cache)}))
    return levels[config.optimization.graph.level], [*providers, CUDA, CPU]


def run_served(path: Path, provider: str, trials: Trials, folder: Path) -> Ran:
    """Run a graph at each trial.

    Args:
        path: The graph, with its configuration beside it (`OnnxRunner.build`).
        provider: The provider that must run it.
        trials: What it runs.
        folder: For the outputs.

    Raises:
        CheckFailed: The graph does not load, the provider runs no node of it, or a trial fails.
    """
    session, device = _open(path, provider)
    return drive_trials(partial(_run, session, path.name), path.name, replace(trials, refuse={}), folder, device)


def time_served(paths: Sequence[Path], provider: str, inputs: StoredArrays, batch: int) -> list[float]:
    """Return milliseconds of a batch by graph, in turns.

    Raises:
        CheckFailed: As `run_served`.
    """
    given = inputs.fill(batch)
    return median_ms([partial(_run, _open(path, provider)[0], path.name, given) for path in paths])


def _open(path: Path, provider: str) -> tuple[Any, str]:
    """Return the session of a graph, and in words where and how it runs."""
    cache = path.with_suffix(".plans")
    cache.mkdir(exist_ok=True)
    level, providers = read_settings(read_config(config_of(path)), cache)
    taken = list(dropwhile(lambda one: provider not in (one, one[0]), providers))
    with _failures_named(f"{path.name} does not load in {provider}"):
        session = open_session(path, level=level, providers=taken)
    if provider == CPU:
        return session, f"the CPU, {level}"
    import torch

    outside = find_outside(session, provider)
    if sum(outside.values()) == sum(len(part.get_nodes()) for part in session.get_provider_graph_assignment_info()):
        raise CheckFailed(f"{provider} runs no node of {path.name}: {outside}")
    # Without the suffix: what runs the graph is the provider, these are what it does not take.
    rest = [f"{number} node(s) by {name.removesuffix('ExecutionProvider')}" for name, number in outside.items()]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "the GPU"
    return session, ", ".join((device, level, *rest))


def _run(session: Any, name: str, inputs: Mapping[str, Array]) -> Arrays:
    names = [item.name for item in session.get_outputs()]
    with _failures_named(f"{name} does not run"):
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))


@contextmanager
def _failures_named(what: str) -> Iterator[None]:
    """Turn what ONNX Runtime raises into the answer of a check."""
    try:
        yield
    except ShardlineError:
        raise
    except Exception as error:
        raise CheckFailed(f"{what}: {str(error).partition(chr(10))[0]}") from error


def read_config(path: Path) -> ModelConfig:
    """Read a configuration of Triton."""
    from google.protobuf import text_format

    return text_format.Parse(path.read_text(encoding="utf-8"), triton_messages().ModelConfig())


def config_of(graph: Path) -> Path:
    """Return where the configuration of a graph lies that `OnnxRunner` runs."""
    return graph.with_suffix(".pbtxt")
