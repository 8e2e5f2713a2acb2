"""A machine that is not there: a Probe whose times follow from a few numbers, with a clock of its own.

What it does is known, so the best configuration is. It is not what the predictor believes: windows are noisy and drift,
processes disturb each other, batches have a knee and a cliff, memory fills up a little faster than a line, and steps
that nearly fill it slow down.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from contracts.artifacts import Flags, Settings
from contracts.config import RunConfig
from trainer.profiling.measure import ComputeTime, Device, Failed, JointRate, LoaderRate
from trainer.profiling.space import Space, make_space

# Seconds, as the real probe takes on two cores: what begins a measurement, one more loader process, a window
# end to end, and the windows of a part.
START_S = 0.3
WORKER_S = 0.08
WINDOW_S = 0.5
LOADER_S = 0.75
# Until memory has run out.
FAILING_S = 0.3
COMPUTE_S = 0.85

Failing = Callable[[str, Settings], Failed | None]
"""Says what fails: of `load`, `compute` or `run`, with the settings as far as they are known."""


@dataclass
class Machine:
    """What the simulated machine is like."""

    sample_s: float = 0.002
    """Seconds that steps take for a sample, at the best slot size and one thread."""
    loader_ratio: float = 1.0
    """Seconds that one process takes to load a sample, over sample_s."""
    waiting: float = 0.0
    """Share of loading that waits for a disk or a bucket, without a core."""
    cores: int = 4
    overlap: float = 0.8
    """Share of the shorter part that hides, with loader processes."""
    slot_overhead_s: float = 0.005
    update_s: float = 0.01
    knee: int = 10**9
    """Slot size from which on samples take longer, as out of a cache."""
    knee_factor: float = 1.3
    contention: float = 0.03
    """What each loader process adds to the time of a step, and each other rank's: memory bandwidth, caches."""
    thread_efficiency: float = 0.85
    layout_factor: float = 1.0
    """Time of steps with channels last, over that without."""
    precision_factor: float = 1.0
    """Time of steps in bf16, over that in fp32."""
    recompute_factor: float = 1.3
    base_bytes: int = 100 << 20
    sample_bytes: int = 1 << 20
    limit_bytes: int | None = None
    noise: float = 0.03
    """Spread of a window."""
    drift: float = 0.05
    """How far the machine's speed wanders off, slowly: it falls on all windows of a time."""
    hiccups: float = 0.05
    """Share of windows that something else slows down by a third."""


@dataclass
class Simulator:
    """A Probe. What it was asked for is kept in `calls`."""

    space: Space
    machine: Machine
    seed: int = 0
    failing: Failing = lambda name, settings: None
    timeout_s: float = 120.0
    calls: list[str] = field(default_factory=list)
    clock: float = 1000.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @property
    def memory_limit_bytes(self) -> int | None:
        return self.machine.limit_bytes

    def now(self) -> float:
        return self.clock

    # --- what is true -------------------------------------------------------------------------------------------------

    def true_rate(self, settings: Settings) -> float:
        """Return samples per second of a rank, without noise; 0: it does not fit into memory."""
        machine = self.machine
        if machine.limit_bytes is not None and self.bytes_of(settings) > machine.limit_bytes:
            return 0.0
        slots = self.space.slots_per_rank(settings.slot_size)
        share = self.space.global_batch_size / self.space.ranks
        compute_s = self.step_s(settings, slots) / share
        workers, cores = settings.num_workers, machine.cores
        load_s = machine.sample_s * machine.loader_ratio * slots * settings.slot_size / share
        if not workers:
            return 1 / (compute_s + load_s)
        compute_s *= 1 + machine.contention * workers
        parallel_s = load_s * 1.05 / self._speed_of(workers, busy=settings.threads)
        processor_s = (compute_s * settings.threads + load_s * 1.05 * (1 - machine.waiting)) / cores
        # A short queue runs dry now and then.
        hidden = machine.overlap * (1 - 0.5 / (workers * settings.prefetch_factor) ** 2)
        longest = max(compute_s, parallel_s, processor_s)
        return 1 / (longest + (1 - hidden) * min(compute_s, parallel_s))

    def step_s(self, settings: Settings, slots: int) -> float:
        return (slots - 1) * self.slot_s(settings) + self.slot_s(settings) + self.machine.update_s

    def slot_s(self, settings: Settings) -> float:
        machine, size, flags = self.machine, settings.slot_size, settings.flags
        sample_s = machine.sample_s / settings.threads**machine.thread_efficiency
        if size >= machine.knee:
            sample_s *= machine.knee_factor
        if flags.channels_last:
            sample_s *= machine.layout_factor
        if flags.precision == "bf16":
            sample_s *= machine.precision_factor
        if flags.activation_checkpointing != "none":
            sample_s *= machine.recompute_factor
        if machine.limit_bytes is not None and self.bytes_of(settings) > 0.97 * machine.limit_bytes:
            # The allocator gives back and asks again, step for step.
            sample_s *= 1.5
        return machine.slot_overhead_s + size * sample_s

    def bytes_of(self, settings: Settings) -> int:
        machine = self.machine
        kept = {"none": 1.0, "whole": 0.3}[settings.flags.activation_checkpointing]
        grown = machine.sample_bytes * kept * settings.slot_size
        return int(machine.base_bytes + grown * (1 + 0.0001 * settings.slot_size))

    def best(self) -> tuple[float, Settings]:
        """Return the best of the grid."""
        return max(((self.true_rate(each), each) for each in self.space.combinations()), key=lambda found: found[0])

    def _speed_of(self, workers: int, *, busy: int) -> float:
        """Return how many processes' worth of samples loader processes bring, on the cores that are left."""
        machine = self.machine
        working = workers * (1 - machine.waiting)
        free = max(0.5, machine.cores - 0.5 * busy)
        slowed = max(1.0, working / free)
        return workers / slowed * 0.97 ** (workers - 1)

    # --- what is measured ---------------------------------------------------------------------------------------------

    def load(self, settings: Settings) -> LoaderRate | Failed:
        num_workers = settings.num_workers
        self.calls.append(f"load {num_workers}")
        if failed := self._fails("load", settings):
            return failed
        self._pass(START_S + WORKER_S * num_workers + LOADER_S)
        one_s = self.machine.sample_s * self.machine.loader_ratio
        speed = self._speed_of(num_workers, busy=0) / 1.05 if num_workers else 1.0
        windows = tuple(speed / one_s * self._luck() for _ in range(3))
        cpu_s = one_s * (1 - self.machine.waiting) * (1.05 if num_workers else 1.0) * self._luck()
        return LoaderRate(windows, cpu_s)

    def compute(self, settings: Settings) -> ComputeTime | Failed:
        slot_size, threads = settings.slot_size, settings.threads
        self.calls.append(f"compute {slot_size} {threads} {_short(settings.flags)}")
        if failed := self._fails("compute", settings):
            return failed
        slot_s = self.slot_s(settings)
        self._pass(START_S + max(COMPUTE_S, 4 * slot_s))
        slow = 1 / median(self._luck() for _ in range(3))
        cpu_s = slot_s / slot_size * threads * slow
        return ComputeTime(slot_s * slow, (slot_s + self.machine.update_s) * slow, self.bytes_of(settings), cpu_s)

    def run(self, settings: Sequence[Settings], *, rounds: int) -> list[JointRate | Failed]:
        kind = "run" if len(settings) == 1 else "turn"
        self.calls.append(f"{kind} {' '.join(f'{each.slot_size}/{each.num_workers}' for each in settings)} x{rounds}")
        # A single one starts once, several as if each window had a start of its own.
        starts = rounds if len(settings) > 1 else 1
        rates: list[list[float]] = [[] for _ in settings]
        failed: dict[int, Failed] = {}
        for _ in range(starts):
            for index, each in enumerate(settings):
                if index in failed:
                    continue
                answer = self._joint(each, rounds // starts)
                if isinstance(answer, Failed):
                    failed[index] = answer
                else:
                    rates[index] += answer.windows
        return [
            why
            if (why := failed.get(index)) is not None and not (why.is_cut_off and rates[index])
            else JointRate(tuple(rates[index]), self._waiting(each))
            for index, each in enumerate(settings)
        ]

    def _joint(self, settings: Settings, windows: int) -> JointRate | Failed:
        if failed := self._fails("run", settings):
            return failed
        self._pass(self.joint_s(settings, windows))
        rate = self.true_rate(settings)
        return JointRate(tuple(rate * self._luck() for _ in range(windows)), self._waiting(settings))

    def joint_s(self, settings: Settings, windows: int) -> float:
        """Return what measuring a configuration end to end takes, in seconds."""
        rate = self.true_rate(settings)
        if not rate:
            return START_S + FAILING_S
        step_s = self.space.global_batch_size / self.space.ranks / rate
        # At least one step a window, and two before the first.
        return START_S + WORKER_S * settings.num_workers + 2 * step_s + windows * max(WINDOW_S, step_s)

    def _waiting(self, settings: Settings) -> float:
        slots = self.space.slots_per_rank(settings.slot_size)
        share = self.space.global_batch_size / self.space.ranks
        return max(0.0, 1 - self.step_s(settings, slots) / share * self.true_rate(settings))

    def _fails(self, name: str, settings: Settings) -> Failed | None:
        failed = self.failing(name, settings)
        limit = self.machine.limit_bytes
        if failed is None and limit is not None and name != "load" and self.bytes_of(settings) > limit:
            failed = Failed("out of memory", f"tried to allocate {self.bytes_of(settings)} bytes of {limit}")
        if failed is not None:
            self._pass(self.timeout_s if failed.outcome == "hung" else START_S + FAILING_S)
            if failed.outcome in ("crashed", "hung"):
                # Processes that are replaced import torch again.
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


def _short(flags: Flags) -> str:
    return f"{flags.precision}{' cl' if flags.channels_last else ''} {flags.activation_checkpointing}"


def a_space(cores: int = 4, **sections: Any) -> Space:
    """Return slot sizes 8 to 256 by worker counts by both memory layouts: 36 points and more."""
    given: dict[str, Any] = {
        "train": {"global_batch_size": 512, "channels_last": "auto"},
        "data": {"prefetch_factor": 2},
        "resources": {"threads": cores},
        "profile": {
            "slot_sizes": [8, 16, 32, 64, 128, 256],
            "num_workers": [each for each in (0, 1, 2, 4, 8) if each <= max(2, cores)],
        },
    }
    for name, section in sections.items():
        given[name] = {**given.get(name, {}), **section}
    space = make_space(
        RunConfig.model_validate(given),
        ranks=2,
        cores_per_rank=cores,
        device=Device("cpu", "simulated", has_bf16=False),
    )
    # Of what is set the layout alone is measured beside: each measurement here draws its noise from one sequence.
    beside = tuple(flags for flags in space.measured_flags if flags.activation_checkpointing == "none")
    return replace(space, measured_flags=beside)


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
        layout_factor=rng.choice([0.7, 0.9, 1.1]),
        limit_bytes=rng.choice([None, (100 + round(rng.uniform(20, 300))) << 20]),
    )
    return a_space(cores), machine


def settings_of(row: Settings) -> Settings:
    """Return the settings of a row or a choice."""
    return Settings.model_validate({name: getattr(row, name) for name in Settings.model_fields})
