"""The command: checks of a configuration before its first stage.

    python -m trainer.check network --config-json TEXT [--elsewhere] [--online]
    python -m trainer.check place --config-json TEXT [--for this-machine | --for JSON]

`network` is the same wherever the line runs, and imports torch; `place` holds precision, spread and export targets
against the machines, and needs no torch but for the GPU of this one. The last line of stdout is a CheckAnswer
(contracts/checked.py) as JSON; exit code 0 whatever was found, 2 where the command line or the configuration is none.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable

from contracts.checked import THIS_MACHINE, Findings, PlannedPlace
from contracts.config import RunConfig
from contracts.config.load import read_stage_config
from contracts.errors import EXIT_OK, ConfigError, UserError
from contracts.process import end_with_parent, run_process
from trainer.check.own_code import check_own_code, has_module

NEEDS_TORCH = "the network and its arguments, patterns of parameters' names, weights"


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.check", description="Checks before the first stage.")
    parser.add_argument("what", choices=("network", "place"))
    parser.add_argument("--config-json", required=True, help="the configuration, as JSON")
    parser.add_argument("--for", dest="place", default=THIS_MACHINE, help="a PlannedPlace as JSON, or this-machine")
    parser.add_argument("--elsewhere", action="store_true", help="it is to run where more may be installed")
    parser.add_argument("--online", action="store_true", help="ask the bucket of model.weights")
    parser.add_argument("--end-with-parent", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.end_with_parent:
        end_with_parent()
    try:
        config = read_stage_config(None, None, options.config_json)
        place = None if options.place == THIS_MACHINE else _read_place(options.place)
    except UserError as error:
        print(f"check: error: {error}", file=sys.stderr)
        return error.exit_code
    # Own code may print; the answer must be the last line.
    with contextlib.redirect_stdout(sys.stderr):
        if options.what == "network":
            findings = check_all_of_network(config, online=options.online, elsewhere=options.elsewhere)
        else:
            findings = check_all_of_place(config, place)
    print(findings.answer().model_dump_json(), flush=True)
    return EXIT_OK


def check_all_of_network(given: RunConfig, *, online: bool = False, elsewhere: bool = False) -> Findings:
    """Look at own code, network, patterns and weights; a check that fails by itself is named as unchecked.

    Args:
        given: The configuration.
        online: Whether the bucket of model.weights may be asked.
        elsewhere: It is to run on other machines, whose image may have what own code lacks here.
    """
    findings = Findings()
    has_torch = has_module("torch") and has_module("transformers")

    def look() -> None:
        imported = check_own_code(given, findings, has_torch=has_torch, elsewhere=elsewhere)
        if not has_torch:
            findings.leave_unchecked(NEEDS_TORCH, "torch is not installed")
            return
        from trainer.check.network import (
            check_network,
            check_patterns,
            check_task,
            check_weights,
            fill_arguments,
            plan_task,
        )
        from trainer.tasks.metrics import check_metrics

        config = fill_arguments(given, online=online)
        task = plan_task(config, findings, online=online) if imported else None
        model = None if task is None else check_network(config, task, findings=findings)
        if model is not None:
            with findings.refusals():
                check_patterns(model, config)
        if task is not None:
            with findings.refusals():
                check_metrics(config, task)
                if config.task.is_own and model is not None:
                    check_task(task, model, config)
        check_weights(model, config, task, findings, online=online)

    _guarded("own code, the network and its arguments, patterns and weights", look, findings)
    return findings


def check_all_of_place(config: RunConfig, place: PlannedPlace | None) -> Findings:
    """Look at precision, spread and export targets; a check that fails by itself is named as unchecked.

    Args:
        config: The configuration; of resources, ranks and nodes count.
        place: The machines that are planned; None: this one.
    """
    from trainer.check import place as rules

    findings = Findings()

    def training() -> None:
        if place is None:
            rules.check_training_here(config, findings, has_torch=has_module("torch"))
        else:
            rules.check_training_planned(config, place, findings)

    def export() -> None:
        if place is None:
            rules.check_export_here(config, findings)
        else:
            rules.check_export_planned(config, place.export, findings)

    _guarded("precision and the spread over ranks", training, findings)
    _guarded("export targets and precision", export, findings)
    return findings


def _guarded(what: str, look: Callable[[], None], findings: Findings) -> None:
    try:
        look()
    except Exception as error:  # noqa: BLE001 - the entry of a process: a check that fails must refuse nothing
        findings.leave_unchecked(what, f"the check itself failed ({type(error).__name__}: {error})")


def _read_place(text: str) -> PlannedPlace:
    try:
        return PlannedPlace.model_validate_json(text)
    except ValueError as error:
        raise ConfigError(
            f"--for {text}: {error}", allowed="this-machine, or a PlannedPlace as JSON", todo="correct it"
        ) from None


if __name__ == "__main__":
    run_process(main)
