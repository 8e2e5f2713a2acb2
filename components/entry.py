"""Entry point of all components' containers: `python -m components.entry NAME --executor-input JSON`.

    list-source, shard, profile, train, export    the stage's command, with its keys of the configuration and the URIs
                                                   of its inputs; then its artifacts (components/describe.py)
    register, record                              components/register_model.py, components/record_run.py

The exit code is that of the stage, mapped for Vertex AI (contracts/process.py); its output goes to the task's log.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, MappingProxyType

from components.launch import STAGE_MODULES, last_line, stage_command
from components.task import INPUTS, OUTPUTS, Task, is_first_machine
from contracts import storage
from contracts.config import RunConfig
from contracts.config.load import read_stage_config
from contracts.errors import EXIT_OK, ErrorDocument, ShardlineError
from contracts.events import ERROR_NAME
from contracts.process import final_exit_code, outliving_notice, run_process
from inspection.stages import leave_error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a task and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m components.entry", allow_abbrev=False)
    parser.add_argument("name", choices=["list-source", *STAGE_MODULES, "register", "record"])
    parser.add_argument("--executor-input", required=True)
    options = parser.parse_args(arguments)
    log = functools.partial(print, f"{options.name}:", file=sys.stderr, flush=True)
    with outliving_notice(log):
        place: tuple[str, str] | None = None
        try:
            task = Task(options.executor_input)
            config = read_stage_config(task.parameter("config"))
            place = storage.join(storage.normalise(config.run.root), config.run.name), task.run_id
            code, document = run_task(options.name, task, config, place[0]), None
        except Exception as error:  # noqa: BLE001 - entry point of the process
            document = ErrorDocument.of(error, traceback.format_exc())
            code = document.exit_code
            if code not in (1, 2):
                print(document.traceback, file=sys.stderr)
            log(f"error: {document.message}")
        if place is not None and (document is not None or is_first_machine()):
            try:
                leave_error(*place, options.name, document)
            except (OSError, ShardlineError) as error:
                # A storage error does not change the exit code.
                log(f"runs/{place[1]}/errors could not be brought up to date: {error}")
        return final_exit_code(code, document, log) if document is not None else code


def run_task(name: str, task: Task, config: RunConfig, line: str) -> int:
    """Run a task; return its exit code.

    Args:
        name: Name of the task.
        task: Its inputs and outputs.
        config: The keys of the configuration that it reads.
        line: URI of the line's folder.
    """
    if name == "register":
        from components.register_model import register

        register(task, config)
    elif name == "record":
        from components.record_run import record

        record(task, config)
    elif name == "list-source":
        task.set_parameter("listing", _list_source(task, config, line))
    else:
        options = {option: task.input_uri(artifact) for artifact, option in INPUTS[name].items()}
        options |= {"line": line, "run": task.run_id, "listing": task.parameter("listing")}
        # On Kubeflow only this identifies the restarts of one job.
        variables = {"SHARDLINE_JOB_ID": task.run_id} if task.parameter("run") else {}
        code, printed = _run_command(stage_command(name, config, options), variables)
        if code != EXIT_OK or not is_first_machine():
            return code
        if task.has_output(OUTPUTS[name]):
            from components.describe import describe

            describe(task, config, name, last_line(printed))
        else:
            task.set_parameter("folder", last_line(printed))
    if is_first_machine():
        task.finish()
    return EXIT_OK


def _list_source(task: Task, config: RunConfig, line: str) -> str:
    """Begin the run, and return the URI of the source's listing.

    Raises:
        ForwardedError, TryAgain: The source cannot be listed.
    """
    from components.begin import begin

    options = {"line": line, "run": task.run_id, "data-date": begin(task, config, line)}
    with tempfile.TemporaryDirectory(prefix="shardline-") as folder:
        code, printed = _run_command(stage_command("shard", config, {**options, "events": folder}, flags=["list"]))
        if code != EXIT_OK:
            raise ErrorDocument.model_validate_json(Path(folder, ERROR_NAME).read_bytes()).to_error()
    return last_line(printed)


def _run_command(command: Sequence[str], variables: Mapping[str, str] = MappingProxyType({})) -> tuple[int, bytes]:
    """Run a stage's command with forwarded signals; return its exit code and its output."""
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        # Signals before the start of the stage are sent after it.
        early.append(number) if child is None else child.send_signal(number)

    handlers = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    printed = b""
    try:
        # CLOUD_ML_JOB_ID stays: the stage maps its exit code for Vertex AI (contracts/process.py).
        environment = {**os.environ, **variables, "PYTHONSAFEPATH": "1"}
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment)
        for number in early:
            child.send_signal(number)
        assert child.stdout is not None
        for output_line in child.stdout:
            sys.stdout.buffer.write(output_line)
            sys.stdout.flush()
            printed += output_line
        child.stdout.close()
        code = child.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code, printed


if __name__ == "__main__":
    run_process(main)
