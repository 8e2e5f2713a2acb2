"""The command: checks of a configuration before its first stage.

    python -m trainer.check --config-json TEXT [--elsewhere] [--online]

Own code, network and arguments, patterns of names and weights are the same wherever the line runs; precision, spread
and the export's runtime are compared with this machine, or `--elsewhere` with the machines that the configuration
names. The last line of stdout is contracts.checked.Findings as JSON; exit code 0 whatever the findings, 2 where the
command line or the configuration cannot be read. Nothing starts a stage or writes.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

from contracts import storage
from contracts.checked import Findings
from contracts.config import MachineSection, RunConfig
from contracts.config.load import read_stage_config
from contracts.errors import EXIT_OK, ConfigError, ModelError, UserError
from contracts.machines import ACCELERATORS, Machine, find_machine, serving_section
from contracts.own_code import append_code, code_folder, install_code, named_code, pin_code, unpack
from contracts.process import end_with_parent, run_process
from trainer.export.runtime import Builder, check_precision, choose_runtime, decide
from trainer.launch.choices import FIRST_BF16, DeviceKind, check_spread, find_slow_precision
from trainer.launch.machine import num_gpus, num_ranks
from trainer.model.user_code import find_elsewhere, load_callable


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.check", description="Checks before the first stage.")
    parser.add_argument("--config-json", required=True, help="the configuration, as JSON")
    parser.add_argument("--elsewhere", action="store_true", help="it is to run on the machines that it names")
    parser.add_argument("--online", action="store_true", help="ask the bucket of model.weights")
    parser.add_argument("--end-with-parent", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.end_with_parent:
        end_with_parent()
    try:
        config = read_stage_config(options.config_json)
    except UserError as error:
        print(f"check: error: {error}", file=sys.stderr)
        return error.exit_code
    findings = Findings()
    # Own code may print; the answer must be the last line.
    with redirect_stdout(sys.stderr):
        check_network_side(config, findings, online=options.online, elsewhere=options.elsewhere)
        check_machine_side(config, findings, elsewhere=options.elsewhere)
    print(findings.model_dump_json(), flush=True)
    return EXIT_OK


def check_network_side(config: RunConfig, findings: Findings, *, online: bool = False, elsewhere: bool = False) -> None:
    """Check own code, network, patterns and weights.

    `online`: the bucket of model.weights may be asked. `elsewhere`: the line is to run on other machines, whose image
    may have packages that own code lacks here.
    """
    with _guarded("own code, the network and its arguments, patterns and weights", findings):
        has_torch = has_module("torch") and has_module("transformers")
        imported = check_own_code(config, findings, has_torch=has_torch, elsewhere=elsewhere)
        if not has_torch:
            what = "the network and its arguments, patterns of parameters' names, weights"
            findings.leave_unchecked(what, "torch is not installed")
            return
        from trainer.check.network import (
            check_network,
            check_patterns,
            check_task,
            check_weights,
            plan_task,
        )
        from trainer.tasks.metrics import check_metrics
        from trainer.weights.source import fill_arguments

        config = fill_arguments(config, online=online)
        task = plan_task(config, findings) if imported else None
        model = None if task is None else check_network(config, task, findings)
        if model is not None:
            with findings.refusals():
                check_patterns(model, config)
        if task is not None:
            with findings.refusals():
                check_metrics(config, task)
                if config.task.is_own and model is not None:
                    check_task(task, model, config)
        check_weights(model, config, task, findings, online=online)


def check_machine_side(config: RunConfig, findings: Findings, *, elsewhere: bool = False) -> None:
    """Check precision, spread and the export's runtime on this machine, or `elsewhere` on those that it names."""
    with _guarded("precision and the spread over ranks", findings):
        check_training(config, findings, has_torch=has_module("torch"), elsewhere=elsewhere)
    with _guarded("runtime and precision of the export", findings):
        check_export(config, findings, elsewhere=elsewhere)


@contextmanager
def _guarded(what: str, findings: Findings) -> Iterator[None]:
    """Name `what` as unchecked where the check fails by itself."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the entry of a process: a check that fails must refuse nothing
        findings.leave_unchecked(what, f"the check itself failed ({type(error).__name__}: {error})")


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


def check_own_code(config: RunConfig, findings: Findings, *, has_torch: bool, elsewhere: bool = False) -> bool:
    """Import own code as the stages will, from a copy; return whether the network's could be, or there is none.

    `elsewhere`: it is to run on other machines, whose image may have packages that are not here.
    """
    names = named_code(config)
    try:
        # Where the line's copy will lie makes no difference here.
        pinned = pin_code(config, storage.join(storage.normalise(config.run.root), config.run.name))
        if pinned.archive is not None:
            append_code(unpack(pinned.archive, pinned.config.code))
        else:
            install_code(pinned.config.code)
    except UserError:
        with findings.refusals():
            raise
        # A network of the tool's own can be looked at all the same.
        return not names.keys() - {"data.transform"}
    findings.warnings += pinned.warnings
    _warn_of_hidden_modules(findings)
    lacks = "it needs what is not on this machine" if elsewhere else ""
    if not has_torch:
        lacks = "torch is not installed"
    imported = {setting: _imports(setting, name, findings, lacks) for setting, name in names.items()}
    if imported.pop("data.transform", False) and has_torch:
        from trainer.tasks.image_transforms import load_transform

        with findings.refusals():
            load_transform(config.data.transform)
    return all(imported.values())


def _imports(setting: str, name: str, findings: Findings, lacks: str) -> bool:
    """Whether own code imports; where this machine `lacks` something, other packages and variables may be missing."""
    try:
        load_callable(setting, name, ModelError if setting == "model.architecture" else ConfigError)
    except UserError as error:
        missing = error.__cause__
        package = name.partition(":")[0].partition(".")[0]
        is_other = isinstance(missing, ModuleNotFoundError) and (missing.name or "").partition(".")[0] != package
        if lacks and (is_other or isinstance(missing, KeyError)):
            findings.leave_unchecked(f"whether {setting} {name!r} imports ({missing})", lacks)
            return False
        with findings.refusals():
            raise
        return False
    return True


def _warn_of_hidden_modules(findings: Findings) -> None:
    """Say which modules below code.path an import does not find, since others of their names come first."""
    folder = code_folder()
    for path in sorted(folder.iterdir()) if folder is not None else ():
        is_module = path.suffix == ".py" or (path / "__init__.py").is_file()
        origin = find_elsewhere(path.stem) if is_module else None
        # A folder without an __init__.py comes after every module.
        if origin is not None and not Path(origin).is_dir():
            findings.warnings.append(
                f"module {path.stem} below code.path is hidden by {origin}: `import {path.stem}` finds that one"
            )


def has_module(name: str) -> bool:
    """Whether a package is installed."""
    return importlib.util.find_spec(name) is not None


if __name__ == "__main__":
    run_process(main)
