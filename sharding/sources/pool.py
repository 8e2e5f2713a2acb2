"""Processes that list: a pool of the standard library, ended with the command; or none, where there is little to do."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from contracts.errors import TryAgain
from contracts.process import end_with_parent, thread_environment


@contextlib.contextmanager
def open_pool(processes: int) -> Iterator[Executor]:
    """Give out an executor while the block runs; with one process the tasks run in this one.

    Raises:
        TryAgain: A process of the pool died.
    """
    if processes <= 1:
        yield _Here()
        return
    # Most sources are small: their stage starts without these.
    import multiprocessing
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

    # Spawned: a fork would inherit sockets of the storage client, and locks that its threads hold.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_begin)
    try:
        yield pool
    except BrokenProcessPool:
        raise TryAgain("a process that lists the source died (out of memory?); run the stage again") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    end_with_parent()
    # Ctrl-C reaches the whole group; the command ends the pool.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(thread_environment(1))


class _Here(Executor):
    """Runs each task when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done
