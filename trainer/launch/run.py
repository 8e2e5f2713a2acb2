"""The ranks of this machine to the end of training: alone, or together with those of others."""

from __future__ import annotations

import os
import socket

from contracts.errors import EXIT_USER_ERROR, ErrorDocument, ToldError
from trainer.checkpoint.discovery import Superseded
from trainer.launch.attempts import CRASH_LOOP
from trainer.launch.launcher import LOOPBACK, Launcher, StoreAddress, raise_final

_LOG_LEVEL_VARIABLE = "TORCH_CPP_LOG_LEVEL"


def run_ranks(launcher: Launcher) -> None:
    """Run the ranks of this machine, with those of the others, to the end of training.

    Raises:
        ToldError: What ended the job; a user error, and starts without progress, also end its later attempts.
        Preempted: This machine was told to stop.
        TryAgain: Another machine did not come, or did not come back.
    """
    with launcher.stop.receiving():
        try:
            if launcher.nodes.nodes == 1:
                _run_alone(launcher)
            else:
                _import_torch()
                from trainer.launch.rendezvous import run_together

                run_together(launcher)
        except ToldError as error:
            # A later attempt of the same job may have superseded this one: the job goes on.
            is_final = error.document.exit_code == EXIT_USER_ERROR and error.document.kind != Superseded.__name__
            if is_final or error.document.kind == CRASH_LOOP:
                launcher.record.end(error.document)
            raise


def _import_torch() -> None:
    """Import torch, which one machine's launcher does not need; it prints no C++ stacks for lost connections."""
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
            raise ToldError(refusal)
        listener = socket.create_server((LOOPBACK, 0))
        # By this address its own name need not resolve.
        address = StoreAddress(LOOPBACK, listener.getsockname()[1], listener)
        end = launcher.run_start(launcher.assignment.attempt, address)
        if end is None:
            return
        raise_final(end, counter)
        launcher.say(f"the ranks start again: {end.message}")
