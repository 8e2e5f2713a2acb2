"""One process that writes shards for one thread, so that no file can end the command: whole shards run in it.

A file that ends its decoder's process, or takes longer than `Job.file_timeout_s` to look at, is looked at again, first
and alone, in a new process. If it fails again it is rejected (sharding/write/shard.py publishes why, before the shard);
else nothing is, and the shard is written once more: a process that was killed for another reason changes no byte.

Processes are copies of a fork server (multiprocessing's own): it imports what they need once, early, while the command
still lists its source, and a copy starts within milliseconds. They end with the command.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import multiprocessing.util
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import TYPE_CHECKING

from contracts.errors import TryAgain
from contracts.process import thread_environment

if TYPE_CHECKING:
    from sharding.job import Job, ShardRecord
    from sharding.sources import Reference
    from sharding.write.shard import Task

# What the fork server imports, with all that it imports in its turn.
CHILD_MODULE = "sharding.write.child"
# Processes that may die over one shard where no file is found guilty: killed from outside, or for want of memory.
MAX_DEATHS = 3
# A process that was told to end, or was killed, has nothing left to do.
_END_TIMEOUT_S = 10.0
# A socket's path has at most 107 bytes (unix(7)); multiprocessing adds about 35 to the temporary folder's.
_MAX_TEMPORARY, _SHORT_FOLDER = 70, "/tmp"  # a folder with a name of its own is made in it
# The exit code of a process can be read once, and starting a process reads those of all that have ended
# (multiprocessing.process._cleanup): whoever comes second, in another thread, is told 255.
_status_lock = threading.Lock()


def prepare_pools() -> None:
    """Start the fork server, if it does not run; returns at once. Each process gets one thread."""
    # The server passes them on.
    os.environ.update(thread_environment(1))
    _context()
    forkserver.ensure_running()


def _context() -> ForkServerContext:
    _use_short_folder()
    context = ForkServerContext()
    context.set_forkserver_preload([CHILD_MODULE])
    return context


def _use_short_folder() -> None:
    """Have multiprocessing put its sockets where their paths are short enough: a path of TMPDIR may not be.

    The folder is made once a process, and is removed by multiprocessing itself.
    """
    if len(tempfile.gettempdir()) <= _MAX_TEMPORARY or not os.access(_SHORT_FOLDER, os.W_OK):
        return
    with _status_lock:
        before = tempfile.tempdir
        tempfile.tempdir = _SHORT_FOLDER
        try:
            multiprocessing.util.get_temp_dir()
        finally:
            tempfile.tempdir = before


class ShardPool:
    """Writes shards in a process of its own; for one thread.

    Args:
        in_process: Write in this process instead: nothing is started, but a file that ends its decoder's process ends
            the command, and no time limit holds.
    """

    def __init__(self, in_process: bool = False) -> None:
        self._in_process = in_process
        self._child: _Child | None = None

    def write(self, name_stem: str, shard: int, split: int, references: Iterable[Reference], job: Job) -> ShardRecord:
        """Write and publish one shard; arguments, result and errors are those of `write_shard`, but OtherVerdicts.

        Raises:
            TryAgain: As there, or its process was killed again and again.
        """
        from sharding.write.shard import OtherVerdicts, order_references

        references = list(references)
        verdicts: dict[bytes, str] = {}
        deaths = 0
        is_settled = False
        while True:
            try:
                return self._write_once(name_stem, shard, split, references, job, verdicts)
            except OtherVerdicts as other:
                # The first attempt's verdict is that of all.
                verdicts, is_settled = other.verdicts, True
            except _Died as death:
                if death.number is not None and not is_settled:
                    suspect = order_references(references, job.seed, verdicts)[death.number]
                    if reason := self._look_alone(suspect, split, job):
                        verdicts = {**verdicts, suspect.path: reason}
                        continue
                deaths += 1
                if deaths == MAX_DEATHS:
                    reason = "another attempt found no fault in" if is_settled else "it was none of"
                    raise TryAgain(
                        f"the process that wrote {name_stem} ended {death.how}, {deaths} times, and {reason} its "
                        "files; the next attempt may find more memory or time"
                    ) from None

    def close(self) -> None:
        """End the process, if there is one; the next `write` starts another."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _write_once(
        self, name_stem: str, shard: int, split: int, references: list[Reference], job: Job, verdicts: dict[bytes, str]
    ) -> ShardRecord:
        from sharding.job import scratch_file
        from sharding.write.shard import write_shard

        if self._in_process:
            return write_shard(name_stem, shard, split, references, job, verdicts)
        from sharding.write.shard import Task

        scratch = scratch_file(job.output_uri)
        fields = [tuple(reference) for reference in references]
        try:
            record = self._do(Task(fields, split, job, shard, name_stem, verdicts, scratch))
        finally:
            # A process that died has left it.
            scratch.unlink(missing_ok=True)
        assert record is not None
        return record

    def _look_alone(self, reference: Reference, split: int, job: Job) -> str | None:
        """Look at a file in a new process; return why it is rejected, None where all is well."""
        from sharding.write.shard import Task

        try:
            self._do(Task([tuple(reference)], split, job))
        except _Died as death:
            if death.number is not None:
                limit_s = job.file_timeout_s
                if death.is_late:
                    return f"looking at it took longer than {limit_s} s (twice)"
                return f"its decoder ended the process {death.how} (twice)"
        return None

    def _do(self, task: Task) -> ShardRecord | None:
        """Have the process do a task, and start it if there is none.

        Raises:
            _Died: It ended meanwhile; there is none any more.
        """
        if self._child is None:
            self._child = _Child()
        try:
            answer = self._child.do(task)
        except _Died:
            self._child = None
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextlib.contextmanager
def _main_hidden() -> Iterator[None]:
    """Keep processes that start in the block from importing this one's main module, as multiprocessing has them do.

    They need nothing of it, and on a Beam worker it is all of Beam.
    """
    main = sys.modules["__main__"]
    spec, file = main.__spec__, getattr(main, "__file__", None)
    main.__spec__ = main.__file__ = None
    try:
        yield
    finally:
        main.__spec__, main.__file__ = spec, file


class _Died(Exception):
    """A process ended in the middle of a task."""

    def __init__(self, how: str, number: int | None, is_late: bool) -> None:
        super().__init__(how)
        self.how = how
        self.number = number
        """Place of the file that it was looking at, in `order_references`; None where it was none."""
        self.is_late = is_late
        """Whether it was killed because that took too long."""


class _Child:
    """One process, from its start to its end."""

    def __init__(self) -> None:
        from sharding.write.child import serve

        prepare_pools()
        context = _context()
        # Of its own: whatever a process that is thought dead still writes, nobody reads.
        self._slot = context.RawArray("q", 2)
        self._connection, theirs = context.Pipe()
        command, self._alive = context.Pipe(duplex=False)
        arguments = (theirs, self._slot, command, os.getpid(), dict(os.environ))
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        with theirs, command, _status_lock, _main_hidden():
            self._process.start()

    def do(self, task: Task) -> ShardRecord | Exception | None:
        """Return the answer to a task.

        Raises:
            _Died: The process ended, or was killed since a file took too long.
        """
        limit_ns = task.job.file_timeout_s * 10**9
        is_late = False
        # A process that died breaks the connection.
        with contextlib.suppress(OSError, EOFError):
            self._connection.send(task)
            while not is_late:
                number, began_ns = self._slot[0], self._slot[1]
                left_ns = limit_ns - (time.monotonic_ns() - began_ns) if number else limit_ns
                if left_ns <= 0 and self._slot[0] == number:
                    is_late = True
                    break
                found = multiprocessing.connection.wait(
                    [self._connection, self._process.sentinel], max(left_ns, 0) / 1e9
                )
                if self._connection in found:
                    answer: ShardRecord | Exception | None = self._connection.recv()
                    return answer
                if found:
                    break
        code = self._end(kills=is_late)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        # Read when it is dead: it may have come further since.
        number = self._slot[0]
        raise _Died(how, number - 1 if number else None, is_late)

    def close(self) -> None:
        """Tell the process to end, and wait for it."""
        self._connection.close()
        self._end(kills=False)

    def _end(self, *, kills: bool) -> int:
        """Wait for the end of the process, and kill it where that is asked for or takes too long; return its code."""
        sentinel = [self._process.sentinel]
        if kills or not multiprocessing.connection.wait(sentinel, _END_TIMEOUT_S):
            self._process.kill()
            multiprocessing.connection.wait(sentinel, _END_TIMEOUT_S)
        self._connection.close()
        self._alive.close()
        with _status_lock:
            self._process.join(0)
            code = self._process.exitcode
        return -signal.SIGKILL if code is None else code
