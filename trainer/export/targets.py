"""Runtimes that serve an export, and what each needs of a machine: a package, a GPU, compute capabilities.

Here: `choose_runtime`. Nothing of it imports torch or a builder, since a stage decides about reuse first; the GPU is
asked through the driver itself. It never builds: engine.py does.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.config import ExportSection
from contracts.config.stages import Runtime
from contracts.errors import ConfigError
from contracts.serving import ONNXRUNTIME_TENSORRT, TENSORRT, TENSORRT_RTX

# Compute capabilities by GPU: NVIDIA, "CUDA GPU Compute Capability", https://developer.nvidia.com/cuda-gpus, read
# 2026-11. Names as Google Cloud's accelerator types have them, without `nvidia-` and `tesla-`.
GPUS = {
    "v100": "sm70",
    "t4": "sm75",
    "a100": "sm80",
    "a100-80gb": "sm80",
    "a30": "sm80",
    "a10": "sm86",
    "a10g": "sm86",
    "a40": "sm86",
    "rtx-a6000": "sm86",
    "rtx-3090": "sm86",
    "l4": "sm89",
    "l40s": "sm89",
    "rtx-4090": "sm89",
    "rtx-6000-ada": "sm89",
    "h100": "sm90",
    "h100-80gb": "sm90",
    "h200": "sm90",
    "b200": "sm100",
    "rtx-5090": "sm120",
    "rtx-pro-6000": "sm120",
    "gb10": "sm121",
}
# ComputeCapability of tensorrt_rtx 1.7, which compiles for GPUs that need not be present. None for H100 (sm90) or B200.
RTX_TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")
# Of these, what NVIDIA's support matrix of TensorRT-RTX (releases 1.0 to 1.5, read 2026-11) does not list.
OUTSIDE_MATRIX = ("sm80",)
OUTSIDE = "outside NVIDIA's published matrix of TensorRT-RTX"
# Without a GPU and without a wish: the L4, which Google Cloud rents. One: the proof needs one machine.
DEFAULT_TARGET = "sm89"

# What tensorrt_rtx cannot compute in, by precision, and why. Of sm75 it says "FP32 GEMM is not supported". Its support
# matrix has int8 for weights of matrix products alone: Q/DQ graphs build, and nothing shows that they run.
_RTX_LACKS: dict[str, tuple[Sequence[str], str]] = {
    "fp32": (("sm75",), "its matrix products there are fp16's"),
    "int8": (RTX_TARGETS, "its support matrix lists int8 for weights alone"),
}
EXTRAS = {TENSORRT: "tensorrt", TENSORRT_RTX: "rtx"}
_INSTALL = {package: f'pip install "shardline[{extra}]"' for package, extra in EXTRAS.items()}
_LATER = "set export.runtime=onnxruntime_tensorrt: Triton then builds when it loads the model"

# CUdevice_attribute of the CUDA driver API: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76


@dataclass(frozen=True)
class Builder:
    """What builds the engines of an export, and for which GPUs."""

    module: Runtime
    """The runtime, which is the module's name too; onnxruntime_tensorrt builds nothing here."""
    version: str
    """Of the package; empty without one."""
    targets: tuple[str, ...]
    """Compute capabilities; none of onnxruntime_tensorrt."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """What a user should know of the choice."""

    @property
    def name(self) -> str:
        """Package and version."""
        return f"{self.module} {self.version}".strip()

    @property
    def identity(self) -> str:
        """What decides engines besides the graph: for fingerprints and messages."""
        return ", ".join(part for part in (self.name, "+".join(self.targets)) if part)


def choose_runtime(settings: ExportSection) -> Builder:
    """Return what serves an export that is made on this machine.

    Raises:
        ConfigError: A package or a GPU is missing, a target is unknown, or the runtime has no such target.
    """
    has_tensorrt = importlib.util.find_spec(TENSORRT) is not None
    runtime, targets, warnings = decide(settings, gpu_target(), has_tensorrt=has_tensorrt)
    if runtime == ONNXRUNTIME_TENSORRT:
        return Builder(runtime, "", (), tuple(warnings))
    if importlib.util.find_spec(runtime) is None:
        raise ConfigError(
            f"export.runtime {runtime}, and the package {runtime} is not installed",
            allowed="export.runtime onnxruntime_tensorrt, which needs neither package nor GPU",
            todo=_INSTALL[runtime],
        )
    return Builder(runtime, version_of(runtime), targets, tuple(warnings))


def decide(
    settings: ExportSection, gpu: str | None, *, has_tensorrt: bool, where: str = "this machine"
) -> tuple[Runtime, tuple[str, ...], list[str]]:
    """Return runtime, targets and warnings for a machine.

    tensorrt builds for the GPU that is present, and only there; tensorrt_rtx for any of `RTX_TARGETS`;
    onnxruntime_tensorrt builds when Triton loads the model. An engine for a GPU that nobody asked for is never built.

    Args:
        settings: What is asked for.
        gpu: The machine's compute capability, or None.
        has_tensorrt: Whether the package is there.
        where: How messages call the machine.

    Raises:
        ConfigError: A package or a GPU is missing, a target is unknown, or the runtime has no such target.
    """
    targets = tuple(dict.fromkeys(capability_of(name) for name in settings.targets))
    here = f"{where} has {'no GPU' if gpu is None else f'a GPU of {gpu} ({_names(gpu)})'}"
    runtime, warnings = settings.runtime, list[str]()
    if runtime == "auto":
        runtime, warnings = _choose(gpu, here, has_tensorrt=has_tensorrt)
    if runtime == TENSORRT_RTX:
        if not targets and gpu is not None and gpu not in RTX_TARGETS:
            raise ConfigError(
                f"tensorrt_rtx has no engines for {gpu}: {here}",
                allowed=f"{', '.join(RTX_TARGETS)}; tensorrt for this GPU",
                todo=f"set export.runtime=tensorrt ({_INSTALL[TENSORRT]}), or name other GPUs in export.targets",
            )
        targets = targets or (DEFAULT_TARGET if gpu is None else gpu,)
        return runtime, targets, warnings + _check_rtx(targets)
    if targets and targets != (gpu,):
        raise ConfigError(
            f"export.targets {', '.join(settings.targets)} with export.runtime {runtime}; {here}",
            allowed="targets of tensorrt_rtx; of other runtimes the GPU of the machine alone",
            todo="set export.runtime=tensorrt_rtx for engines of TensorRT-RTX, or leave export.targets out",
        )
    if runtime == TENSORRT and gpu is None:
        raise ConfigError(
            f"export.runtime tensorrt builds for the GPU of the machine, and {here}",
            allowed="tensorrt on a machine with the GPU that serves",
            todo=f"run the export on such a machine, or {_LATER}",
        )
    return runtime, () if gpu is None or runtime == ONNXRUNTIME_TENSORRT else (gpu,), warnings


def _choose(gpu: str | None, here: str, *, has_tensorrt: bool) -> tuple[Runtime, list[str]]:
    """Return what `auto` is, and warnings."""
    if gpu is None:
        return ONNXRUNTIME_TENSORRT, []
    if has_tensorrt:
        return TENSORRT, []
    if gpu not in RTX_TARGETS:
        raise ConfigError(
            f"{here}, for which tensorrt builds, and the package is not installed",
            allowed="tensorrt on this GPU, or export.runtime onnxruntime_tensorrt",
            todo=f"{_INSTALL[TENSORRT]}, or {_LATER}",
        )
    warning = (
        f"{here}, and the package tensorrt is not installed: the ONNX file is what serves, and no plan of it is proven "
        f"here; {_INSTALL[TENSORRT]} for one, or set export.runtime"
    )
    return ONNXRUNTIME_TENSORRT, [warning]


def _check_rtx(targets: Sequence[str]) -> list[str]:
    """Refuse targets that tensorrt_rtx does not build for; return warnings.

    Raises:
        ConfigError: With what is allowed.
    """
    for target in targets:
        if target not in RTX_TARGETS:
            raise ConfigError(
                f"tensorrt_rtx builds no engine for {target} ({_names(target)}): tensorrt does, on that GPU",
                allowed=", ".join(RTX_TARGETS),
                todo=f"set export.runtime=tensorrt and run the export on a machine with {gpus_of(target)[0]} "
                f"({_INSTALL[TENSORRT]}), or {_LATER}",
            )
    outside = [f"{target} ({_names(target)})" for target in targets if target in OUTSIDE_MATRIX]
    return [f"{', '.join(outside)}: {OUTSIDE}"] if outside else []


def capability_of(name: str) -> str:
    """Return the compute capability (sm89) of a GPU's name, or of itself.

    Raises:
        ConfigError: It is neither.
    """
    plain = name.lower().removeprefix("nvidia-").removeprefix("tesla-")
    if plain in GPUS:
        return GPUS[plain]
    if plain in GPUS.values():
        return plain
    raise ConfigError(
        f"export.targets names {name!r}, which is no GPU that is known here",
        allowed=", ".join([*GPUS, *dict.fromkeys(GPUS.values())]),
        todo="correct export.targets, or give the GPU's compute capability",
    )


def gpus_of(capability: str) -> list[str]:
    """Return the names of GPUs with a compute capability."""
    return [name for name, has in GPUS.items() if has == capability]


def check_precision(builder: Builder, precision: str) -> None:
    """Refuse a precision that a target cannot compute in.

    Raises:
        ConfigError: With the reason.
    """
    lacking, reason = _RTX_LACKS.get(precision, ((), ""))
    for target in builder.targets:
        if builder.module == TENSORRT_RTX and target in lacking:
            raise ConfigError(
                f"{builder.name} has no {precision} for {target} ({', '.join(gpus_of(target))}): {reason}",
                allowed="export.precision=fp16 for this target, or another export.runtime",
                todo="set export.precision=fp16, or export.runtime=onnxruntime_tensorrt and no targets",
            )


def gpu_target() -> str | None:
    """Return the first GPU's compute capability ("sm89"), or None without a usable GPU.

    Not executed on a GPU so far: written after the CUDA driver API's documentation.
    """
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


def _names(capability: str) -> str:
    return ", ".join(gpus_of(capability)) or "unnamed"


def version_of(module: str) -> str:
    """Return the version of the distribution that ships `module` (tensorrt_rtx comes as tensorrt_rtx_cu13, ...).

    Raises:
        importlib.metadata.PackageNotFoundError: There is none.
    """
    for name in (module, f"{module}_cu13", f"{module}_cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    # Last: it reads all that is installed, which takes a second.
    distributions = importlib.metadata.packages_distributions().get(module)
    return importlib.metadata.version(distributions[0] if distributions else module)
