"""Measures inside of one rank: its loader alone, its steps alone, both together.

It trains as training does (trainer/data/training_data.py, trainer/step.py), at a learning rate of 0. Ranks measure at
once, in step with each other wherever training is; what may run out of memory is tried by each rank alone first.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from multiprocessing import active_children
from statistics import median

import torch
import torch.distributed as dist

from contracts.artifacts import Flags, Settings
from contracts.config import RunConfig
from trainer.data.cursor import SlotRequest
from trainer.data.device import DataClock, map_tensors, to_device
from trainer.data.loader import SlotBatch, collate
from trainer.data.training_data import TrainingData
from trainer.launch.choices import BatchLayout
from trainer.model.build import example_inputs
from trainer.model.numerics import Numerics
from trainer.model.signature import Inputs
from trainer.parallel.process_group import Rank
from trainer.profiling.measure import ComputeTime, JointRate, LoaderRate
from trainer.profiling.memory import MemoryGauge
from trainer.profiling.processor import processor_s
from trainer.profiling.steps import Steps, passing
from trainer.step import Stepper
from trainer.tasks.task import Mode

# Windows of the loader alone, and rounds of steps alone; a rate is the median over them.
WINDOWS = 3
# Windows of the parts are shorter than those end to end: they decide which configurations are measured end to end.
PART_OF_WINDOW = 0.5
# Configurations that take turns begin at as many places of an epoch.
PLACES_OF_A_TURN = 8
# Compilations of one network after which torch would go on without compiling, and say nothing (its recompile_limit).
MOST_COMPILED = 8
# Samples that are read for the tensors that stay on the device: enough for the allocator, little to decode.
RESIDENT_SAMPLES = 4
# A slot that is too small for BatchNorm to train on, and large enough to make the optimizer's state.
SMALLEST_SLOT = 2


class Bench:
    """What one rank measures.

    Args:
        feed: The samples; its configuration has epochs without end.
        config: The configuration, with the part of the global batch that this machine has.
        rank: This process among its peers.

    Attributes:
        task: The task.
        unit: What the task counts besides samples; empty: nothing.
        varies: Whether sizes of the network's inputs vary: memory is tried on the longest samples that there may be.
    """

    def __init__(self, feed: TrainingData, config: RunConfig, rank: Rank) -> None:
        self.config, self.rank, self._feed = config, rank, feed
        self.task = feed.task
        self.unit, self.varies = feed.task.unit, bool(feed.task.signature.dimensions)
        self.memory = MemoryGauge(rank.device)
        self.around: Callable[[str], AbstractContextManager[object]] = lambda name: nullcontext()
        # A loader process of shards in a bucket may be held while it has locks that all processes of the machine share.
        self.holds = feed.dataset.reader.cache is None
        self._mode = Mode(training=True, key=(config.run.seed, 0, 0, 0))
        self._steppers: dict[Flags, Stepper] = {}
        self._flags: Flags | None = None
        self._warm: set[tuple[Flags, int]] = set()
        self._resident: dict[int, SlotBatch] = {}
        self._position = 0
        self._turn: dict[int, tuple[Settings, Steps]] = {}
        self._turn_stack = ExitStack()

    # --- the loader alone ---------------------------------------------------------------------------------------------

    def load(self, settings: Settings) -> LoaderRate:
        """Measure samples per second of the loader, while all ranks of this machine load."""
        torch.set_num_threads(settings.threads)
        window_s = self.config.profile.window_s * PART_OF_WINDOW
        with self._slots(settings) as (slots, _):
            # Each loader process makes its first slot before any is there in time.
            for _ in range(settings.num_workers + 1):
                next(slots)
            self._meet()
            rates, used, passed = [], [], 0
            for _ in range(WINDOWS):
                start, spent, samples = time.perf_counter(), processor_s(), 0
                while (wall_s := time.perf_counter() - start) < window_s or not samples:
                    samples += len(next(slots).request.samples)
                    wall_s = time.perf_counter() - start
                rates.append(samples / wall_s)
                used.append((processor_s() - spent) / samples)
                passed += samples
        # What was read is in caches now, and would make the next measurement look fast. The same on all ranks.
        self._advance(round(self._longest(passed) * self.rank.ranks / self.config.train.global_batch_size) + 1)
        return LoaderRate(tuple(rates), median(used))

    # --- steps alone --------------------------------------------------------------------------------------------------

    def fit(self, settings: Settings) -> int | None:
        """Run a slot without its peers, and return the peak of memory in bytes; it may raise what says "out of it".

        Ranks that wait for each other's gradients would wait for one that has run out of memory.
        """
        torch.set_num_threads(settings.threads)
        stepper = self.prepare(settings.flags)
        # What they build together is built.
        self._meet()
        slot = self.batch(settings.slot_size, last=False)
        with self.memory.peak() as peak:
            # With the gradients of the first there, as in every slot but the first.
            for _ in range(2):
                stepper.compute(slot, DataClock(self.rank.device), largest=self.varies)
        stepper.drop_slots()
        return peak.bytes

    def compute(self, settings: Settings) -> ComputeTime:
        """Measure slots in the middle of a step and at its end, on tensors that are on the device already."""
        torch.set_num_threads(settings.threads)
        slot_size = settings.slot_size
        slots = self._slots_per_rank(slot_size)
        self.warm_up(slot_size, settings.flags)
        window_s = self.config.profile.window_s * PART_OF_WINDOW / 2
        middle, last = self.batch(slot_size, last=False), self.batch(slot_size, last=True)
        with self.memory.peak(timed=True) as peak:
            if self.varies:
                self.stepper.compute(last, DataClock(self.rank.device), largest=True)
                self.take_step()
            at_end = self.time(lambda: self._step(last), 1)
            in_middle = self.time(lambda: self.compute_slot(middle), 1) if slots > 1 else at_end
            times_middle, times_last = [], []
            spent, samples = processor_s(), 0
            for _ in range(WINDOWS):
                if slots > 1:
                    number = max(1, round(window_s / in_middle))
                    times_middle.append(self.time(lambda: self.compute_slot(middle), number))
                    samples += number * slot_size
                number = max(1, round(window_s / at_end))
                times_last.append(self.time(lambda: self._step(last), number))
                samples += number * slot_size
            used = (processor_s() - spent) / samples
        last_s = median(times_last)
        # Whoever waits for a GPU spins: that is no work.
        own = used if self.rank.device.type == "cpu" else None
        return ComputeTime(median(times_middle) if times_middle else last_s, last_s, peak.bytes, own)

    def time(self, work: Callable[[], object], number: int) -> float:
        """Return seconds of one of `number` repetitions; the longest of all ranks, so that all go on alike."""
        self.synchronise()
        start = time.perf_counter()
        for _ in range(number):
            work()
        self.synchronise()
        return self._longest((time.perf_counter() - start) / number)

    # --- both together ------------------------------------------------------------------------------------------------

    def open(self, number: int, settings: Settings) -> None:
        """Start a configuration that takes turns with others; until its turn its loader processes are held."""
        steps = self._turn_stack.enter_context(self.steps(settings))
        steps.hold()
        self._turn[number] = settings, steps
        # Whoever comes next must not find in the caches what this one has read.
        self._advance(max(1, self._feed.steps_per_epoch // PLACES_OF_A_TURN))

    def window(self, number: int) -> JointRate:
        """Measure a window of a configuration that was opened; before and after it, it is as if no time passed."""
        settings, steps = self._turn[number]
        torch.set_num_threads(settings.threads)
        self._flags = settings.flags
        steps.go_on()
        # The caches hold what another configuration left.
        steps.take_one()
        found = steps.for_about(self.config.profile.window_s)
        steps.hold()
        waited = min(1.0, found.data.share(found.data.loader_s) / 100)
        return JointRate((found.rate(self.rank.ranks),), waited, found.units_per_sample)

    def close(self) -> None:
        """End all that was opened; of their networks one stays."""
        self._turn.clear()
        self._turn_stack.close()
        self._steppers = {flags: stepper for flags, stepper in self._steppers.items() if flags == self._flags}
        self._warm = {(flags, size) for flags, size in self._warm if flags == self._flags}

    @contextmanager
    def steps(self, settings: Settings) -> Iterator[Steps]:
        """Give steps on a fresh loader, past its start."""
        torch.set_num_threads(settings.threads)
        # Before the loader starts: what it prepares meanwhile would make the first window look fast.
        self.warm_up(settings.slot_size, settings.flags)
        before, start = set(active_children()), self._position
        # Of the rank that has fewest, since all take as many steps.
        slots_of_step = max(1, self.config.train.global_batch_size // settings.slot_size // self.rank.ranks)
        with self._slots(settings) as (slots, clock):
            steps = Steps(self, slots, clock)
            try:
                steps.take_one()
                steps.workers = [process for process in active_children() if process not in before]
                # Each loader process makes its first slot before any is there in time.
                for _ in range(settings.num_workers // slots_of_step):
                    steps.take_one()
                # Loader processes deliver in bursts: of as many slots as there are processes.
                steps.time(max(1, settings.num_workers // slots_of_step))
                yield steps
            finally:
                steps.end_workers(gently=self.rank.device.type == "cuda")
            # The same on all ranks: they take their steps together.
            self._position = start + steps.samples

    @contextmanager
    def _slots(self, settings: Settings) -> Iterator[tuple[Iterator[SlotBatch], DataClock]]:
        """Give a fresh loader's slots, as training reads them; its processes end with the block."""
        cut = BatchLayout(settings.slot_size, settings.num_workers, "", settings.prefetch_factor)
        self._feed.choose_order(cut, None)
        ahead = self._feed.prefetcher(self._position)
        loaded = self._feed.slots(self._position, ahead)
        clock = DataClock(self.rank.device, waits=True)
        try:
            # The clock within the copying: there the host may wait for the GPU's computing, which is no wait for data.
            timed = clock.slots(self._annotated(loaded))
            yield passing(to_device(timed, self.rank.device, clock), self._position, ahead), clock
        finally:
            # The processes of a loader end with its iterator: two sets of them would disturb what comes next.
            if isinstance(loaded, Generator):
                loaded.close()
            ahead.close()
            gc.collect()

    def _annotated(self, slots: Iterator[SlotBatch]) -> Iterator[SlotBatch]:
        """Pass slots on, each asked for within a part of its own of the step."""
        while True:
            with self.around("loader"):
                slot = next(slots, None)
            if slot is None:
                return
            yield slot

    def _advance(self, steps: int) -> None:
        """Go on by a number of optimizer steps, to the beginning of one."""
        batch, samples = self.config.train.global_batch_size, self._feed.samples
        for _ in range(steps):
            self._position += min(batch, samples - self._position % samples)

    def _meet(self) -> None:
        if self.rank.ranks > 1:
            dist.barrier()

    # --- what steps are made of ---------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Let go of networks and all that was made for them: an error has left them in some state."""
        self.close()
        if self._flags is not None and self._flags.compile:
            torch._dynamo.reset()
        self._steppers.clear()
        self._flags = None
        self._warm.clear()
        self._resident.clear()
        gc.collect()
        if self.rank.device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def stepper(self) -> Stepper:
        """The network that is measured."""
        assert self._flags is not None
        return self._steppers[self._flags]

    def prepare(self, flags: Flags) -> Stepper:
        """Return the network with these flags, built if it is not there, and with its optimizer's state."""
        if flags not in self._steppers:
            if not self._turn:
                # One at a time: more than one may not fit.
                self.forget()
            numerics = Numerics.of(self.config.train, flags)
            stepper = Stepper(self.config, self._feed.task, self.rank, numerics, lambda message: None)
            stepper.model.train()
            self._steppers[flags], self._flags = stepper, flags
            if not flags.compile:
                # It would compile for this size too, which nobody trains with.
                stepper.warm_up(SMALLEST_SLOT)
                self._step(self.batch(SMALLEST_SLOT, last=True))
        self._flags = flags
        return self._steppers[flags]

    def warm_up(self, slot_size: int, flags: Flags) -> None:
        """Allocate and compile what steps at this size need."""
        stepper = self.prepare(flags)
        if (flags, slot_size) in self._warm:
            return
        if flags.compile:
            compiled = {size for known, size in self._warm if known == flags}
            if len(compiled) >= MOST_COMPILED - 1:
                torch._dynamo.reset()
                self._warm -= {(flags, size) for size in compiled}
            stepper.warm_up(slot_size)
        if self._slots_per_rank(slot_size) > 1:
            self.compute_slot(self.batch(slot_size, last=False))
        self._step(self.batch(slot_size, last=True))
        self._warm.add((flags, slot_size))

    def _step(self, slot: SlotBatch) -> None:
        self.compute_slot(slot)
        self.take_step()

    def compute_slot(self, slot: SlotBatch, clock: DataClock | None = None) -> None:
        """Run a slot forward and backward."""
        self.stepper.compute(slot, clock or DataClock(self.rank.device))

    def take_step(self) -> None:
        """Update with the gradients of the slots since the last one."""
        # Parameters stay as they are, so that nothing diverges on tensors that are the same in every step.
        self.stepper.update(0, 0.0)

    def batch(self, slot_size: int, *, last: bool) -> SlotBatch:
        """Return a slot of real samples on the device, a few of them over and over."""
        if slot_size not in self._resident:
            # Two sizes at a time: of the largest one alone more than one may not fit.
            self._resident = {slot_size: self._make_batch(slot_size)}
        batch = self._resident[slot_size]
        return replace(batch, request=replace(batch.request, last_of_step=last))

    def _make_batch(self, slot_size: int) -> SlotBatch:
        dataset = self._feed.dataset
        # A slot is as long as its longest sample: of a few it would be shorter than in training.
        most = slot_size if self.varies else RESIDENT_SAMPLES
        places = tuple(range(min(most, slot_size, len(dataset.reader))))
        prepared, _ = dataset.prepare(SlotRequest.of(places))
        rows = [row % len(places) for row in range(slot_size)]
        batch = collate(dataset.task, [prepared[row] for row in rows], self._mode)
        request = replace(SlotRequest.of(places), samples=tuple(rows), batch_samples=slot_size * self.rank.ranks)
        moved: SlotBatch = map_tensors(SlotBatch(request, batch), lambda tensor: tensor.to(self.rank.device))
        return moved

    def typical_inputs(self, slot_size: int) -> tuple[Inputs, int]:
        """Return what the network takes, and of how many samples: of the example, or where its sizes vary of a slot.

        The example is as long as what engines are tuned for; texts in the shards may have a tenth of it.
        """
        if not self.varies:
            return example_inputs(self.task, SMALLEST_SLOT, self.rank.device), SMALLEST_SLOT
        batch = self.task.to_model(self.batch(slot_size, last=False).batch, self._mode)
        return tuple(batch[name] for name in self.task.signature.inputs), slot_size

    def _slots_per_rank(self, slot_size: int) -> int:
        return BatchLayout(slot_size, 0, "").slots_per_rank(self.config.train.global_batch_size, self.rank.ranks)

    def synchronise(self) -> None:
        """Wait for the device."""
        if self.rank.device.type == "cuda":
            torch.cuda.synchronize(self.rank.device)

    def _longest(self, seconds: float) -> float:
        if self.rank.ranks == 1:
            return seconds
        value = torch.tensor(seconds, dtype=torch.float64, device=self.rank.device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return float(value)
