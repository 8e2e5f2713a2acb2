"""Precision, the spread over ranks and export targets, against this machine or the ones that are planned."""

from __future__ import annotations

from contracts.checked import Findings, PlannedMachine, PlannedPlace
from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.export.targets import (
    DEFAULT_TARGETS,
    RTX_TARGETS,
    TENSORRT_RTX,
    Builder,
    capability_of,
    check_precision,
    choose_builder,
    gpus_of,
)
from trainer.launch.auto import choose_flags
from trainer.launch.device import DeviceKind, check_spread
from trainer.launch.device import check_precision as check_step_precision
from trainer.launch.machine import CPU_RANKS, num_gpus, num_ranks

# The first with bf16: "Ampere", 8.0. torch.cuda.is_bf16_supported has the same number.
_FIRST_BF16 = 80


def check_training_here(config: RunConfig, findings: Findings, *, has_torch: bool) -> None:
    """Hold precision and spread against this machine's device."""
    nodes = config.resources.nodes
    with findings.refusals():
        ranks = num_ranks(config) * nodes if nodes != "auto" else None
        _check_training(config, _device_here(has_torch=has_torch), ranks, findings)


def check_training_planned(config: RunConfig, place: PlannedPlace, findings: Findings) -> None:
    """Hold precision and spread against the machines that are planned."""
    machine = place.training
    per_machine = machine.gpus or CPU_RANKS
    if config.resources.ranks != "auto":
        per_machine = config.resources.ranks
    ranks = per_machine * place.nodes if config.resources.nodes != "auto" else None
    device = DeviceKind(
        machine.gpu, has_bf16=int(machine.capability[2:] or 0) >= _FIRST_BF16, where=f"on {machine.label}"
    )
    with findings.refusals():
        _check_training(config, device, ranks, findings)


def _check_training(config: RunConfig, device: DeviceKind, ranks: int | None, findings: Findings) -> None:
    train = config.train
    # `auto` is what the profile finds best.
    with findings.refusals():
        check_step_precision(choose_flags(train, None).precision, device, allow_slow=train.allow_slow_precision)
    # What has no effect is no news here: the stages warn of it.
    check_spread(config.parallel, device, ranks, lambda _: None)


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
        builder = choose_builder(export.targets)
        check_precision(builder, export.precision)
        from trainer.export.triton_config import image_for

        image_for(builder.name)
    if export.precision == "bf16":
        from trainer.export.precision import require_autocast

        with findings.refusals():
            require_autocast("bf16")


def check_export_planned(config: RunConfig, machine: PlannedMachine, findings: Findings) -> None:
    """Refuse targets that no engine builder has on a machine; name what hangs on the export's image."""
    export = config.export
    with findings.refusals():
        targets = tuple(dict.fromkeys(capability_of(name) for name in export.targets))
        # tensorrt builds for the GPU that is there, and only for it.
        own = machine.capability if targets in ((), (machine.capability,)) else ""
        if not targets:
            targets = (own,) if own in RTX_TARGETS else DEFAULT_TARGETS
        if own:
            _leave_builder(export.precision, own, machine, findings)
        else:
            for target in targets:
                _require_rtx(target, machine)
            check_precision(Builder(TENSORRT_RTX, "of the export's image", targets), export.precision)
    if export.precision == "bf16":
        findings.leave_unchecked(
            "whether the export's image has nvidia-modelopt, which export.precision=bf16 needs",
            "`shardline images build` does not install it, and another image is not looked into",
        )


def _leave_builder(precision: str, own: str, machine: PlannedMachine, findings: Findings) -> None:
    needs = ""
    if own not in RTX_TARGETS:
        needs = f"engines for {own} ({', '.join(gpus_of(own))}) are built by tensorrt alone"
    else:
        try:
            check_precision(Builder(TENSORRT_RTX, "", (own,)), precision)
        except ConfigError:
            needs = f"{precision} engines for {own} ({', '.join(gpus_of(own))}) are built by tensorrt alone"
    if needs:
        findings.leave_unchecked(
            "whether the export's image has tensorrt (`shardline images build --tensorrt VERSION`): on "
            f"{machine.label} {needs}",
            "no image is looked into",
        )


def _require_rtx(target: str, machine: PlannedMachine) -> None:
    if target in RTX_TARGETS:
        return
    names = ", ".join(gpus_of(target))
    here = f"has GPUs of {machine.capability}" if machine.gpus else "has no GPU"
    raise ConfigError(
        f"engines for {target} ({names}) are built by tensorrt on that GPU only, and {machine.label}, which exports, "
        f"{here}",
        allowed=f"without that GPU, by tensorrt_rtx: {', '.join(RTX_TARGETS)}",
        todo=f"set resources.serving_machine to one with {names} and export.targets to that GPU alone, or choose "
        "another target",
    )
