"""Worker processes that write shards, so that a crash of a decoder does not end the command.

A file whose check crashes the process, or exceeds `FILE_TIMEOUT_S`, breaks the executor. Each sample of the shard is
then checked in a process of its own, and one that fails twice is rejected. If none does, the process was killed from
outside, and the shard is written again.
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
# Deaths of processes per shard that no file causes (killed, or out of memory) before the shard fails.
MAX_DEATHS = 3
# Held while `_hide_main_module` changes the main module.
_main_module_lock = threading.Lock()
# Idle executors of one process each.
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
        handle: The planned job.
        shard: Number of the shard in the plan.
        references: Its samples, in any order.
        time_limit_s: Time limit for the check of one sample.

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
            checked = [sample for sample in references if sample.path not in rejected]
            fatal = {
                sample.path: reason for sample in checked if (reason := _check_twice(handle, sample, time_limit_s))
            }
            rejected |= fatal
            deaths += not fatal
        finally:
            scratch.unlink(missing_ok=True)
    raise TryAgain(
        f"the process that wrote {open_job(handle).stem_of(shard)} ended {deaths} times, and none of its files is the "
        "cause; the next attempt may have more memory or time"
    )


def close_processes() -> None:
    """Shut down the idle worker processes."""
    while _idle:
        _idle.pop().shutdown()


def _check_twice(handle: JobHandle, reference: Reference, time_limit_s: float) -> str | None:
    """Return why a sample is rejected: its check ended the process twice; None if it did not."""
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
    """Call a function in a worker process and return its result.

    Raises:
        BrokenProcessPool: The process died.
    """
    try:
        executor = _idle.pop()
    except IndexError:
        executor = _make_executor()
    is_broken = False
    try:
        with _hide_main_module():
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
    return ProcessPoolExecutor(1, _make_context(), initializer=_init_worker, initargs=(os.getpid(), dict(os.environ)))


def _make_context() -> BaseContext:
    # Takes effect when the fork server imports NumPy.
    os.environ.update(thread_environment(1))
    use_short_socket_folder()
    # Not fork: it would copy locks that threads of Beam and of the storage client hold.
    context = multiprocessing.get_context("forkserver")
    # Imported once; a process then starts in milliseconds.
    context.set_forkserver_preload(["sharding.write"])
    return context


def _init_worker(command_pid: int, environment: dict[str, str]) -> None:
    """Set up a worker process: it ends with the command and leaves Ctrl-C to it.

    Args:
        command_pid: Process id of the command.
        environment: Current environment of the command; the fork server has an older one.
    """
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(command_pid)
    # Pillow's warnings are about metadata, not pixels.
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
def _hide_main_module() -> Iterator[None]:
    """Prevent processes started in the block from importing the main module, which on a Beam worker is all of Beam."""
    main = sys.modules["__main__"]
    with _main_module_lock:
        spec, file = main.__spec__, getattr(main, "__file__", None)
        main.__spec__ = main.__file__ = None
        try:
            yield
        finally:
            main.__spec__, main.__file__ = spec, file
