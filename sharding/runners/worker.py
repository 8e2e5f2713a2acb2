"""A worker process of the FnApiRunner: runs the steps of the graph that it is sent, and ends with whoever started it.

Imported by the fork server (work.py), which therefore imports everything that a worker will need; started by
processes.py.
"""

from __future__ import annotations

import logging
import os
import warnings

from apache_beam.runners.worker import sdk_worker_main

import sharding.graph  # noqa: F401  # so that no worker imports it again
from contracts.process import end_with


def serve(environment: dict[str, str], command_pid: int) -> None:
    """Serve until the runner closes the connection.

    Args:
        environment: Says where the runner is, in variables of Beam's.
        command_pid: Process that started the job; a worker does not outlive it.
    """
    end_with(command_pid)
    os.environ.update(environment)
    # What Pillow remarks about metadata does not touch the pixels (sharding/task.py).
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    # Failures come back to the runner as the answer to its request.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    sdk_worker_main.main([])
