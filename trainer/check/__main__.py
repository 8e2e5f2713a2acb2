"""The command: checks of a configuration before its first stage.

    python -m trainer.check --config-json TEXT [--elsewhere] [--online]

Own code, network and arguments, patterns of names and weights are the same wherever the line runs; precision, spread
and the export's runtime are compared with this machine, or `--elsewhere` with the machines that the configuration
names. The last line of stdout is contracts.checked.Findings as JSON; exit code 0 whatever the findings, 2 where the
command line or the configuration cannot be read. Nothing starts a stage or writes.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from contracts.checked import Findings
from contracts.config import RunConfig
from contracts.config.load import read_stage_config
from contracts.errors import EXIT_OK, UserError
from contracts.process import end_with_parent, run_process
from trainer.check.own_code import check_own_code, has_module

NEEDS_TORCH = "the network and its arguments, patterns of parameters' names, weights"


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
    with contextlib.redirect_stdout(sys.stderr):
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
            findings.leave_unchecked(NEEDS_TORCH, "torch is not installed")
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
    from trainer.check.place import check_export, check_training

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


if __name__ == "__main__":
    run_process(main)
