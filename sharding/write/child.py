"""The process behind a ShardPool: writes the shards that it is sent, one after another, and says what it looks at.

Imported by the fork server (pool.py), which therefore imports all that such a process needs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import time
import traceback
import warnings
from collections.abc import MutableSequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from contracts.errors import ShardlineError
from contracts.process import end_with
from records.decode import UndecodableImage
from sharding.job import Job, ShardRecord
from sharding.plan import make_key
from sharding.sources import Reference
from sharding.write.check import check
from sharding.write.reading import read_file
from sharding.write.shard import is_counted, write_shard


class Task(NamedTuple):
    """What the process is asked to do."""

    references: list[tuple[Any, ...]]
    """Fields of each Reference: tuples travel in a third of the time."""
    split: int
    job: Job
    shard: int = -1
    """Its number; -1: only look at the one reference, and write nothing."""
    name_stem: str = ""
    verdicts: dict[bytes, str] = {}  # noqa: RUF012  # a NamedTuple's default, which nobody changes
    scratch: Path | None = None


class Looking:
    """Says in shared memory which file is being looked at, where it can be read when this process has died.

    Args:
        slot: Two numbers: 1 + the place of the file, 0 between two files; and when it began (time.monotonic_ns).
    """

    def __init__(self, slot: MutableSequence[int]) -> None:
        self._slot = slot

    def begin(self, number: int) -> None:
        """Say that a file is looked at from now on."""
        # The time first: whoever sees the number sees its time, or a later one.
        self._slot[1] = time.monotonic_ns()
        self._slot[0] = number + 1

    def end(self) -> None:
        """Say that nothing is looked at."""
        self._slot[0] = 0


def serve(connection: Connection, slot: MutableSequence[int], command: Connection, command_pid: int) -> None:
    """Do tasks until the other side closes the connection.

    Args:
        connection: Tasks come in; what each one returned or raised goes out.
        slot: That of `Looking`.
        command: Pipe whose other end the command holds as long as it lives; nothing is sent.
        command_pid: Process that started this one, which does not outlive it.
    """
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
        return _do(task, look)
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


def _do(task: Task, look: Looking) -> ShardRecord | None:
    references = [Reference(*fields) for fields in task.references]
    if task.shard >= 0:
        return write_shard(
            task.name_stem, task.shard, task.split, references, task.job, task.verdicts, look, task.scratch
        )
    (reference,) = references
    content = read_file(task.job.source_uri, reference)
    look.begin(0)
    try:
        check(content, task.job.checks, with_pixels=is_counted(make_key(reference.path), task.split, task.job))
    except UndecodableImage:
        pass  # the shard says so in its turn
    finally:
        look.end()
    return None
