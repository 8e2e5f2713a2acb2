"""Sessions of ONNX Runtime: the one place of the export where a graph is opened.

Here: `open_session`, `CPU` and `find_outside`. predict.py, which ships without this package, opens its own
(trainer/predict/runtimes.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.errors import ConfigError

CPU, CUDA, TENSORRT_PROVIDER = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
Provider = str | tuple[str, Mapping[str, str]]
"""Name of an execution provider, with its options where it has any."""


def open_session(
    path: Path | bytes,
    *,
    threads: int = 0,
    level: str = "ORT_ENABLE_ALL",
    providers: Sequence[Provider] = (CPU,),
    in_graph_order: bool = False,
    arena: bool = True,
) -> Any:
    """Return an onnxruntime.InferenceSession, which never runs on another provider than it was asked for.

    Args:
        path: The ONNX file, or its content.
        threads: Intra-op threads on the CPU; 0: a thread per core.
        level: Name of a GraphOptimizationLevel.
        providers: The first is the one that must be there; the others take what it leaves.
        in_graph_order: Run nodes in their order in the file. By default nodes without readers come last, and values
            that they read are kept until then.
        arena: Keep freed memory for later batches.

    Raises:
        ConfigError: The first provider is not in this ONNX Runtime, or does not load.
    """
    import onnxruntime  # type: ignore[import-untyped]

    wanted = [one if isinstance(one, str) else one[0] for one in providers]
    offered = onnxruntime.get_available_providers()
    if wanted[0] not in offered:
        raise ConfigError(
            f"onnxruntime {onnxruntime.__version__} has no {wanted[0]}",
            allowed="onnxruntime-gpu",
            todo="install onnxruntime-gpu of the same version in place of onnxruntime",
        )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.__members__[level]
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors: they are raised as well, warnings would go to stderr
    options.enable_cpu_mem_arena = arena
    if in_graph_order:
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    if wanted[0] != CPU:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    taken = [one for one, name in zip(providers, wanted, strict=True) if name in offered]
    session = onnxruntime.InferenceSession(path, options, providers=taken, enable_fallback=0)
    # Where CUDA's libraries cannot be loaded it goes on without them, and says so in a log only.
    if wanted[0] not in session.get_providers():
        raise ConfigError(
            f"onnxruntime {onnxruntime.__version__} did not take {wanted[0]}",
            allowed="a GPU, and the CUDA and cuDNN that it was built for",
            todo="see what onnxruntime logs",
        )
    return session


def find_outside(session: Any, provider: str) -> dict[str, int]:
    """Return how many nodes another provider runs, by its name: a session hands over in silence what it cannot run.

    Args:
        session: Opened for another provider than the CPU's.
        provider: The one that was asked for.
    """
    found: dict[str, int] = {}
    for part in session.get_provider_graph_assignment_info():
        if part.ep_name != provider:
            found[part.ep_name] = found.get(part.ep_name, 0) + len(part.get_nodes())
    return found
