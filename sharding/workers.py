"""Writers of shards in processes of their own, so that no file can end the command.

A file whose check ends the process, or takes longer than `FILE_TIMEOUT_S`, breaks the executor. The samples of the
shard are then checked one by one, each in the same way: a file that does it again, and once more, is rejected by name.
If none does, the process was killed from outside, and the shard is written again.
"""

from __future__ import annotations

import contextlib
import multiprocessing.forkserver
import multiprocessing.util
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from contracts.errors import TryAgain
from contracts.process import end_with, thread_environment, use_short_socket_folder
from sharding.job import JobHandle, ShardResult, open_job, scratch_file
from sharding.reference import Reference
from sharding.write import check_sample, write_shard

FILE_TIMEOUT_S = 120.0
# Processes that may die over one shard where no file is at fault: killed from outside, or for want of memory.
MAX_DEATHS = 3
# Guards the main module, which is hidden while a process starts.
_starting = threading.Lock()
# Executors of one process each that write nothing now.
_idle: list[ProcessPoolExecutor] = []


def prepare_process() -> None:
    """Start the fork server, which imports while this process imports Beam."""
    _make_context()
    multiprocessing.forkserver.ensure_running()


def write_in_process(
    handle: JobHandle, shard: int, references: list[Reference], time_limit_s: float = FILE_TIMEOUT_S
) -> ShardResult:
    """Write and publish one shard in a process of its own.

    Args:
        handle: Of the job.
        shard: Its number in the plan.
        references: Its samples, in any order.
        time_limit_s: Of the check of one sample.

    Raises:
        TryAgain: As `write_shard`, or the process was killed again and again.
    """
    rejected: dict[bytes, str] = {}
    scratch = scratch_file(handle.output_uri)
    deaths = 0
    while deaths < MAX_DEATHS:
        try:
            result: ShardResult = _run(_write, handle, shard, references, rejected, time_limit_s, scratch)
            return result
        except BrokenProcessPool:
            checked = [one for one in references if one.path not in rejected]
            fatal = {one.path: reason for one in checked if (reason := _check_twice(handle, one, time_limit_s))}
            rejected |= fatal
            deaths += not fatal
        finally:
            # A process that died has left it.
            scratch.unlink(missing_ok=True)
    raise TryAgain(
        f"the process that wrote {open_job(handle).stem_of(shard)} ended {deaths} times, and it was none of its files; "
        "the next attempt may find more memory or time"
    )


def close_processes() -> None:
    """End the processes that write nothing now."""
    while _idle:
        _idle.pop().shutdown()


def _check_twice(handle: JobHandle, reference: Reference, time_limit_s: float) -> str | None:
    """Return the reason why a sample is rejected: its check ended the process twice; None: all is well."""
    reason = None
    for _ in range(2):
        began = time.monotonic()
        try:
            _run(_check, handle, reference, time_limit_s)
            return None
        except BrokenProcessPool:
            is_late = time.monotonic() - began >= time_limit_s
            limit = f"checking it took longer than {time_limit_s:g} s (twice)"
            reason = limit if is_late else "its decoder ended the process (twice)"
    return reason


def _run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a process.

    Raises:
        BrokenProcessPool: The process ended meanwhile.
    """
    try:
        executor = _idle.pop()
    except IndexError:
        executor = _make_executor()
    is_broken = False
    try:
        with _main_hidden():
            future = executor.submit(function, *arguments)
        return future.result()
    except BrokenProcessPool:
        is_broken = True
        raise
    finally:
        if is_broken:
            executor.shutdown()
        else:
            _idle.append(executor)


def _make_executor() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, _make_context(), initializer=_begin, initargs=(os.getpid(), dict(os.environ)))


def _make_context() -> BaseContext:
    # Read when NumPy is imported in the fork server.
    os.environ.update(thread_environment(1))
    use_short_socket_folder()
    # Not fork: it would copy locks that threads of Beam and of the storage client hold.
    context = multiprocessing.get_context("forkserver")
    # Imported once; a process then starts in milliseconds.
    context.set_forkserver_preload(["sharding.write"])
    return context


def _begin(command_pid: int, environment: dict[str, str]) -> None:
    """Set up a new process: it ends with the command, and Ctrl-C, which reaches the whole terminal, is the command's.

    Args:
        command_pid: The command.
        environment: Of the command as it is now: the fork server has that of its own start.
    """
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(command_pid)
    # What Pillow remarks about metadata does not touch the pixels.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


def _write(
    handle: JobHandle,
    shard: int,
    references: list[Reference],
    rejected: dict[bytes, str],
    limit_s: float,
    scratch: Path,
) -> ShardResult:
    return write_shard(open_job(handle), shard, references, rejected, limit_s, scratch)


def _check(handle: JobHandle, reference: Reference, limit_s: float) -> None:
    check_sample(open_job(handle), reference, limit_s)


@contextlib.contextmanager
def _main_hidden() -> Iterator[None]:
    """Keep processes that start in the block from importing this one's main module, as multiprocessing has them do.

    They need nothing of it, and on a Beam worker it is all of Beam.
    """
    main = sys.modules["__main__"]
    with _starting:
        spec, file = main.__spec__, getattr(main, "__file__", None)
        main.__spec__ = main.__file__ = None
        try:
            yield
        finally:
            main.__spec__, main.__file__ = spec, file
