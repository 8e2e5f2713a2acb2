"""The parts of a step, measured apart: the loader by worker count, the steps by slot size, threads and flags, memory.

Each measurement has to be worth its time: it is left out where even the most that it could find would not change the
rate of a whole step by TOLERANCE.
"""

from __future__ import annotations

import itertools

from contracts.artifacts import Flags, MemoryModel
from trainer.profiling.ledger import Ledger
from trainer.profiling.measure import Failed
from trainer.profiling.pairs import TOLERANCE
from trainer.profiling.predict import Predictor

# Share of the budget that measuring the parts may take: what is predicted has to be measured end to end as well.
PARTS_SHARE = 0.5
# Loader processes are doubled until they bring less than this.
WORKERS_GAIN = 0.05
# A loader alone that takes this share of the time of the steps keeps up with them: more processes cannot help.
KEEPS_UP = 0.75
# The loader's cost for a sample hardly depends on the slot: the smallest slot that is not all overhead fills, and
# drains, the queue of its processes soonest.
LOADER_SLOT = 16
# Share of a GPU's memory that is planned with: allocations of an epoch are not all alike, and fragment it.
GPU_MEMORY_SHARE = 0.92
# Slots after the predicted largest one that are tried where that one does not fit after all.
MEMORY_TRIES = 3
# Slot sizes that are measured between others, where steps take at least this share of the time: the line through two
# sizes does not show what lies between them.
REFINEMENTS = 2
REFINE_SHARE = 0.3
# Time of a sample at the nearer end of such a gap, over the least: beside what is worse lies nothing better.
REFINE_WITHIN = 1.2
# Threads are halved until steps are slower than this share of the fastest: cores left to the loader cannot make up.
THREADS_FLOOR = 0.6


class Parts:
    """Measures the parts into a predictor, and knows what fits.

    Args:
        ledger: What measures.
        predictor: Takes in what was measured.
    """

    def __init__(self, ledger: Ledger, predictor: Predictor) -> None:
        self.space, self.ledger, self.predictor = ledger.space, ledger, predictor
        space = ledger.space
        self.flags, self.threads = space.flags[0], space.usual_threads
        self.slot_sizes = list(space.slot_sizes)
        """Those of the space, and the largest that fits where it may be taken."""
        share = GPU_MEMORY_SHARE if space.device.kind == "cuda" else 1.0
        limit = ledger.probe.memory_limit_bytes
        self.limit_bytes = None if limit is None else int(share * limit)
        """What a rank's memory is planned up to."""
        self.notes: list[str] = []
        """Why something was not measured."""
        self._too_large: dict[Flags, int] = {}
        """Smallest slot size that did not fit, by flags."""
        self._not_compiled: set[tuple[Flags, int]] = set()
        """Flags with torch.compile, and slot sizes, of steps that failed for another reason than memory."""
        self._failed: Failed | None = None
        """The last failure of steps."""
        self._middle: int | None = None
        """The slot size at which flags and threads are compared."""
        self.share = PARTS_SHARE
        """Of the budget, in which a measurement has to end."""

    @property
    def _rates(self) -> dict[tuple[Flags, int, int], float]:
        """Of steps alone, by flags, threads and slot size."""
        rows = self.ledger.compute
        return {(row.flags, row.threads, row.slot_size): row.samples_per_s for row in rows if row.samples_per_s}

    def measure(self) -> None:
        """Measure what is worth it, while the budget's share for it lasts."""
        self._first_sizes()
        self._first_loader()
        if self._middle is not None:
            self._flag_pass()
            self._larger_slots(self.flags)
            self._refine(self.flags)
            self.spare_memory([flags for flags in self.space.flags if self.space.recomputes(flags)])
        self.more_workers()

    def fits(self, slot_size: int, flags: Flags) -> bool:
        """Whether nothing says that a slot of this size does not work."""
        if (flags, slot_size) in self._not_compiled:
            return False
        # Layouts take the same memory, and compilation hardly less: what did not fit with one does not with the other.
        alike = {name: getattr(flags, name) for name in ("precision", "activation_checkpointing")}
        for known, size in self._too_large.items():
            if slot_size >= size and all(getattr(known, name) == value for name, value in alike.items()):
                return False
        if (flags, slot_size) in {(known, size) for known, _, size in self._rates}:
            return True
        line = self.predictor.memory_line(flags)
        return line is None or self.limit_bytes is None or line.bytes_of(slot_size) <= self.limit_bytes

    def too_large(self, slot_size: int, flags: Flags) -> None:
        """Take in that a slot of this size did not fit."""
        self._too_large[flags] = min(slot_size, self._too_large.get(flags, slot_size))

    def memory(self) -> list[MemoryModel]:
        """Return the lines of memory that were found."""
        models = []
        for flags in dict.fromkeys(known for known, _ in self.predictor.compute):
            line = self.predictor.memory_line(flags)
            # Of one point the slope holds what the flags take by themselves: good enough to try a size, not to show.
            if line is not None and len(self.predictor.memory_bytes(flags)) >= 2:
                limit = self.limit_bytes
                models.append(
                    MemoryModel(
                        flags=flags,
                        base_bytes=round(line.base_bytes),
                        bytes_per_sample=line.bytes_per_sample,
                        limit_bytes=limit,
                        largest_slot_size=None if limit is None else line.largest(limit),
                    )
                )
        return models

    def _first_sizes(self) -> None:
        """Measure two slot sizes: what a slot costs by itself, what a sample costs, and the line of memory."""
        self._middle = self._smallest_that_fits()
        if self._middle is None:
            return
        middle = self.slot_sizes[len(self.slot_sizes) // 2]
        while middle > self._middle:
            if self._steps(middle, self.threads, self.flags) is not None:
                self._middle = middle
                return
            # Between what works and what does not.
            smaller = [size for size in self.slot_sizes if self._middle < size < middle]
            if not smaller or not self.ledger.allows("compute", share=self.share):
                return
            middle = smaller[len(smaller) // 2]

    def _smallest_that_fits(self) -> int | None:
        """Return the smallest slot size that can be measured, with activation checkpointing where it needs it."""
        kinds = [self.flags, *(flags for flags in self.space.flags if self.space.recomputes(flags))]
        for flags in kinds:
            size = self.slot_sizes[0]
            while True:
                if self._steps(size, self.threads, flags) is not None:
                    if size not in self.slot_sizes:
                        self.slot_sizes.insert(0, size)
                    self.flags = flags
                    return size
                if self._failed is None or self._failed.outcome != "out of memory":
                    return None
                if not self.space.finds_slot_sizes or size <= self.space.smallest_slot:
                    break
                size = max(self.space.smallest_slot, -(-size // 2))
        return None

    def _first_loader(self) -> None:
        for num_workers in self.space.num_workers:
            if self._load(num_workers):
                return

    def more_workers(self) -> None:
        """Double the loader processes while that can make a step faster; more may, once the overlap is known."""
        tried = {row.num_workers for row in self.ledger.loader}
        for num_workers in (each for each in self.space.num_workers if each not in tried):
            if self._workers_are_enough():
                return
            measured = [
                loader_s for each in self.predictor.loader if each and (loader_s := self.predictor.loader_s(each))
            ]
            if self._load(num_workers) and measured:
                now = self.predictor.loader_s(num_workers)
                if now is not None and min(measured) / now < 1 + WORKERS_GAIN:
                    return

    def _workers_are_enough(self) -> bool:
        """Whether twice as many could not make a step faster by TOLERANCE."""
        compute_s = self._compute_s()
        if compute_s is None or self._middle is None:
            return False
        hidden = self.predictor.overlap
        for workers in self.predictor.loader:
            loader_s = self.predictor.loader_s(workers)
            if loader_s is None:
                continue
            floor_s = max(compute_s, self.predictor.processor_s(self._middle, workers, self.threads, self.flags))
            if workers == 0:
                # As if all of loading hid behind the steps.
                now, then = compute_s + loader_s, floor_s
            elif hidden is None:
                now, then = max(floor_s, loader_s / KEEPS_UP), floor_s
            else:
                now, then = (
                    max(floor_s, each) + (1 - hidden) * min(compute_s, each) for each in (loader_s, loader_s / 2)
                )
            if then > (1 - TOLERANCE) * now:
                if workers == 0:
                    self.notes.append(f"loader processes could save {max(0.0, 1 - then / now):.0%} of a step at most")
                return True
        return False

    def _flag_pass(self) -> None:
        """Change one flag at a time, then the threads, which steps bear fewer of: what they leave is the loader's."""
        for knob in ("precision", "channels_last", "compile"):
            values = dict.fromkeys(getattr(flags, knob) for flags in self.space.flags)
            changed = [self.flags.model_copy(update={knob: value}) for value in values]
            self._climb([(self.threads, flags) for flags in changed if flags in self.space.flags])
        self._climb([(threads, self.flags) for threads in reversed(self.space.threads)], THREADS_FLOOR)

    def _climb(self, tried: list[tuple[int, Flags]], floor: float = 0.0) -> None:
        """Measure steps with other threads and flags, until they are below a share of the fastest; keep what is faster.

        Faster is by TOLERANCE.
        """
        assert self._middle is not None
        best, chosen = self._rate(self._middle, self.flags) or 0.0, (self.threads, self.flags)
        for threads, flags in tried:
            if (threads, flags) == (self.threads, self.flags):
                continue
            if not self.steps_matter():
                break
            rate = self._steps(self._middle, threads, flags)
            if rate is not None and rate > (1 + TOLERANCE) * best:
                best, chosen = rate, (threads, flags)
            if rate is not None and rate < floor * best:
                break
        self.threads, self.flags = chosen

    def _larger_slots(self, flags: Flags) -> None:
        """Measure the largest slot that fits, where larger ones are faster."""
        assert self._middle is not None
        largest = self._largest(flags)
        if largest is None or largest <= self._middle or not self._grows(flags):
            return
        for _ in range(MEMORY_TRIES):
            rate = self._steps(largest, self.threads, flags)
            if rate is not None or self.fits(largest, flags):
                break
            smaller = self._largest(flags)
            if smaller is None or smaller <= self._middle:
                return
            largest = smaller

    def _refine(self, flags: Flags) -> None:
        """Measure slot sizes between the fastest ones: what lies between may be faster than both."""
        for _ in range(REFINEMENTS):
            if self._compute_share() < REFINE_SHARE:
                return
            every = {size: self.predictor.compute_s(size, self.threads, flags) for size in self.slot_sizes}
            predicted = {size: time for size, time in every.items() if time is not None and self.fits(size, flags)}
            if not predicted:
                return
            fastest = min(predicted, key=lambda size: predicted[size])
            if (flags, self.threads, fastest) not in self._rates:
                # By how slots grow with other flags.
                self._steps(fastest, self.threads, flags)
                continue
            known = {size for _, _, size in self._rates}
            times = {size: time for size, time in predicted.items() if size in known}
            if len(times) < 2:
                return
            best_s = min(times.values())
            gaps = []
            for low, high in itertools.pairwise(sorted(times)):
                between = [size for size in self.slot_sizes if low < size < high and self.fits(size, flags)]
                ends = sorted([times[low], times[high]])
                if between and ends[0] <= REFINE_WITHIN * best_s:
                    gaps.append((ends, between[len(between) // 2]))
            if not gaps:
                return
            self._steps(min(gaps)[1], self.threads, flags)

    def spare_memory(self, kinds: list[Flags]) -> bool:
        """Measure activation checkpointing, where the slot that would be taken does not fit without."""
        wanted = self.slot_sizes[-1]
        if self._middle is None or not kinds or self.fits(wanted, self.flags) or not self._grows(self.flags):
            return False
        found = False
        for kind in kinds:
            flags = self.flags.model_copy(update={"activation_checkpointing": kind.activation_checkpointing})
            if flags.compile or self._steps(self._middle, self.threads, flags) is None:
                continue
            self._larger_slots(flags)
            found = True
        return found

    def _largest(self, flags: Flags) -> int | None:
        """Return the largest slot that is predicted to fit: of the space, or cut for it."""
        fitting = [size for size in self.slot_sizes if self.fits(size, flags)]
        if self.space.finds_slot_sizes and (not fitting or fitting[-1] < self.slot_sizes[-1]):
            fewest = self.space.slots_per_rank(self.slot_sizes[-1])
            # As few slots as fit, of even size: halving would leave up to half of the memory unused.
            for slots in range(fewest, self.space.slots_per_rank(self.slot_sizes[0]) + 1):
                size = self.space.slot_size_of(slots)
                if size < self.space.smallest_slot:
                    break
                if self.fits(size, flags):
                    if size not in self.slot_sizes:
                        self.slot_sizes = sorted([*self.slot_sizes, size])
                    return size
        return fitting[-1] if fitting else None

    def _grows(self, flags: Flags) -> bool:
        """Whether larger slots have been faster, by as much as would show in a whole step."""
        known = sorted((size, rate) for (each, _, size), rate in self._rates.items() if each == flags)
        if len(known) < 2:
            known = sorted((size, rate) for (_, _, size), rate in self._rates.items())
        if len(known) < 2:
            return self.steps_matter()
        gain = max(rate for _, rate in known[1:]) / known[0][1] - 1
        return gain * self._compute_share() >= TOLERANCE

    def steps_matter(self) -> bool:
        """Whether faster steps could make a whole step faster by TOLERANCE."""
        return self._compute_share() > TOLERANCE

    def _compute_share(self) -> float:
        """Return the share of the steps in a step that loads and computes one after the other."""
        compute_s = self._compute_s()
        loader = [each for each in map(self.predictor.loader_s, self.predictor.loader) if each is not None]
        if compute_s is None or not loader:
            return 1.0
        return compute_s / (compute_s + min(loader) / max(1, self.space.num_workers[-1]))

    def _compute_s(self) -> float | None:
        return None if self._middle is None else self.predictor.compute_s(self._middle, self.threads, self.flags)

    def _rate(self, slot_size: int, flags: Flags) -> float | None:
        return self._rates.get((flags, self.threads, slot_size))

    def best(self, flags: Flags) -> tuple[float, int]:
        """Return the most samples per second of steps alone with these flags, and the slot size; 0: not measured."""
        return max(((rate, size) for (known, _, size), rate in self._rates.items() if known == flags), default=(0.0, 0))

    def _steps(self, slot_size: int, threads: int, flags: Flags) -> float | None:
        """Measure steps alone; return samples per second of a rank, None: not measured."""
        if (flags, threads, slot_size) in self._rates:
            return self._rates[flags, threads, slot_size]
        if not self.ledger.allows("compute", share=self.share):
            return None
        found = self.ledger.steps(self.space.settings(slot_size, 0, threads=threads, flags=flags))
        if isinstance(found, Failed):
            self._failed = found
            if found.is_cut_off:
                return None
            if found.outcome == "out of memory":
                self.too_large(slot_size, flags)
            elif flags.compile:
                # It may be the compiler's fault at this size: other flags and other sizes are measured all the same.
                self._not_compiled.add((flags, slot_size))
            elif any(size < slot_size for _, _, size in self._rates):
                # Where a smaller one works, it is the size, whatever it does.
                self.too_large(slot_size, flags)
            return None
        self.predictor.add_compute(slot_size, threads, flags, found)
        return self._rates[flags, threads, slot_size]

    def _load(self, num_workers: int) -> bool:
        if not self.ledger.allows("load", share=self.share):
            return False
        slot_size = next((size for size in self.slot_sizes if size >= LOADER_SLOT), self.slot_sizes[-1])
        found = self.ledger.load(self.space.settings(slot_size, num_workers, threads=self.threads, flags=self.flags))
        if found is not None:
            self.predictor.add_loader(num_workers, found)
        return found is not None
