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

# A GPU computes while the CPU loads. Without one both want the same cores, which the processor time says; what is left
# to hide is waiting.
ASSUMED_OVERLAP = 1.0


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
    scale: dict[bool, float] = field(default_factory=lambda: {False: 1.0, True: 1.0})
    """Factor on predicted times without and with loader processes: what neither part shows when it runs alone."""

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

    def rate(self, settings: Settings) -> float | None:
        """Return predicted samples per second of one rank in training; None: a part of it was not measured."""
        parts = self._parts(settings)
        if parts is None:
            return None
        longest, shortest = parts
        overlap = ASSUMED_OVERLAP if self.overlap is None else self.overlap
        hidden = overlap if settings.num_workers else 0.0
        time = (longest + (1 - hidden) * shortest) * self.scale[settings.num_workers > 0]
        return self.space.fill(settings.slot_size) / time

    def fit(self, settings: Settings, rate: float) -> None:
        """Fit the overlap to one joint run with loader processes, and the rest that no overlap explains to a factor."""
        parts = self._parts(settings)
        if parts is None or rate <= 0:
            return
        longest, shortest = parts
        time = self.space.fill(settings.slot_size) / rate
        if settings.num_workers:
            hidden = 1 - (time - longest) / shortest
            self.overlap = min(1.0, max(0.0, hidden))
            time_by_overlap = longest + (1 - self.overlap) * shortest
        else:
            time_by_overlap = longest + shortest
        self.scale[settings.num_workers > 0] = time / time_by_overlap

    def memory_line(self, flags: Flags) -> MemoryLine | None:
        """Return memory as a line through the smallest and the largest slot that were measured with these flags.

        With one slot size only, the base is that of other flags: parameters and optimizer are the same.
        """
        points = _memory(self.compute, flags)
        if len(points) >= 2:
            (small, low), (large, high) = min(points.items()), max(points.items())
            slope = max(0.0, (high - low) / (large - small))
            return MemoryLine(low - slope * small, slope)
        others = (self.memory_line(other) for other, _ in self.compute if len(_memory(self.compute, other)) >= 2)
        line = next((each for each in others if each is not None), None)
        if line is None or not points:
            return None
        ((size, taken),) = points.items()
        return MemoryLine(line.base_bytes, max(0.0, (taken - line.base_bytes) / size))

    def _parts(self, settings: Settings) -> tuple[float, float] | None:
        """Return the longer and the shorter part for a sample in seconds, of which the shorter may hide."""
        compute_s = self.compute_s(settings.slot_size, settings.threads, settings.flags)
        loader_s = self.loader_s(settings.num_workers)
        if compute_s is None or loader_s is None:
            return None
        longest = max(compute_s, loader_s)
        if settings.num_workers:
            longest = max(longest, self._processor_s(settings))
        return longest, min(compute_s, loader_s)

    def _processor_s(self, settings: Settings) -> float:
        """Return the processor time of both parts for a sample over the cores of a rank: no overlap beats it."""
        loader = self.loader[settings.num_workers].cpu_s_per_sample
        times = self.compute[settings.flags, settings.threads].values()
        per_sample = [time.cpu_s_per_sample for time in times if time.cpu_s_per_sample is not None]
        if loader is None or not per_sample:
            return 0.0
        return (loader + median(per_sample)) / self.space.cores_per_rank

    def _between(self, slot_size: int, threads: int, flags: Flags) -> ComputeTime:
        """Return the times of a slot that was not measured: by the sizes around it, or as other flags grow with it."""
        measured = self.compute[flags, threads]
        if len(measured) >= 2:
            return _interpolate(measured, slot_size)
        ((size, time),) = measured.items()
        others = [times for times in self.compute.values() if len(times) >= 2 and size in times]
        if not others:
            # Nothing says what a slot costs that does not grow with it.
            extra = time.last_slot_s - time.slot_s
            slot_s = time.slot_s * slot_size / size
            return ComputeTime(slot_s, slot_s + extra)
        reference = max(others, key=len)
        there = reference.get(slot_size) or _interpolate(reference, slot_size)
        slot_s = time.slot_s * there.slot_s / reference[size].slot_s
        return ComputeTime(slot_s, slot_s + (time.last_slot_s - time.slot_s))


def _interpolate(measured: dict[int, ComputeTime], slot_size: int) -> ComputeTime:
    """Return the times on the straight line through the two nearest sizes around, or the two outermost."""
    if slot_size in measured:
        return measured[slot_size]
    sizes = sorted(measured)
    above = next((index for index, size in enumerate(sizes) if size > slot_size), len(sizes) - 1)
    low, high = sizes[max(1, above) - 1], sizes[max(1, above)]
    share = (slot_size - low) / (high - low)
    first, second = measured[low], measured[high]
    slot_s = first.slot_s + share * (second.slot_s - first.slot_s)
    # A line fitted to noise may fall below nothing: no sample is faster than half the best measured one.
    least = min(time.slot_s / size for size, time in measured.items()) * slot_size / 2
    slot_s = max(slot_s, least)
    extra = median(time.last_slot_s - time.slot_s for time in (first, second))
    return ComputeTime(slot_s, slot_s + max(0.0, extra))


def _memory(compute: dict[tuple[Flags, int], dict[int, ComputeTime]], flags: Flags) -> dict[int, int]:
    found: dict[int, int] = {}
    for (measured_flags, _), times in compute.items():
        if measured_flags == flags:
            for size, time in times.items():
                if time.memory_bytes is not None:
                    found[size] = max(found.get(size, 0), time.memory_bytes)
    return found
