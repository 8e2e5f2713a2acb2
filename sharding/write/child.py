"""The process behind a ShardPool: does the tasks that it is sent, one after another.

Imported by the fork server (pool.py), which therefore imports all that such a process needs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import traceback
import warnings
from collections.abc import MutableSequence
from multiprocessing.connection import Connection

from contracts.errors import ShardlineError
from contracts.process import end_with
from sharding.job import ShardRecord
from sharding.write.shard import Looking, Task


def serve(
    connection: Connection,
    slot: MutableSequence[int],
    command: Connection,
    command_pid: int,
    environment: dict[str, str],
) -> None:
    """Do tasks until the other side closes the connection.

    Args:
        connection: Tasks come in; what each one returned or raised goes out.
        slot: That of `Looking`.
        command: Pipe whose other end the command holds as long as it lives; nothing is sent.
        command_pid: Process that started this one, which does not outlive it.
        environment: Of the command as it is now: the fork server has that of its own start.
    """
    os.environ.clear()
    os.environ.update(environment)
    end_with(command_pid)
    # That takes the interpreter's lock, which a decoder that never returns may hold. When a pipe closes, the kernel
    # sends SIGIO, for which Python has no handler: the process ends.
    fcntl.fcntl(command.fileno(), fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(command.fileno(), fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    # Ctrl-C reaches every process of a terminal; the command decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What Pillow remarks about metadata does not touch the pixels (sharding/task.py).
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    look = Looking(slot)
    while True:
        try:
            task: Task = connection.recv()
        except EOFError:
            return
        connection.send(_answer(task, look))


def _answer(task: Task, look: Looking) -> ShardRecord | Exception | None:
    try:
        return task.do(look)
    except Exception as error:  # noqa: BLE001  # the entry of a process: the other side raises it
        return error if isinstance(error, ShardlineError) else _make_portable(error)


def _make_portable(error: Exception) -> Exception:
    """Return an error that the other side can read, with its traceback."""
    text = traceback.format_exc()
    error.add_note(text)
    with contextlib.suppress(Exception):
        # Errors of other libraries may be made of what does not travel.
        pickle.loads(pickle.dumps(error))
        return error
    return RuntimeError(text)
