"""Precision, the spread over ranks and the export's runtime, against this machine or the ones that are planned."""

from __future__ import annotations

from contextlib import suppress

from contracts.checked import Findings
from contracts.config import MachineSection, RunConfig
from contracts.errors import ConfigError
from contracts.machines import ACCELERATORS, Machine, find_machine, serving_section
from trainer.export.runtime import Builder, check_precision, choose_runtime, decide
from trainer.launch.choices import FIRST_BF16, DeviceKind, check_spread, find_slow_precision
from trainer.launch.machine import num_gpus, num_ranks


def check_training(config: RunConfig, findings: Findings, *, has_torch: bool, elsewhere: bool) -> None:
    """Compare precision and spread with the device of this machine, or `elsewhere` of the planned ones."""
    with findings.refusals():
        if not elsewhere:
            num_ranks(config)
            device = _device_here(has_torch=has_torch)
        elif (machine := _planned_machine(config.resources.machine)) is not None:
            device = _device_of(machine)
        else:
            return
        # `auto` is what the profile finds best.
        precision = "fp32" if config.train.precision == "auto" else config.train.precision
        if warning := find_slow_precision(precision, device):
            findings.warnings.append(warning)
        check_spread(config.parallel, device)


def check_export(config: RunConfig, findings: Findings, *, elsewhere: bool) -> None:
    """Refuse what no runtime has on the machine that exports; name what depends on the export's image."""
    with findings.refusals():
        if not elsewhere:
            builder = choose_runtime(config.export)
            check_precision(builder, config.export.precision)
            findings.warnings.extend(builder.warnings)
        elif (machine := _planned_machine(serving_section(config))) is not None:
            _check_planned_export(config, machine, findings)


def _planned_machine(section: MachineSection) -> Machine | None:
    """Return a machine of the plan; None: there is no such machine, which the plan's rules report."""
    with suppress(ConfigError):
        return find_machine(section)
    return None


def _device_of(machine: Machine) -> DeviceKind:
    where = f"on {machine.label}"
    if not machine.gpus:
        return DeviceKind(where=where)
    gpu = ACCELERATORS[machine.accelerator_type]
    return DeviceKind(gpu.short, has_bf16=gpu.capability_x10 >= FIRST_BF16, where=where)


def _device_here(*, has_torch: bool) -> DeviceKind:
    if num_gpus() == 0:
        return DeviceKind()
    if not has_torch:
        return DeviceKind("the GPU")
    import torch

    if not torch.cuda.is_available():
        return DeviceKind()
    return DeviceKind(torch.cuda.get_device_name(), torch.cuda.is_bf16_supported(False))


def _check_planned_export(config: RunConfig, machine: Machine, findings: Findings) -> None:
    gpu = ACCELERATORS[machine.accelerator_type].capability if machine.gpus else None
    # What is not in the image is found by the stage itself.
    where = f"{machine.label}, which exports,"
    runtime, target, warnings = decide(config.export, gpu, has_tensorrt=True, where=where)
    check_precision(Builder(runtime, "of the export's image", target), config.export.precision)
    findings.warnings.extend(warnings)
    if runtime == "tensorrt":
        findings.leave_unchecked(
            "whether the gpu image has tensorrt (`shardline images build` puts it there), which builds "
            f"for the GPU of {machine.label}",
            "no image is looked into",
        )
