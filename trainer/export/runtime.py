"""Runtimes that serve an export, with their requirements: package, GPU, compute capability.

Here: `choose_runtime`. This module does not import torch or a builder, since a stage first checks whether it can
reuse an output; the CUDA driver reports the GPU. engine.py builds.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
from dataclasses import dataclass, field

from contracts.config import ExportSection
from contracts.config.stages import Runtime
from contracts.errors import ConfigError

# GPUs by compute capability: NVIDIA, "CUDA GPU Compute Capability", https://developer.nvidia.com/cuda-gpus, read
# 2026-11. Names as Google Cloud's accelerator types have them, without `nvidia-`, `tesla-` and the size of the memory.
GPUS = {
    "sm75": ("t4",),
    "sm80": ("a100", "a30"),
    "sm86": ("a10", "a10g", "a40", "rtx-a6000", "rtx-3090"),
    "sm89": ("l4", "l40s", "rtx-4090", "rtx-6000-ada"),
    "sm90": ("h100", "h200"),
    "sm100": ("b200",),
    "sm120": ("rtx-5090", "rtx-pro-6000"),
    "sm121": ("gb10",),
}
# ComputeCapability of tensorrt_rtx 1.7, which compiles for GPUs that need not be present.
RTX_TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")
DEFAULT_TARGET = "sm89"  # the L4

INSTALL = {"tensorrt": 'pip install "shardline[tensorrt]"', "tensorrt_rtx": 'pip install "shardline[rtx]"'}
_ONNX = "set export.runtime=onnx: Triton then builds the plan when it loads the model"

# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of the CUDA driver API.
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76


@dataclass(frozen=True)
class Builder:
    """Runtime of an export, and the package that builds its engine."""

    module: Runtime
    """The runtime; the module of that name builds the engine. `onnx` has no engine."""
    version: str
    """Of the package; empty for onnx."""
    target: str | None
    """Compute capability that the engine is for; None for onnx."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """For the user, about this choice."""

    @property
    def name(self) -> str:
        """Package and version (`tensorrt_rtx 1.7.1`); empty for onnx."""
        return "" if self.module == "onnx" else f"{self.module} {self.version}"

    @property
    def identity(self) -> str:
        """Inputs of an engine besides the graph, for fingerprints: `tensorrt_rtx 1.7.1, sm89`."""
        return "onnx" if self.module == "onnx" else f"{self.name}, {self.target}"


def choose_runtime(settings: ExportSection) -> Builder:
    """Return the runtime of an export that is made on this machine.

    Raises:
        ConfigError: A package or a GPU is missing, the target is unknown, or the runtime has no such target.
    """
    has_tensorrt = importlib.util.find_spec("tensorrt") is not None
    runtime, target, warnings = decide(settings, gpu_target(), has_tensorrt=has_tensorrt)
    if runtime == "onnx":
        return Builder(runtime, "", None, tuple(warnings))
    if importlib.util.find_spec(runtime) is None:
        raise ConfigError(
            f"export.runtime {runtime}, and the package {runtime} is not installed",
            allowed="export.runtime onnx, which needs neither package nor GPU",
            todo=INSTALL[runtime],
        )
    return Builder(runtime, version_of(runtime), target, tuple(warnings))


def decide(
    settings: ExportSection, gpu: str | None, *, has_tensorrt: bool, where: str = "this machine"
) -> tuple[Runtime, str | None, list[str]]:
    """Return runtime, target and warnings for a machine.

    Args:
        settings: Section `export`.
        gpu: Compute capability of the machine's GPU, or None.
        has_tensorrt: Whether the package tensorrt is installed.
        where: The machine in messages.

    Raises:
        ConfigError: A GPU is missing, the target is unknown, or the runtime has no such target.
    """
    target = None if settings.target is None else capability_of(settings.target)
    machine = f"{where} has {'no GPU' if gpu is None else f'a GPU of {describe_target(gpu)}'}"
    runtime, warnings = settings.runtime, list[str]()
    if runtime == "auto":
        runtime = "tensorrt" if gpu is not None and has_tensorrt else "onnx"
        if gpu is not None and not has_tensorrt:
            problem = f"{machine}, and the package tensorrt is not installed: the ONNX file is served, unproven"
            warnings.append(f"{problem}; {INSTALL['tensorrt']}, or set export.runtime")
    if runtime == "tensorrt_rtx":
        target = target or gpu or DEFAULT_TARGET
        if target not in RTX_TARGETS:
            raise ConfigError(
                f"tensorrt_rtx builds no engine for {describe_target(target)}; {machine}",
                allowed=", ".join(map(describe_target, RTX_TARGETS)),
                todo=f"set export.target to one of them, or on a machine with {describe_target(target)} set "
                f"export.runtime=tensorrt ({INSTALL['tensorrt']}), or {_ONNX}",
            )
        return runtime, target, warnings
    if target is not None:
        raise ConfigError(
            f"export.target {settings.target} with export.runtime {runtime}",
            allowed="export.target with export.runtime tensorrt_rtx; tensorrt builds for the GPU of the machine",
            todo="remove export.target (export.target=null), or set export.runtime=tensorrt_rtx",
        )
    if runtime == "tensorrt" and gpu is None:
        raise ConfigError(
            f"export.runtime tensorrt builds for the GPU of the machine, and {machine}",
            allowed="tensorrt on a machine with the GPU that serves",
            todo=f"run the export on such a machine, or {_ONNX}",
        )
    return runtime, gpu if runtime == "tensorrt" else None, warnings


def check_precision(builder: Builder, precision: str) -> None:
    """Refuse a precision that the engine's target cannot compute in.

    Raises:
        ConfigError: With the reason.
    """
    if builder.module != "tensorrt_rtx" or builder.target is None:
        return
    reasons = {"int8": "its support matrix lists int8 for weights alone"}
    if builder.target == "sm75":
        reasons["fp32"] = "FP32 GEMM is not supported"
    if reason := reasons.get(precision):
        raise ConfigError(
            f"{builder.name} has no {precision} for {describe_target(builder.target)}: {reason}",
            allowed="export.precision fp16 for this target, or another export.runtime",
            todo="set export.precision=fp16, or export.runtime=onnx without export.target",
        )


def capability_of(name: str) -> str:
    """Return the compute capability (sm89) of a GPU's name (l4, nvidia-l4), or of itself.

    Raises:
        ConfigError: It is neither.
    """
    plain = name.lower().removeprefix("nvidia-").removeprefix("tesla-").removesuffix("-80gb")
    for capability, names in GPUS.items():
        if plain in (capability, *names):
            return capability
    raise ConfigError(
        f"export.target names {name!r}, which is not a known GPU",
        allowed=", ".join(map(describe_target, GPUS)),
        todo="correct export.target, or give the GPU's compute capability",
    )


def describe_target(capability: str) -> str:
    """Return a compute capability with its GPUs: `sm89 (l4, l40s)`."""
    names = GPUS.get(capability, ())
    return f"{capability} ({', '.join(names)})" if names else capability


def gpu_target() -> str | None:
    """Return the first GPU's compute capability ("sm89"), or None without a usable GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
    )
    return None if failed else f"sm{major.value}{minor.value}"


def version_of(module: str) -> str:
    """Return the version of the distribution that ships `module` (tensorrt_rtx comes as tensorrt_rtx_cu13, ...)."""
    for name in (f"{module}_cu13", f"{module}_cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return importlib.metadata.version(module)
