"""Rules on precision and spread for a kind of device, without torch and without the device.

Ranks ask them of the device that they have (trainer/model/precision.py, trainer/parallel), a check before the first
stage of the one that is planned (trainer/check).
"""

from __future__ import annotations

from dataclasses import dataclass

from contracts.config import ParallelSection
from contracts.errors import ConfigError


@dataclass(frozen=True)
class DeviceKind:
    """What ranks compute on."""

    gpu: str = ""
    """Name of the GPU; empty: a CPU."""
    has_bf16: bool = True
    """Whether the GPU computes in bf16; older ones only emulate it."""
    where: str = "here"
    """The place, in words that follow `there is no GPU`."""


def find_slow_precision(precision: str, device: DeviceKind) -> str:
    """Return a warning of a precision of steps that a device computes in slower than in another; empty: it does not."""
    if not device.gpu and precision == "fp16":
        return f"train.precision is fp16, and there is no GPU {device.where}: a CPU is slower in fp16 than in fp32"
    if device.gpu and precision == "bf16" and not device.has_bf16:
        return f"train.precision is bf16, which {device.gpu} can only emulate: fp16 is faster there"
    return ""


def check_spread(section: ParallelSection, device: DeviceKind) -> None:
    """Refuse a spread over ranks that cannot work.

    Args:
        section: How.
        device: What each rank has.

    Raises:
        ConfigError: Something needs a GPU.
    """
    if section.sync_batch_norm and not device.gpu:
        raise ConfigError(
            f"parallel.sync_batch_norm is on, but there is no GPU {device.where}: SyncBatchNorm has no implementation "
            "for the CPU",
            allowed="parallel.sync_batch_norm=false on a machine without a GPU",
            todo="set parallel.sync_batch_norm=false, or train on machines with GPUs",
        )
