"""What an engine is built with and for: the builder package, its version, and compute capabilities.

Here: `choose_builder`. Nothing of it imports torch or a builder, since a stage decides about reuse first; the GPU is
asked through the driver itself. It never builds: engine.py does.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
from dataclasses import dataclass

from contracts.errors import ConfigError

TENSORRT = "tensorrt"
TENSORRT_RTX = "tensorrt_rtx"

# TensorRT-RTX compiles for GPUs that need not be present. These are its targets of today's data centres and desks:
# A100; A10 and RTX 30; L4, L40S and RTX 40; RTX 50 and RTX PRO Blackwell. It has none for H100 (sm90) or B200 (sm100).
DEFAULT_TARGETS = ("sm80", "sm86", "sm89", "sm120")
# Of these, ComputeCapability of tensorrt_rtx 1.7 has: sm75, the default ones, and sm121.
RTX_TARGETS = ("sm75", *DEFAULT_TARGETS, "sm121")

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
        """What decides an engine besides the graph: for fingerprints and messages."""
        return f"{self.name}, {'+'.join(self.targets)}"


def choose_builder() -> Builder:
    """Return tensorrt where it is installed, else tensorrt_rtx, and what it builds for on this machine.

    tensorrt builds for the GPU that is present, and only there; tensorrt_rtx for that GPU if it knows it, else for
    `DEFAULT_TARGETS`. Where both are installed and there is no GPU, tensorrt_rtx is taken.

    Raises:
        ConfigError: None is installed, or only tensorrt, without a GPU.
    """
    gpu = gpu_target()
    installed = [name for name in (TENSORRT, TENSORRT_RTX) if importlib.util.find_spec(name) is not None]
    if gpu is not None and TENSORRT in installed:
        return Builder(TENSORRT, _version_of(TENSORRT), (gpu,))
    if TENSORRT_RTX in installed:
        targets = (gpu,) if gpu in RTX_TARGETS else DEFAULT_TARGETS
        return Builder(TENSORRT_RTX, _version_of(TENSORRT_RTX), targets)
    raise ConfigError(
        "tensorrt is installed, but it builds engines only where a GPU is"
        if installed
        else "no engine builder is installed",
        allowed="tensorrt with a GPU, or tensorrt_rtx, which builds without one",
        todo='pip install "shardline[tensorrt]"',
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


def _version_of(module: str) -> str:
    """Return the version of the distribution that ships `module` (tensorrt_rtx comes as tensorrt_rtx_cu13, ...)."""
    distributions = importlib.metadata.packages_distributions().get(module)
    return importlib.metadata.version(distributions[0] if distributions else module)
