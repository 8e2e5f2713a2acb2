"""Precision, the spread over ranks and export targets, against this machine or the ones that are planned."""

from __future__ import annotations

from contracts.checked import Findings, PlannedMachine, PlannedPlace
from contracts.config import RunConfig
from contracts.serving import TENSORRT
from trainer.export.targets import Builder, check_precision, choose_runtime, decide
from trainer.launch.auto import FIRST_BF16
from trainer.launch.device import DeviceKind, check_spread, find_slow_precision
from trainer.launch.machine import num_gpus, num_ranks


def check_training_here(config: RunConfig, findings: Findings, *, has_torch: bool) -> None:
    """Hold precision and spread against this machine's device."""
    with findings.refusals():
        num_ranks(config)
        _check_training(config, _device_here(has_torch=has_torch), findings)


def check_training_planned(config: RunConfig, place: PlannedPlace, findings: Findings) -> None:
    """Hold precision and spread against the machines that are planned."""
    machine = place.training
    has_bf16 = int(machine.capability[2:] or 0) >= FIRST_BF16
    with findings.refusals():
        _check_training(config, DeviceKind(machine.gpu, has_bf16=has_bf16, where=f"on {machine.label}"), findings)


def _check_training(config: RunConfig, device: DeviceKind, findings: Findings) -> None:
    # `auto` is what the profile finds best.
    precision = "fp32" if config.train.precision == "auto" else config.train.precision
    if warning := find_slow_precision(precision, device):
        findings.warnings.append(warning)
    check_spread(config.parallel, device)


def _device_here(*, has_torch: bool) -> DeviceKind:
    if num_gpus() == 0:
        return DeviceKind()
    if not has_torch:
        return DeviceKind("the GPU")
    import torch

    if not torch.cuda.is_available():
        return DeviceKind()
    return DeviceKind(torch.cuda.get_device_name(), torch.cuda.is_bf16_supported(False))


def check_export_here(config: RunConfig, findings: Findings) -> None:
    """Refuse what the export refuses before its work: on this machine all of it is known."""
    export = config.export
    with findings.refusals():
        builder = choose_runtime(export)
        check_precision(builder, export.precision)
        findings.warnings.extend(builder.warnings)


def check_export_planned(config: RunConfig, machine: PlannedMachine, findings: Findings) -> None:
    """Refuse what no runtime has on a machine; name what hangs on the export's image."""
    export = config.export
    with findings.refusals():
        gpu = machine.capability or None
        # What is not in the image is found by the stage itself.
        where = f"{machine.label}, which exports,"
        runtime, targets, warnings = decide(export, gpu, has_tensorrt=True, where=where)
        check_precision(Builder(runtime, "of the export's image", targets), export.precision)
        findings.warnings.extend(warnings)
        if runtime == TENSORRT:
            findings.leave_unchecked(
                "whether the export's image has tensorrt (`shardline images build` puts it there), which builds "
                f"for the GPU of {machine.label}",
                "no image is looked into",
            )
