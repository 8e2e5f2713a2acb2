"""What the small tasks of the pipeline on Vertex AI run: `python -m pipeline_tasks.task COMMAND ...`.

    begin       the run exists: run-start.json, create-only, and the data date
    report      what a stage made: its URI for the stages after it, numbers and pages for the console
    gate        whether the export may be uploaded
    registered  what the registry has made of the export
    refused     the branch of the gate that uploads nothing: it fails when the gate's word is none that it knows
    find-model  the registered model of this name, if there is one
    record      the run's record, also after a failure

Each command is in a module of its name. A task's outputs are files whose paths the pipeline gives. One that fails
leaves its error in the run's folder, errors/TASK.json.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import EXIT_OK, ErrorDocument, ShardlineError
from contracts.process import run_process
from inspection.attempts import leave_error
from pipeline_tasks import begin, gate, record, registry, stage_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parse(arguments)
    try:
        options.run_command(options)
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        document = ErrorDocument.of(error, traceback.format_exc())
        if document.exit_code not in (1, 2):
            print(document.traceback, file=sys.stderr)
        print(f"{options.command}: error: {document.message}", file=sys.stderr, flush=True)
        _leave(options, document)
        return document.exit_code
    _leave(options, None)
    return EXIT_OK


def _leave(options: argparse.Namespace, document: ErrorDocument | None) -> None:
    """Write down how the task ended beside its run's documents, where the run is known: orchestrators lose errors."""
    line, run_id = getattr(options, "line", ""), getattr(options, "run_id", "")
    if not line or not run_id:
        return
    stage = getattr(options, "stage", "")
    try:
        leave_error(line, run_id, f"{options.command}-{stage}" if stage else options.command, document)
    except (OSError, ShardlineError) as unsaid:
        # A bucket that is gone must not change how the task ends.
        print(f"{options.command}: how it ended could not be written down: {unsaid}", file=sys.stderr)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipeline_tasks.task", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)

    def add(
        name: str,
        run_command: object,
        *required: str,
        files: Sequence[str] = (),
        may_write: Sequence[str] = (),
        more: Sequence[str] = (),
    ) -> None:
        command = commands.add_parser(name, allow_abbrev=False)
        command.set_defaults(run_command=run_command)
        for option in required:
            command.add_argument(f"--{option}", required=True)
        for option in files:
            command.add_argument(f"--write-{option}", type=Path, required=True)
        for option in may_write:
            command.add_argument(f"--write-{option}", type=Path)
        for option in more:
            command.add_argument(f"--{option}", default="")

    of_run = ("line", "run-id")
    times = {"files": ["run-id", "data-date"], "more": ["scheduled-at"]}
    add("begin", begin.run, *of_run, "config", "created-at", **times)
    made = {"files": ["uri", "metrics", "summary", "page"], "more": ["at"], "may_write": ["classification"]}
    add("report", stage_report.run, *of_run, "stage", "executor-input", **made)
    add(
        "gate",
        gate.run,
        *of_run,
        "export",
        "config",
        files=["verdict", "artifact-uri", "image"],
        more=["serving-image"],
    )
    add("registered", gate.run_registered, *of_run, "upload")
    add("refused", gate.run_refused, "verdict")
    add("find-model", registry.run, "project", "region", "name", files=["resource", "uri", "exists"])
    add("record", record.run, *of_run, "config")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_process(main)
