"""What engines are built with and for: the builder package, its version, and compute capabilities.

Here: `choose_builder`. Nothing of it imports torch or a builder, since a stage decides about reuse first; the GPU is
asked through the driver itself. It never builds: engine.py does.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.errors import ConfigError

TENSORRT = "tensorrt"
TENSORRT_RTX = "tensorrt_rtx"

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
# Without a GPU and without a wish: those of today's data centres and desks.
DEFAULT_TARGETS = ("sm80", "sm86", "sm89", "sm120")

# What a target cannot compute in, by precision. TensorRT-RTX 1.7 for sm75: "FP32 GEMM is not supported".
_RTX_LACKS = {"fp32": ("sm75",), "bf16": ("sm75",)}

# CUdevice_attribute of the CUDA driver API: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76


@dataclass(frozen=True)
class Builder:
    """A builder package, and the compute capabilities it builds for."""

    module: str
    """Name of the module to import."""
    version: str
    targets: tuple[str, ...]

    @property
    def name(self) -> str:
        """Package and version."""
        return f"{self.module} {self.version}"

    @property
    def identity(self) -> str:
        """What decides engines besides the graph: for fingerprints and messages."""
        return f"{self.name}, {'+'.join(self.targets)}"


def choose_builder(wanted: Sequence[str] = ()) -> Builder:
    """Return the package that builds for the wanted targets on this machine.

    tensorrt builds for the GPU that is present, and only there: it is taken where it is installed and that GPU alone is
    wanted. tensorrt_rtx builds for any of `RTX_TARGETS`.

    Args:
        wanted: GPUs by name, or compute capabilities; none: the GPU of this machine if there is one that can be built
            for, else `DEFAULT_TARGETS`.

    Raises:
        ConfigError: A target is unknown, or nothing that is installed builds for it here.
    """
    gpu = gpu_target()
    installed = [name for name in (TENSORRT, TENSORRT_RTX) if importlib.util.find_spec(name) is not None]
    if not installed:
        raise ConfigError(
            "no engine builder is installed",
            allowed="tensorrt with a GPU, or tensorrt_rtx, which builds without one",
            todo='pip install "shardline[tensorrt]"',
        )
    targets = tuple(dict.fromkeys(capability_of(name) for name in wanted))
    if not targets:
        can_run = gpu is not None and (TENSORRT in installed or gpu in RTX_TARGETS)
        targets = (gpu,) if gpu is not None and can_run else DEFAULT_TARGETS
    if TENSORRT in installed and targets == (gpu,):
        return Builder(TENSORRT, _version_of(TENSORRT), targets)
    for target in targets:
        _require_rtx(target, gpu, installed)
    return Builder(TENSORRT_RTX, _version_of(TENSORRT_RTX), targets)


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
    for target in builder.targets:
        if builder.module == TENSORRT_RTX and target in _RTX_LACKS.get(precision, ()):
            raise ConfigError(
                f"{builder.name} has no {precision} for {target} ({', '.join(gpus_of(target))}): "
                "its matrix products there are fp16's",
                allowed="export.precision=fp16 for this target",
                todo="set export.precision=fp16, or leave the target out of export.targets",
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


def _require_rtx(target: str, gpu: str | None, installed: Sequence[str]) -> None:
    if target in RTX_TARGETS and TENSORRT_RTX in installed:
        return
    names = ", ".join(gpus_of(target))
    here = "no GPU" if gpu is None else f"a GPU of {gpu}"
    raise ConfigError(
        f"engines for {target} ({names}) are built by tensorrt on that GPU only; this machine has {here} and "
        f"{' and '.join(installed)}",
        allowed=f"without that GPU, by tensorrt_rtx: {', '.join(RTX_TARGETS)}",
        todo=f"run the export with tensorrt installed on a machine with {names}, that target alone, "
        'or choose another one (pip install "shardline[tensorrt]" has tensorrt_rtx)',
    )


def _version_of(module: str) -> str:
    """Return the version of the distribution that ships `module` (tensorrt_rtx comes as tensorrt_rtx_cu13, ...)."""
    distributions = importlib.metadata.packages_distributions().get(module)
    return importlib.metadata.version(distributions[0] if distributions else module)
