"""Seconds of calls that take turns, and throughput of calls that are queued.

Here: `time_calls`, `measure_rate`, `describe`; `time_limit` and `own_compile_cache`, in which compilers are called. In
each round all calls have a turn, in an order drawn anew, so that a machine that slows down slows all of them; warm-up
is discarded. Nothing here knows of engines or torch.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from contracts.artifacts.export import Latency

# Seconds for the calls of one runner at one batch size; slow ones take longer, as each is called three times at least.
BUDGET_S = 5.0
LEAST_ROUNDS, MOST_ROUNDS = 3, 10
MOST_CALLS = 100
"""Of one runner in one round."""
LEAST_CALLS_FOR_P99 = 100
WARM_UP_CALLS = 3
WARM_UP_SHARE = 0.1
"""Of the budget, at least: a GPU raises its clock only under load."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Queued:
    """A call of a device that works by itself: `enqueue` returns at once, `finish` waits for all that was queued."""

    enqueue: Call
    finish: Call

    def __call__(self) -> None:
        """Run it to its end."""
        self.enqueue()
        self.finish()


def measure_rate(
    call: Queued, seconds: Sequence[float], budget_s: float, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return calls a second where the next is queued before one is done: the median of `LEAST_ROUNDS` turns.

    Args:
        call: The call.
        seconds: That calls took one by one.
        budget_s: Seconds for all turns.
        clock: In seconds.
    """
    number = max(1, min(MOST_CALLS, int(budget_s / LEAST_ROUNDS / max(statistics.median(seconds), 1e-9))))
    rates = []
    for _ in range(LEAST_ROUNDS):
        began = clock()
        for _ in range(number):
            call.enqueue()
        call.finish()
        rates.append(number / max(clock() - began, 1e-9))
    return statistics.median(rates)


class Timed(NamedTuple):
    """Seconds of each call, and what a call raised, by key; a key is in one of the two."""

    times: dict[int, list[float]]
    failed: dict[int, Exception]


def time_calls(
    calls: Mapping[int, Call], *, budget_s: float, clock: Callable[[], float] = time.perf_counter, seed: int = 0
) -> Timed:
    """Return the seconds of each call, taken in turns; those of the warm-up are not among them.

    One that raises is not called again, and what it took so far is dropped: the others go on.

    Args:
        calls: By any key.
        budget_s: Seconds for each.
        clock: In seconds.
        seed: Of the order in a round.
    """
    failed: dict[int, Exception] = {}
    typical: dict[int, float] = {}
    for key, call in calls.items():
        began = clock()
        warm: list[float] = []
        try:
            while len(warm) < WARM_UP_CALLS or clock() - began < WARM_UP_SHARE * budget_s:
                warm.append(_seconds_of(call, clock))
        except Exception as error:  # noqa: BLE001 - runtimes raise what they like
            failed[key] = error
        else:
            typical[key] = max(statistics.median(warm), 1e-9)
    times: dict[int, list[float]] = {key: [] for key in typical}
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(budget_s / max(typical.values(), default=budget_s))))
    draw = random.Random(seed)
    for _ in range(rounds):
        for key in draw.sample(sorted(times), len(times)):
            try:
                for _ in range(max(1, min(MOST_CALLS, int(budget_s / rounds / typical[key])))):
                    times[key].append(_seconds_of(calls[key], clock))
            except Exception as error:  # noqa: BLE001 - as above
                failed[key] = error
                del times[key]
    return Timed(times, failed)


def _seconds_of(call: Call, clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start


def describe(runner: str, precision: str, device: str, batch: int, seconds: Sequence[float]) -> Latency:
    """Return percentiles (linear between two values) and throughput of the calls of one runner.

    Of fewer than 100 calls the 99th percentile would be the longest one, whatever that is: it is left out.
    """
    p50, p90, p99 = (float(value) * 1000 for value in np.percentile(seconds, (50, 90, 99)))
    return Latency(
        runner=runner,
        precision=precision,
        device=device,
        batch=batch,
        p50_ms=round(p50, 4),
        p90_ms=round(p90, 4),
        p99_ms=round(p99, 4) if len(seconds) >= LEAST_CALLS_FOR_P99 else None,
        images_per_s=round(batch * len(seconds) / sum(seconds), 2),
        repeats=len(seconds),
    )


class TooLong(BaseException):
    """A time limit is over. No Exception: compilers catch those, and would go on."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TooLong in this process's main thread when its block takes longer."""

    def ring(*_: object) -> None:
        raise TooLong(f"not compiled within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def own_compile_cache() -> Iterator[None]:
    """Compile anew, into a folder that goes: what an earlier run left would tell nothing of this one."""
    names = {"TORCHINDUCTOR_CACHE_DIR": "", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="shardline-compile-") as folder:
        os.environ.update({**names, "TORCHINDUCTOR_CACHE_DIR": folder})
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
