"""One rank of the probe: `python -m trainer.profiling.probe_process DESCRIPTOR ASSIGNMENT`, started by probe.py.

It answers requests over a connection (an inherited descriptor) until that is closed. What a configuration does to this
process is the point of it: whatever it raises is an answer, and a process that dies is replaced by the probe.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from contracts.config import RunConfig
from contracts.errors import DataError, UserError
from contracts.own_code import install_code
from contracts.process import end_with_parent, imports_done, run_process
from trainer.launch import Assignment
from trainer.profiling.measure import Failed
from trainer.supervise.signals import ignore_stop_signals

Request = tuple[str, dict[str, Any]]
# What comes first: everything that it raises is wrong with all configurations.
HELLO = "hello"


def main(descriptor: int, path: str) -> int:
    """Serve until the other side closes the connection; return the exit code."""
    end_with_parent()
    # The probe decides when this process ends, and kills it.
    ignore_stop_signals()
    connection = Connection(descriptor)
    assignment = Assignment.model_validate_json(Path(path).read_bytes())
    config = RunConfig.model_validate(assignment.config)
    install_code(config.code)

    from trainer.parallel.process_group import process_group
    from trainer.profiling.service import Service

    with process_group(assignment.generation, setup_timeout_s=config.profile.probe_timeout_s) as rank:
        service = Service(assignment, config, rank)
        while (request := _receive(connection)) is not None:
            name, arguments = request
            connection.send(_outcome(lambda: service.answer(name, arguments), is_hello=name == HELLO))  # noqa: B023
            imports_done()
        # Peers may be gone: nothing is left that a goodbye would be needed for.
        os._exit(0)


def _receive(connection: Connection) -> Request | None:
    try:
        request: Request = connection.recv()
    except (EOFError, OSError):
        return None
    return request


def _outcome(work: Callable[[], Any], *, is_hello: bool) -> Any:
    """Return what `work` returns, or what became of it: an error of the user's to be raised, or Failed."""
    from trainer.report.memory import says_out_of_memory

    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever a configuration raises is an answer
        # Damaged data meets every configuration, and a model that cannot be built fits none.
        if isinstance(error, DataError) or (is_hello and isinstance(error, UserError)):
            return error
        if says_out_of_memory(error):
            return Failed("out of memory", _first_line(error))
        if isinstance(error, UserError):
            return Failed("failed", error.given)
        traceback.print_exc()
        crashed = isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")
        return Failed("crashed" if crashed else "failed", f"{type(error).__name__}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


if __name__ == "__main__":
    run_process(lambda: main(int(sys.argv[1]), sys.argv[2]))
