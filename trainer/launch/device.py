"""Rules on precision and spread for a kind of device, without torch and without the device.

Ranks ask them of the device that they have (trainer/model/precision.py, trainer/parallel), a check before the first
stage of the one that is planned (trainer/check).
"""

from __future__ import annotations

from collections.abc import Callable
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


def check_precision(precision: str, device: DeviceKind, *, allow_slow: bool) -> None:
    """Refuse a precision of steps that the device has not got, or computes in only slowly.

    Raises:
        ConfigError: fp16 on a CPU, or bf16 on a GPU without it, and `allow_slow` is false.
    """
    if allow_slow:
        return
    if not device.gpu and precision == "fp16":
        raise ConfigError(
            f"train.precision is fp16, and there is no GPU {device.where}: a CPU is slower in fp16 than in fp32",
            allowed="train.precision=fp32 or bf16 on a CPU",
            todo="set train.precision=fp32, or train.allow_slow_precision=true to train in fp16 all the same",
        )
    if device.gpu and precision == "bf16" and not device.has_bf16:
        raise ConfigError(
            f"train.precision is bf16, which {device.gpu} can only emulate",
            allowed="train.precision=fp32 or fp16 on this GPU",
            todo="set train.precision=fp16, or train.allow_slow_precision=true to train in bf16 all the same",
        )


def check_spread(section: ParallelSection, device: DeviceKind, ranks: int | None, log: Callable[[str], None]) -> None:
    """Refuse a spread over ranks that cannot work; say what has no effect.

    Args:
        section: How.
        device: What each rank has.
        ranks: Those of all machines; None: not known yet.
        log: Is told what has no effect.

    Raises:
        ConfigError: parallel.shard_ranks does not divide the ranks, or something needs a GPU or another strategy.
    """
    if section.sync_batch_norm and not device.gpu:
        raise _needs_gpu("sync_batch_norm", "SyncBatchNorm has no implementation for the CPU", device)
    if section.strategy == "ddp":
        _warn_if_set(section, ("shard_ranks", "cpu_offload"), log)
        return
    _warn_if_set(section, ("bucket_mb",), log)
    if section.find_unused_parameters:
        raise ConfigError(
            "parallel.find_unused_parameters is true with parallel.strategy=fsdp: ranks gather each block together, so "
            "none can leave one out",
            allowed="parallel.find_unused_parameters=true with parallel.strategy=ddp",
            todo="set parallel.strategy=ddp, or parallel.find_unused_parameters=false",
        )
    if section.cpu_offload and not device.gpu:
        raise _needs_gpu("cpu_offload", "parameters are in the CPU's memory already", device)
    if section.shard_ranks is not None and ranks is not None and ranks % section.shard_ranks:
        divisors = [number for number in range(1, ranks + 1) if ranks % number == 0]
        raise ConfigError(
            f"parallel.shard_ranks {section.shard_ranks} does not divide {ranks} ranks",
            allowed=f"for {ranks} ranks one of {', '.join(map(str, divisors))}",
            todo="set parallel.shard_ranks to the GPUs of a machine, or leave it out to shard over all ranks",
        )


def _warn_if_set(section: ParallelSection, names: tuple[str, ...], log: Callable[[str], None]) -> None:
    for name in names:
        if getattr(section, name) != type(section).model_fields[name].default:
            log(f"warning: parallel.{name} has no effect with parallel.strategy={section.strategy}")


def _needs_gpu(name: str, reason: str, device: DeviceKind) -> ConfigError:
    return ConfigError(
        f"parallel.{name} is on, but there is no GPU {device.where}: {reason}",
        allowed=f"parallel.{name}=false on a machine without a GPU",
        todo=f"set parallel.{name}=false, or train on machines with GPUs",
    )
