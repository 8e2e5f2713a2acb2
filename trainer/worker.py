"""Entry point of a rank: `python -m trainer.worker ASSIGNMENT LAUNCHER_PID`, started by trainer/launch.

It records why it ended in a file (trainer/launch/assignment.py).
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from contracts.config import RunConfig
from contracts.errors import EXIT_OK, ErrorDocument, Preempted
from contracts.events import EventLog, print_error
from contracts.own_code import install_code
from contracts.process import end_with_parent, run_process
from trainer.launch.assignment import Assignment
from trainer.supervise.supervisor import RankSupervisor, longest_wait_s

# For tests: `module:function`, called with rank and attempt before training.
HOOKS_VARIABLE = "SHARDLINE_HOOKS"


def main(path: str, launcher_pid: int) -> int:
    """Train as one rank and return the exit code."""
    end_with_parent()
    if os.getppid() != launcher_pid:
        # The launcher ended before end_with_parent took effect.
        os._exit(os.EX_TEMPFAIL)
    assignment = Assignment.model_validate_json(Path(path).read_bytes())
    config = RunConfig.model_validate(assignment.config)
    resources = config.resources
    events = EventLog(Path(assignment.attempt_folder), stage="train", attempt=assignment.attempt)
    rank = int(os.environ["RANK"])
    code = EXIT_OK
    abort_group: Callable[[], bool] | None = None
    can_shut_down = True
    with RankSupervisor(
        resources,
        events,
        rank=rank,
        local_rank=int(os.environ["LOCAL_RANK"]),
        record=lambda document: assignment.write_end(rank, document),
    ) as supervisor:
        try:
            # torch is imported late, so that errors are recorded and signals received before.
            if hooks := os.environ.get(HOOKS_VARIABLE):
                module, _, function = hooks.partition(":")
                getattr(importlib.import_module(module), function)(rank, assignment.attempt)
            install_code(config.code)
            from trainer.parallel.process_group import abort_process_group, process_group
            from trainer.train import train

            abort_group = abort_process_group
            with process_group(
                setup_timeout_s=resources.setup_timeout_s, timeout_s=longest_wait_s(resources)
            ) as group_rank:
                train(assignment, group_rank, events, supervisor)
        except Exception as error:  # noqa: BLE001 - entry point of a process
            error = supervisor.explain(error)
            document = ErrorDocument.of(error, traceback.format_exc())
            supervisor.record(document)
            if not isinstance(error, Preempted):
                print_error(document.traceback)
            code = document.exit_code
            # After the record, since peers fail at once. Not after an agreed stop: peers may still be in a collective.
            can_shut_down = abort_group is None or isinstance(error, Preempted) or abort_group()
    if not can_shut_down:
        os._exit(code)
    return code


if __name__ == "__main__":
    run_process(lambda: main(sys.argv[1], int(sys.argv[2])))
