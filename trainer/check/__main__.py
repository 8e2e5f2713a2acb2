"""Command that checks a configuration before the first stage.

    python -m trainer.check --config-json TEXT [--elsewhere] [--online]

It checks user code, network and arguments, name patterns and weights. Precision, parallelism and the export's runtime
are compared with this machine, or with `--elsewhere` with the configured machines. The last line of stdout is
contracts.checked.Findings as JSON. The exit code is 0 for any findings, 2 for an invalid command line or configuration.
It starts no stage and writes no files.
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
from trainer.launch.choices import check_spread, find_slow_precision
from trainer.launch.machine import num_ranks, visible_gpus
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
    # User code may print; the result must be the last line.
    with redirect_stdout(sys.stderr):
        check_network_side(config, findings, online=options.online, elsewhere=options.elsewhere)
        check_machine_side(config, findings, elsewhere=options.elsewhere)
    print(findings.model_dump_json(), flush=True)
    return EXIT_OK


def check_network_side(config: RunConfig, findings: Findings, *, online: bool = False, elsewhere: bool = False) -> None:
    """Check user code, network, patterns and weights.

    `online`: the bucket of model.weights may be accessed. `elsewhere`: the line will run on other machines, whose image
    may have other packages.
    """
    with _report_failures("own code, the network and its arguments, patterns and weights", findings):
        has_torch = has_module("torch") and has_module("transformers")
        imported = check_own_code(config, findings, has_torch=has_torch, elsewhere=elsewhere)
        if not has_torch:
            subject = "the network and its arguments, patterns of parameters' names, weights"
            findings.leave_unchecked(subject, "torch is not installed")
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
    """Check precision, parallelism and the export's runtime on this machine, or `elsewhere` on the configured ones."""
    with _report_failures("precision and the spread over ranks", findings):
        check_training(config, findings, elsewhere=elsewhere)
    with _report_failures("runtime and precision of the export", findings):
        check_export(config, findings, elsewhere=elsewhere)


@contextmanager
def _report_failures(subject: str, findings: Findings) -> Iterator[None]:
    """Report `subject` as unchecked if the check itself fails."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a broken check must not reject a configuration
        findings.leave_unchecked(subject, f"the check itself failed ({type(error).__name__}: {error})")


def check_training(config: RunConfig, findings: Findings, *, elsewhere: bool) -> None:
    """Check precision and spread over ranks on this machine, or `elsewhere` on the planned ones."""
    with findings.refusals():
        if not elsewhere:
            num_ranks(config)
            where, capability = "here", min((gpu.capability for gpu in visible_gpus()), default=None)
        elif (machine := _planned_machine(config.resources.machine)) is not None:
            where = f"on {machine.label}"
            capability = ACCELERATORS[machine.accelerator_type].capability_x10 if machine.gpus else None
        else:
            return
        if warning := find_slow_precision(config.train.precision, capability):
            findings.warnings.append(warning)
        check_spread(config.parallel, has_gpu=capability is not None, where=where)


def check_export(config: RunConfig, findings: Findings, *, elsewhere: bool) -> None:
    """Check runtime and precision of the export; report what depends on its image as unchecked."""
    with findings.refusals():
        if not elsewhere:
            builder = choose_runtime(config.export)
            check_precision(builder, config.export.precision)
            findings.warnings.extend(builder.warnings)
        elif (machine := _planned_machine(serving_section(config))) is not None:
            _check_planned_export(config, machine, findings)


def _planned_machine(section: MachineSection) -> Machine | None:
    """Return a planned machine; None if it is unknown, which the plan's rules report."""
    with suppress(ConfigError):
        return find_machine(section)
    return None


def _check_planned_export(config: RunConfig, machine: Machine, findings: Findings) -> None:
    gpu = ACCELERATORS[machine.accelerator_type].capability if machine.gpus else None
    # The stage itself reports missing packages of the image.
    exporter = f"{machine.label}, which exports,"
    runtime, target, warnings = decide(config.export, gpu, has_tensorrt=True, where=exporter)
    check_precision(Builder(runtime, "of the export's image", target), config.export.precision)
    findings.warnings.extend(warnings)
    if runtime == "tensorrt":
        findings.leave_unchecked(
            "whether the gpu image has tensorrt (`shardline images build` puts it there), which builds "
            f"for the GPU of {machine.label}",
            "no image is looked into",
        )


def check_own_code(config: RunConfig, findings: Findings, *, has_torch: bool, elsewhere: bool = False) -> bool:
    """Import user code from a copy, like the stages; return whether the task and network can be checked.

    `elsewhere`: it will run on other machines, whose image may have other packages.
    """
    names = named_code(config)
    try:
        # The line's folder does not matter here.
        pinned = pin_code(config, storage.join(storage.normalise(config.run.root), config.run.name))
        if pinned.archive is not None:
            append_code(unpack(pinned.archive, pinned.config.code))
        else:
            install_code(pinned.config.code)
    except UserError:
        with findings.refusals():
            raise
        # A built-in network can still be checked.
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
    """Whether user code imports; `lacks` is why other packages or variables may be missing here."""
    try:
        load_callable(setting, name, ModelError if setting == "model.architecture" else ConfigError)
    except UserError as error:
        missing = error.__cause__
        package = name.partition(":")[0].partition(".")[0]
        is_foreign = isinstance(missing, ModuleNotFoundError) and (missing.name or "").partition(".")[0] != package
        if lacks and (is_foreign or isinstance(missing, KeyError)):
            findings.leave_unchecked(f"whether {setting} {name!r} imports ({missing})", lacks)
            return False
        with findings.refusals():
            raise
        return False
    return True


def _warn_of_hidden_modules(findings: Findings) -> None:
    """Warn about modules below code.path that are shadowed by others."""
    folder = code_folder()
    for path in sorted(folder.iterdir()) if folder is not None else ():
        is_module = path.suffix == ".py" or (path / "__init__.py").is_file()
        origin = find_elsewhere(path.stem) if is_module else None
        # Namespace packages do not shadow modules.
        if origin is not None and not Path(origin).is_dir():
            findings.warnings.append(
                f"module {path.stem} below code.path is hidden by {origin}: `import {path.stem}` finds that one"
            )


def has_module(name: str) -> bool:
    """Whether a package is installed."""
    return importlib.util.find_spec(name) is not None


if __name__ == "__main__":
    run_process(main)
