"""The rate of a whole configuration, predicted from its parts: the loader alone, the steps alone, one run of both.

The form and the fit of one factor from one joint run are of this project's own measurements: without overlap the sum of
both parts was within 16 % on a machine whose cores they share, the longer of both 75 % off.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from contracts.artifacts import Flags, Settings
from trainer.profiling.measure import ComputeTime, LoaderRate
from trainer.profiling.space import Space

# Share of the shorter part that is taken to hide behind the longer until a joint run has said: enough for loader
# processes to be worth that run, and less than all, which would make slot sizes look alike that are not.
ASSUMED_OVERLAP = 0.8


@dataclass(frozen=True)
class MemoryLine:
    """Memory of a rank: base_bytes + bytes_per_sample x slot size."""

    base_bytes: float
    bytes_per_sample: float

    def bytes_of(self, slot_size: int) -> float:
        """Return what a slot of this size takes."""
        return self.base_bytes + self.bytes_per_sample * slot_size

    def largest(self, limit_bytes: float) -> int | None:
        """Return the largest slot size that fits; None: memory does not grow with it."""
        if self.bytes_per_sample <= 0:
            return None
        return max(0, int((limit_bytes - self.base_bytes) // self.bytes_per_sample))


@dataclass
class Predictor:
    """Takes in what was measured of the parts, and predicts wholes. Rates are of one rank, in samples per second."""

    space: Space
    loader: dict[int, LoaderRate] = field(default_factory=dict)
    """By the number of loader processes."""
    compute: dict[tuple[Flags, int], dict[int, ComputeTime]] = field(default_factory=dict)
    """By flags and threads, then by slot size."""
    overlap: float | None = None
    """Share of the shorter part that hides behind the longer; None: not fitted."""
    contention: float = 0.0
    """What each loader process adds to the time of a whole, as a share of it: what no overlap explains."""

    def add_loader(self, num_workers: int, rate: LoaderRate) -> None:
        """Take in the input pipeline alone."""
        self.loader[num_workers] = rate

    def add_compute(self, slot_size: int, threads: int, flags: Flags, time: ComputeTime) -> None:
        """Take in steps alone."""
        self.compute.setdefault((flags, threads), {})[slot_size] = time

    def loader_s(self, num_workers: int) -> float | None:
        """Return the loader's time for a sample, in seconds; None: not measured, or no sample came."""
        rate = self.loader.get(num_workers)
        if rate is None:
            return None
        samples_per_s = median(rate.windows)
        return 1 / samples_per_s if samples_per_s > 0 else None

    def compute_s(self, slot_size: int, threads: int, flags: Flags) -> float | None:
        """Return the time of a step for a sample of it, in seconds; None: these flags and threads were not measured."""
        measured = self.compute.get((flags, threads))
        if not measured:
            return None
        time = measured.get(slot_size) or self._between(slot_size, threads, flags)
        slots = self.space.slots_per_rank(slot_size)
        return time.step_s(slots) / (slots * slot_size)

    def rate(self, settings: Settings, *, overlap: float | None = None) -> float | None:
        """Return predicted samples per second of one rank in training; None: a part of it was not measured.

        Args:
            settings: The configuration.
            overlap: Instead of what was fitted.
        """
        parts = self._parts(settings)
        if parts is None:
            return None
        longest, shortest = parts
        if overlap is None:
            overlap = ASSUMED_OVERLAP if self.overlap is None else self.overlap
        hidden = overlap if settings.num_workers else 0.0
        time = (longest + (1 - hidden) * shortest) * (1 + self.contention * settings.num_workers)
        return self.space.fill(settings.slot_size) / time

    def fit(self, settings: Settings, rate: float) -> None:
        """Fit the overlap to one joint run with loader processes.

        What no overlap explains is laid to these processes, in equal shares: they are what was not there when the steps
        ran alone.
        """
        parts = self._parts(settings)
        if parts is None or rate <= 0 or not settings.num_workers:
            return
        longest, shortest = parts
        time = self.space.fill(settings.slot_size) / rate
        self.overlap = min(1.0, max(0.0, 1 - (time - longest) / shortest))
        explained = longest + (1 - self.overlap) * shortest
        self.contention = (time / explained - 1) / settings.num_workers

    def is_measured(self, settings: Settings) -> bool:
        """Whether its own slot size, flags, threads and loader processes were measured apart."""
        sizes = self.compute.get((settings.flags, settings.threads), {})
        return settings.slot_size in sizes and settings.num_workers in self.loader

    def memory_bytes(self, flags: Flags) -> dict[int, int]:
        """Return the most memory that was measured with these flags, by slot size."""
        found: dict[int, int] = {}
        for (known, _), times in self.compute.items():
            for size, time in times.items() if known == flags else ():
                if time.memory_bytes is not None:
                    found[size] = max(found.get(size, 0), time.memory_bytes)
        return found

    def memory_line(self, flags: Flags) -> MemoryLine | None:
        """Return memory as a line through the smallest and the largest slot that were measured with these flags.

        With one slot size only, the base is that of other flags: parameters and optimizer are the same.
        """
        points = self.memory_bytes(flags)
        if len(points) >= 2:
            (small, low), (large, high) = min(points.items()), max(points.items())
            slope = max(0.0, (high - low) / (large - small))
            return MemoryLine(low - slope * small, slope)
        others = (self.memory_line(other) for other, _ in self.compute if len(self.memory_bytes(other)) >= 2)
        line = next((each for each in others if each is not None), None)
        if line is None or not points:
            return None
        ((size, taken),) = points.items()
        return MemoryLine(line.base_bytes, max(0.0, (taken - line.base_bytes) / size))

    def processor_s(self, slot_size: int, num_workers: int, threads: int, flags: Flags) -> float:
        """Return the processor time of both parts for a sample over the cores of a rank; 0: unknown.

        No overlap beats it. That of the steps is taken to be the same share of their time for all slot sizes.
        """
        loader, compute_s = self.loader.get(num_workers), self.compute_s(slot_size, threads, flags)
        if loader is None or loader.cpu_s_per_sample is None or compute_s is None:
            return 0.0
        cores = []
        for size, time in self.compute[flags, threads].items():
            slots = self.space.slots_per_rank(size)
            if time.cpu_s_per_sample is not None:
                cores.append(time.cpu_s_per_sample / (time.step_s(slots) / (slots * size)))
        if not cores:
            return 0.0
        return (loader.cpu_s_per_sample + median(cores) * compute_s) / self.space.cores_per_rank

    def _parts(self, settings: Settings) -> tuple[float, float] | None:
        """Return the longer and the shorter part for a sample in seconds, of which the shorter may hide."""
        slot_size, workers, threads, flags = (
            settings.slot_size,
            settings.num_workers,
            settings.threads,
            settings.flags,
        )
        compute_s, loader_s = self.compute_s(slot_size, threads, flags), self.loader_s(workers)
        if compute_s is None or loader_s is None:
            return None
        longest = max(compute_s, loader_s)
        if workers:
            longest = max(longest, self.processor_s(slot_size, workers, threads, flags))
        return longest, min(compute_s, loader_s)

    def _between(self, slot_size: int, threads: int, flags: Flags) -> ComputeTime:
        """Return the times of a slot that was not measured: by the sizes around it, or as other flags grow with it."""
        measured = self.compute[flags, threads]
        if min(measured) <= slot_size <= max(measured):
            return _interpolate(measured, slot_size)
        nearest = min(measured, key=lambda size: abs(size - slot_size))
        time = measured[nearest]
        for others in self.compute.values():
            if min(others) <= min(slot_size, nearest) and max(slot_size, nearest) <= max(others):
                factor = _interpolate(others, slot_size).slot_s / _interpolate(others, nearest).slot_s
                break
        else:
            # No less than at the nearest: a line through two sizes of which one has a cliff points anywhere.
            factor = slot_size / nearest
        slot_s = time.slot_s * factor
        return ComputeTime(slot_s, slot_s + time.last_slot_s - time.slot_s)


def _interpolate(measured: dict[int, ComputeTime], slot_size: int) -> ComputeTime:
    """Return the times on the straight line through the nearest sizes around."""
    if slot_size in measured:
        return measured[slot_size]
    low = max(size for size in measured if size < slot_size)
    high = min(size for size in measured if size > slot_size)
    share = (slot_size - low) / (high - low)
    first, second = measured[low], measured[high]
    slot_s = first.slot_s + share * (second.slot_s - first.slot_s)
    extra = median(time.last_slot_s - time.slot_s for time in (first, second))
    return ComputeTime(slot_s, slot_s + extra)
