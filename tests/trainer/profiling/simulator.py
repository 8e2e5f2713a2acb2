"""Simulated machines with a known optimum: a Probe with a clock of its own.

What it does is not what the search believes: windows are noisy and drift, processes disturb each other, slot sizes have
a knee and a cliff, memory fills up a little faster than a line, and steps that nearly fill it slow down.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from contracts.artifacts import Settings
from contracts.config import RunConfig
from trainer.profiling.search import ComputeTime, Failed, JointRate, LoaderRate, Space, make_space

# Seconds, as on two cores: the start of a measurement, one more loader worker, a window end to end, the windows of a
# part, and until memory has run out.
START_S = 0.3
WORKER_S = 0.08
WINDOW_S = 0.5
LOADER_S = 0.75
COMPUTE_S = 0.85
FAILING_S = 0.3
PREFETCH_FACTOR = 4
RATIOS = (0.14, 0.3, 0.7, 1.0, 2.0, 4.0, 7.0)
"""Time to load a sample over time to compute it."""
SEEDS = range(10)

Failing = Callable[[str, int, int], Failed | None]
"""Returns the failure of `load`, `compute` or `run` at a slot size and a number of workers."""


@dataclass
class Machine:
    """Properties of a simulated machine."""

    sample_s: float = 0.002
    """Seconds that steps take for a sample, at the best slot size and one thread."""
    loader_ratio: float = 1.0
    """Seconds that one process takes to load a sample, over sample_s."""
    waiting: float = 0.0
    """Share of loading that waits for a disk or a bucket, without a core."""
    cores: int = 4
    """Of a rank; its steps use all of them."""
    overlap: float = 0.8
    """Share of the shorter part that hides, with loader workers."""
    slot_overhead_s: float = 0.005
    update_s: float = 0.01
    knee: int = 10**9
    """Slot size from which on samples take longer, as out of a cache."""
    knee_factor: float = 1.3
    contention: float = 0.03
    """What each loader worker adds to the time of a step: memory bandwidth, caches."""
    thread_efficiency: float = 0.85
    base_bytes: int = 100 << 20
    sample_bytes: int = 1 << 20
    limit_bytes: int | None = None
    noise: float = 0.03
    """Spread of a window."""
    drift: float = 0.05
    """Slow changes of the machine's speed: they fall on all windows of a time."""
    hiccups: float = 0.05
    """Share of windows that something else slows down by a third."""


@dataclass
class Simulator:
    """A Probe. Its calls are kept in `calls`."""

    space: Space
    machine: Machine
    seed: int = 0
    failing: Failing = lambda name, slot_size, num_workers: None
    timeout_s: float = 120.0
    """Of a measurement that hangs; no more than what is left of the budget."""
    budget_s: float = math.inf
    calls: list[str] = field(default_factory=list)
    clock: float = 3.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def now(self) -> float:
        return self.clock

    # --- what is true -------------------------------------------------------------------------------------------------

    def true_rate(self, settings: Settings) -> float:
        """Return samples per second of a rank, without noise; 0: it does not fit into memory."""
        machine = self.machine
        if machine.limit_bytes is not None and self.bytes_of(settings.slot_size) > machine.limit_bytes:
            return 0.0
        slots = self.space.slots_per_rank(settings.slot_size)
        share = self.space.global_batch_size / self.space.ranks
        compute_s = self.step_s(settings.slot_size) / share
        workers, cores = settings.num_workers, machine.cores
        load_s = machine.sample_s * machine.loader_ratio * slots * settings.slot_size / share
        if not workers:
            return 1 / (compute_s + load_s)
        compute_s *= 1 + machine.contention * workers
        parallel_s = load_s * 1.05 / self._speed_of(workers, busy=cores)
        processor_s = (compute_s * cores + load_s * 1.05 * (1 - machine.waiting)) / cores
        # A short queue runs dry now and then.
        hidden = machine.overlap * (1 - 0.5 / (workers * PREFETCH_FACTOR) ** 2)
        longest = max(compute_s, parallel_s, processor_s)
        return 1 / (longest + (1 - hidden) * min(compute_s, parallel_s))

    def step_s(self, slot_size: int) -> float:
        return self.space.slots_per_rank(slot_size) * self.slot_s(slot_size) + self.machine.update_s

    def slot_s(self, slot_size: int) -> float:
        machine = self.machine
        sample_s = machine.sample_s / machine.cores**machine.thread_efficiency
        if slot_size >= machine.knee:
            sample_s *= machine.knee_factor
        if machine.limit_bytes is not None and self.bytes_of(slot_size) > 0.97 * machine.limit_bytes:
            # The allocator gives back and asks again, step for step.
            sample_s *= 1.5
        return machine.slot_overhead_s + slot_size * sample_s

    def bytes_of(self, slot_size: int) -> int:
        machine = self.machine
        return int(machine.base_bytes + machine.sample_bytes * slot_size * (1 + 0.0001 * slot_size))

    def best(self) -> tuple[float, Settings]:
        """Return the best of all slot sizes and numbers of workers."""
        space = self.space
        every = [space.settings(*each) for each in itertools.product(space.slot_sizes, space.num_workers)]
        return max(((self.true_rate(each), each) for each in every), key=lambda pair: pair[0])

    def _speed_of(self, workers: int, *, busy: int) -> float:
        """Return how many processes' worth of samples loader workers bring, on the cores that are left."""
        machine = self.machine
        free = max(0.5, machine.cores - 0.5 * busy)
        slowed = max(1.0, workers * (1 - machine.waiting) / free)
        return workers / slowed * 0.97 ** (workers - 1)

    # --- what is measured ---------------------------------------------------------------------------------------------

    def load(self, settings: Settings) -> LoaderRate | Failed:
        workers = settings.num_workers
        self.calls.append(f"load {workers}")
        if failed := self._fails("load", settings.slot_size, workers):
            return failed
        self._pass(START_S + WORKER_S * workers + LOADER_S)
        one_s = self.machine.sample_s * self.machine.loader_ratio
        speed = self._speed_of(workers, busy=0) / 1.05 if workers else 1.0
        return LoaderRate(tuple(speed / one_s * self._luck() for _ in range(3)))

    def compute(self, slot_size: int) -> ComputeTime | Failed:
        self.calls.append(f"compute {slot_size}")
        if failed := self._fails("compute", slot_size, 0):
            return failed
        slot_s = self.slot_s(slot_size)
        self._pass(START_S + max(COMPUTE_S, 4 * slot_s))
        slow = 1 / median(self._luck() for _ in range(3))
        return ComputeTime(slot_s * slow, (slot_s + self.machine.update_s) * slow, self.bytes_of(slot_size))

    def run(self, settings: Sequence[Settings], *, rounds: int) -> list[JointRate | Failed]:
        self.calls.append("run " + " ".join(f"{each.slot_size}/{each.num_workers}" for each in settings))
        rates: list[list[float]] = [[] for _ in settings]
        failed: dict[int, Failed] = {}
        for _, (index, each) in itertools.product(range(rounds), enumerate(settings)):
            if index in failed or self.clock >= self.budget_s:
                continue
            if failure := self._fails("run", each.slot_size, each.num_workers):
                failed[index] = failure
                continue
            rate = self.true_rate(each)
            step_s = self.space.global_batch_size / self.space.ranks / rate
            # At least one step a window, and two before the first.
            self._pass(START_S + WORKER_S * each.num_workers + 2 * step_s + max(WINDOW_S, step_s))
            rates[index].append(rate * self._luck())
        return [
            JointRate(tuple(windows), self._data_time_fraction(each))
            if windows and index not in failed
            else failed.get(index, Failed("budget", "the budget ended"))
            for index, (each, windows) in enumerate(zip(settings, rates, strict=True))
        ]

    def _data_time_fraction(self, settings: Settings) -> float:
        share = self.space.global_batch_size / self.space.ranks
        return max(0.0, 1 - self.step_s(settings.slot_size) / share * self.true_rate(settings))

    def _fails(self, name: str, slot_size: int, num_workers: int) -> Failed | None:
        failed, limit = self.failing(name, slot_size, num_workers), self.machine.limit_bytes
        if failed is None and limit is not None and name != "load" and self.bytes_of(slot_size) > limit:
            failed = Failed("out of memory", f"tried to allocate {self.bytes_of(slot_size)} bytes of {limit}")
        if failed is not None:
            hanging_s = min(self.timeout_s, max(0.1, self.budget_s - self.clock))
            self._pass(hanging_s if failed.outcome == "timeout" else START_S + FAILING_S)
            if failed.outcome in ("crashed", "timeout"):
                # Processes that are started again import torch again.
                self._pass(2.0)
        return failed

    def _pass(self, seconds: float) -> None:
        assert seconds > 0
        self.clock += seconds

    def _luck(self) -> float:
        """Return the factor on a window's rate: noise, drift with the clock, and now and then a hiccup."""
        machine = self.machine
        slowly = math.sin(self.clock / 7 + self.seed) + math.sin(self.clock / 23 + 2 * self.seed)
        factor = math.exp(self._random.gauss(0, machine.noise) + machine.drift * slowly / 2)
        return factor * (0.75 if self._random.random() < machine.hiccups else 1.0)


def a_space(cores: int = 4, *, on_gpu: bool = False, **sections: Any) -> Space:
    """Return slot sizes 8 to 256 by worker counts, for two ranks."""
    values: dict[str, Any] = {
        "train": {"global_batch_size": 512},
        "profile": {
            "slot_sizes": [8, 16, 32, 64, 128, 256],
            "num_workers": [each for each in (0, 1, 2, 4, 8) if each <= max(2, cores)],
        },
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return make_space(RunConfig.model_validate(values), ranks=2, cores_per_rank=cores, on_gpu=on_gpu)


def a_machine(ratio: float, seed: int) -> tuple[Space, Machine]:
    """Return one of many machines on which loading takes `ratio` times as long as computing, and its space."""
    rng = random.Random(f"{ratio} {seed}")
    cores = rng.choice([1, 2, 4, 8])
    machine = Machine(
        loader_ratio=ratio,
        cores=cores,
        overlap=rng.uniform(0, 1) if cores > 1 else rng.uniform(0, 0.3),
        waiting=rng.choice([0.0, 0.0, 0.5]),
        slot_overhead_s=rng.choice([0.001, 0.005, 0.02]),
        knee=rng.choice([64, 128, 10**9]),
        limit_bytes=rng.choice([None, (100 + round(rng.uniform(20, 300))) << 20]),
    )
    return a_space(cores), machine
