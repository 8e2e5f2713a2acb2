"""Run the ranks of this machine to the end of training, on a single machine or several."""

from __future__ import annotations

import os
import socket

from contracts.errors import EXIT_USER_ERROR, ErrorDocument, ForwardedError
from trainer.checkpoint.discovery import Superseded
from trainer.launch.attempts import CRASH_LOOP
from trainer.launch.launcher import LOOPBACK, Launcher, StoreAddress, raise_final

_LOG_LEVEL_VARIABLE = "TORCH_CPP_LOG_LEVEL"


def run_ranks(launcher: Launcher) -> None:
    """Run the ranks of this machine to the end of training.

    Raises:
        ForwardedError: The error that ended the job; user errors and crash loops also end later attempts.
        Preempted: This machine received a stop signal.
        TryAgain: Another machine did not join, or did not return.
    """
    with launcher.stop.receiving():
        try:
            if launcher.nodes.nodes == 1:
                _run_alone(launcher)
            else:
                _import_torch()
                from trainer.launch.rendezvous import run_together

                run_together(launcher)
        except ForwardedError as error:
            # Superseded by a later attempt of the same job: the job continues.
            is_final = error.document.exit_code == EXIT_USER_ERROR and error.document.kind != Superseded.__name__
            if is_final or error.document.kind == CRASH_LOOP:
                launcher.record.end(error.document)
            raise


def _import_torch() -> None:
    """Import torch with C++ logs that omit stacks of lost connections."""
    level = os.environ.get(_LOG_LEVEL_VARIABLE)
    os.environ[_LOG_LEVEL_VARIABLE] = level or "ERROR"
    import torch  # noqa: F401

    if level is None:
        del os.environ[_LOG_LEVEL_VARIABLE]


def _run_alone(launcher: Launcher) -> None:
    counter = launcher.counter()
    end: ErrorDocument | None = None
    while True:
        launcher.stop.check()
        if (refusal := counter.begin(end)) is not None:
            raise ForwardedError(refusal)
        listener = socket.create_server((LOOPBACK, 0))
        # The host name need not resolve.
        address = StoreAddress(LOOPBACK, listener.getsockname()[1], listener)
        end = launcher.run_start(launcher.assignment.attempt, address)
        if end is None:
            return
        raise_final(end, counter)
        launcher.log(f"the ranks start again: {end.message}")
