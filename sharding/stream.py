"""Reading the files of a shard ahead of the writer: several at a time, in order, within a bound on memory.

One slow answer of a bucket then delays nothing but itself. Reading small local files is a matter of a few system calls,
so they go to a thread many at a time: a call apiece would cost more than it saves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from sharding.sources import Reference

# Bytes that were read, or are being read, and not yet taken; a single larger file is read alone.
BYTES_IN_FLIGHT = 64 << 20
# One task of a thread: enough files to be worth the hand-over.
TASK_BYTES = 1 << 20
TASK_FILES = 32

Read = Callable[[Reference], bytes]


def read_ahead(
    references: Iterable[Reference], read: Read, *, threads: int, bytes_in_flight: int = BYTES_IN_FLIGHT
) -> Generator[tuple[Reference, bytes], None, None]:
    """Yield references with their content, in order.

    Args:
        references: What to read.
        read: Returns the content of one; its first error is raised here, in its place.
        threads: Number of files that are read at a time; 0 reads each when it is asked for.
        bytes_in_flight: Bound on the content that is held, by the sizes of the listing.
    """
    if threads == 0:
        for reference in references:
            yield reference, read(reference)
        return
    pending: deque[tuple[list[Reference], int, Future[list[bytes]]]] = deque()
    held = 0
    pool = ThreadPoolExecutor(threads, thread_name_prefix="read")
    try:
        for task in _cut(references, bytes_in_flight // (2 * threads)):
            size = sum(reference.size for reference in task)
            while pending and (held + size > bytes_in_flight or len(pending) > 2 * threads):
                taken, taken_size, future = pending.popleft()
                yield from zip(taken, future.result(), strict=True)
                held -= taken_size
            pending.append((task, size, pool.submit(_read_all, task, read)))
            held += size
        while pending:
            taken, _, future = pending.popleft()
            yield from zip(taken, future.result(), strict=True)
    finally:
        # Also when the writer gives up: what is not yet read is not read any more.
        pool.shutdown(cancel_futures=True)


def _read_all(references: list[Reference], read: Read) -> list[bytes]:
    return [read(reference) for reference in references]


def _cut(references: Iterable[Reference], most_bytes: int) -> Iterator[list[Reference]]:
    """Yield runs of references that make one task each."""
    task: list[Reference] = []
    size = 0
    for reference in references:
        if task and (size + reference.size > min(TASK_BYTES, most_bytes) or len(task) == TASK_FILES):
            yield task
            task, size = [], 0
        task.append(reference)
        size += reference.size
    if task:
        yield task
