"""Measurements of one rank: its loader alone, its steps alone, both together, and its peak memory.

Steps are those of training (trainer/data/training_data.py, trainer/step.py), at a learning rate of 0. Methods marked
"together" are called by all ranks in the same order; each rank calls the others independently.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from contracts.artifacts import Settings
from contracts.config import RunConfig
from trainer.data.cursor import SlotRequest
from trainer.data.device import DataClock, map_tensors, to_device
from trainer.data.loader import SlotBatch, collate
from trainer.data.shard_cache import Prefetcher
from trainer.data.training_data import TrainingData
from trainer.launch.choices import BatchLayout, choose_batch_layout
from trainer.model.build import construct_model, example_inputs
from trainer.model.numerics import Numerics
from trainer.parallel.process_group import Rank
from trainer.parallel.spread import runs_in_lockstep
from trainer.profiling.flops import count_flops
from trainer.profiling.runner import Counters
from trainer.profiling.search import ComputeTime, JointRate, LoaderRate
from trainer.profiling.trace import LOADER, SLOT, UPDATE, annotate, record
from trainer.step import Stepper
from trainer.tasks.task import Mode

# Windows of the loader alone and of steps alone; they are shorter than those end to end, which determine the choice.
WINDOWS, PART_OF_WINDOW = 3, 0.5
# Measurements start at this many places of an epoch in turn, so that caches do not hold their samples.
PLACES = 8
# Compiled sizes of a network: torch silently stops compiling at its default limit of 8.
MAX_COMPILED = 64
# Different samples in the resident batch; few, to decode quickly.
RESIDENT_SAMPLES = 4
# Smallest slot that BatchNorm accepts; it creates the optimizer's state.
SMALLEST_SLOT = 2
# Optimizer steps of a trace, and their slots at most: a viewer opens no larger trace.
TRACED_STEPS, MAX_TRACED_SLOTS = 4, 32


class Bench:
    """Measurements of one rank.

    Args:
        data: The samples, with practically unlimited epochs.
        config: The configuration, with the measured machines' part of the global batch.
        rank: This process among its peers.

    Attributes:
        task: The task.
        varies: Whether input sizes of the network vary; memory is then tried with the largest inputs.
        in_lockstep: Whether a forward pass communicates, so that all ranks must run it together.
    """

    def __init__(self, data: TrainingData, config: RunConfig, rank: Rank) -> None:
        self.config, self.rank, self._data = config, rank, data
        self.task, self.varies = data.task, bool(data.task.signature.dimensions)
        self.in_lockstep = runs_in_lockstep(config.parallel)
        self.numerics = Numerics.of(config.train)
        layout = choose_batch_layout(config, ranks=rank.ranks, profile=None, recorded=None)
        self._prefetch_factor = layout.prefetch_factor
        self._mode = Mode(training=True, key=(config.run.seed, 0, 0, 0))
        self._stepper: Stepper | None = None
        self._warm: set[int] = set()
        self._step_s: dict[Settings, float] = {}
        self._resident: SlotBatch | None = None
        self._position = 0

    # --- the loader alone ---------------------------------------------------------------------------------------------

    def load(self, settings: Settings) -> LoaderRate:
        """Measure samples per second of this rank's loader, at the same time as the other ranks."""
        window_s = self.config.profile.window_s * PART_OF_WINDOW
        rates = []
        with self._slots(settings) as (slots, _):
            # Discards the first slot of each loader process.
            for _ in range(settings.num_workers + 1):
                next(slots)
            for _ in range(WINDOWS):
                start, samples, wall_s = time.perf_counter(), 0, 0.0
                while wall_s < window_s:
                    samples += len(next(slots).request.samples)
                    wall_s = time.perf_counter() - start
                rates.append(samples / wall_s)
        return LoaderRate(tuple(rates))

    # --- steps alone --------------------------------------------------------------------------------------------------

    def try_size(self, slot_size: int) -> None:
        """Run slots without the other ranks; raises when memory is exhausted."""
        slot = self._batch(slot_size, last=False)
        # The second runs with allocated gradients, as all slots of a step but the first.
        for _ in range(2):
            self.stepper.compute(slot, DataClock(self.rank.device), largest=self.varies, alone=True)
        self.stepper.drop_slots()

    def compute(self, slot_size: int) -> ComputeTime:
        """Measure slots in the middle of a step and at its end, on resident tensors; together."""
        self._warm_up(slot_size)
        several = self._slots_per_rank(slot_size) > 1
        window_s = self.config.profile.window_s * PART_OF_WINDOW / 2
        middle, last = self._batch(slot_size, last=False), self._batch(slot_size, last=True)
        middle_s, last_s = list[float](), list[float]()
        with self._peak_memory() as peak:
            if self.varies:
                self.stepper.compute(last, DataClock(self.rank.device), largest=True)
                self.update()
            estimate_last = self._time(lambda: self._step(last), 1)
            estimate_middle = self._time(lambda: self.compute_slot(middle), 1) if several else 0.0
            for _ in range(WINDOWS):
                if several:
                    number = max(1, round(window_s / estimate_middle))
                    middle_s.append(self._time(lambda: self.compute_slot(middle), number))
                number = max(1, round(window_s / estimate_last))
                last_s.append(self._time(lambda: self._step(last), number))
        return ComputeTime(median(middle_s or last_s), median(last_s), peak[0] if peak else None)

    def _time(self, work: Callable[[], object], number: int) -> float:
        """Return the seconds per repetition, the maximum over ranks, so that all ranks continue with equal values."""
        self.synchronise()
        start = time.perf_counter()
        for _ in range(number):
            work()
        self.synchronise()
        seconds = (time.perf_counter() - start) / number
        if self.rank.ranks == 1:
            return seconds
        value = torch.tensor(seconds, dtype=torch.float64, device=self.rank.device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return float(value)

    # --- both together ------------------------------------------------------------------------------------------------

    def window(self, settings: Settings) -> JointRate:
        """Measure one window of loader and steps, on a fresh loader; together."""
        with self._steps(settings) as steps:
            counters, units = steps.take(self._steps_of_window(settings))
        return JointRate((counters.samples_per_s,), counters.data_time_fraction, units)

    def _steps_of_window(self, settings: Settings) -> int:
        return max(1, round(self.config.profile.window_s / self._step_s[settings]))

    def trace(self, settings: Settings, path: Path) -> Counters:
        """Count steps without the profiler, then trace some into a file; together."""
        with torch.no_grad():
            flops = self._count_flops(settings.slot_size) if self.rank.is_first else None
        with self._steps(settings) as steps:
            with self._peak_memory() as peak:
                counters, _ = steps.take(self._steps_of_window(settings))
            number = min(TRACED_STEPS, max(1, MAX_TRACED_SLOTS // settings.slots_per_rank))
            on_gpu = self.rank.device.type == "cuda"
            record(path, steps.step, steps=number, rank=self.rank.rank, cuda=on_gpu)
        return replace(
            counters,
            flops_per_sample=flops,
            memory_peak_bytes=peak[0] if peak else None,
            memory_limit_bytes=self.memory_limit_bytes(),
        )

    def _count_flops(self, slot_size: int) -> float | None:
        """Return operations of a sample, forward and backward; None if they cannot be counted."""
        inputs, samples = example_inputs(self.task, SMALLEST_SLOT, self.rank.device), SMALLEST_SLOT
        if self.varies:
            # The example has the length of engines; texts in the shards may be much shorter.
            batch = self.task.to_model(self._batch(slot_size, last=False).batch, self._mode)
            inputs, samples = tuple(batch[name] for name in self.task.signature.inputs), slot_size
        learns = {name: parameter.requires_grad for name, parameter in self.stepper.model.named_parameters()}
        flops = count_flops(lambda: construct_model(self.task, self.config), inputs, learns)
        return None if flops is None else flops / samples

    @contextmanager
    def _steps(self, settings: Settings) -> Iterator[_Steps]:
        """Yield steps on a fresh loader, after its start-up."""
        # Before the loader starts: slots prefetched during the warm-up would inflate the rate.
        self._warm_up(settings.slot_size)
        # Of the rank with the fewest slots, since all ranks take the same number of steps.
        slots_of_step = max(1, self.config.train.global_batch_size // settings.slot_size // self.rank.ranks)
        with self._slots(settings) as (slots, clock):
            steps = _Steps(self, slots, clock)
            # Discards the first slot of each loader process.
            for _ in range(1 + settings.num_workers // slots_of_step):
                steps.step()
            if settings not in self._step_s:
                # Loader processes deliver slots in bursts, one slot per process.
                number = max(1, settings.num_workers // slots_of_step)
                self._step_s[settings] = self._time(steps.step, number)
            yield steps

    @contextmanager
    def _slots(self, settings: Settings) -> Iterator[tuple[Iterator[SlotBatch], DataClock]]:
        """Yield a fresh loader's slots, read as in training; its processes end with the context."""
        layout = BatchLayout(settings.slot_size, settings.num_workers, "", self._prefetch_factor)
        self._data.choose_order(layout, None)
        ahead = self._data.prefetcher(self._position)
        loaded = self._data.slots(self._position, ahead)
        clock = DataClock(self.rank.device, waits=True)
        try:
            # The clock excludes the copy, in which the host may wait for the GPU's computation.
            timed = clock.slots(_annotated(loaded, self._position, ahead))
            yield to_device(timed, self.rank.device, clock), clock
        finally:
            # Ends the loader's processes, which would disturb the next measurement.
            if isinstance(loaded, Generator):
                loaded.close()
            ahead.close()
            gc.collect()

    def move_to(self, number: int) -> None:
        """Set the place in the epoch at which measurement `number` starts."""
        batch, steps = self.config.train.global_batch_size, self._data.steps_per_epoch
        self._position = number % PLACES * steps // PLACES * batch

    # --- steps --------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Build the network, unless it exists; together."""
        assert self.stepper

    @property
    def stepper(self) -> Stepper:
        """The network with its optimizer; all ranks build it together."""
        if self._stepper is None:
            self._stepper = Stepper(self.config, self.task, self.rank, self.numerics, lambda message: None)
            self._stepper.model.train()
            if self.numerics.compile:
                torch._dynamo.config.recompile_limit = MAX_COMPILED
            else:
                # Not with compile: this size is not used for training.
                self._stepper.warm_up(SMALLEST_SLOT)
                self._step(self._batch(SMALLEST_SLOT, last=True))
        return self._stepper

    def rebuild(self) -> None:
        """Discard the network, which an error left in an unknown state."""
        self._stepper = self._resident = None
        self._warm.clear()
        if self.numerics.compile:
            torch._dynamo.reset()
        gc.collect()
        if self.rank.device.type == "cuda":
            torch.cuda.empty_cache()

    def _warm_up(self, slot_size: int) -> None:
        """Allocate and compile what steps of this size need."""
        stepper = self.stepper
        if slot_size in self._warm:
            return
        if self.numerics.compile:
            stepper.warm_up(slot_size)
        if self._slots_per_rank(slot_size) > 1:
            self.compute_slot(self._batch(slot_size, last=False))
        self._step(self._batch(slot_size, last=True))
        self._warm.add(slot_size)

    def _step(self, slot: SlotBatch) -> None:
        self.compute_slot(slot)
        self.update()

    def compute_slot(self, slot: SlotBatch, clock: DataClock | None = None) -> None:
        """Run a slot forward and backward."""
        with annotate(SLOT):
            self.stepper.compute(slot, clock or DataClock(self.rank.device))

    def update(self) -> None:
        """Take an optimizer step with learning rate 0, so that nothing diverges on the same few samples."""
        with annotate(UPDATE):
            self.stepper.update(0, 0.0)

    def _batch(self, slot_size: int, *, last: bool) -> SlotBatch:
        """Return a slot on the device that repeats a few real samples."""
        if self._resident is None or len(self._resident.request.samples) != slot_size:
            # Frees the old batch first: two large ones may not fit into memory.
            self._resident = None
            self._resident = self._make_batch(slot_size)
        return replace(self._resident, request=replace(self._resident.request, last_of_step=last))

    def _make_batch(self, slot_size: int) -> SlotBatch:
        dataset = self._data.dataset
        # A slot is padded to its longest sample; a few samples would make it shorter than in training.
        most = slot_size if self.varies else RESIDENT_SAMPLES
        places = tuple(range(min(most, slot_size, len(dataset.reader))))
        prepared, _ = dataset.prepare(SlotRequest.of(places))
        rows = [row % len(places) for row in range(slot_size)]
        batch = collate(dataset.task, [prepared[row] for row in rows], self._mode)
        request = replace(SlotRequest.of(places), samples=tuple(rows), batch_samples=slot_size * self.rank.ranks)
        moved: SlotBatch = map_tensors(SlotBatch(request, batch), lambda tensor: tensor.to(self.rank.device))
        return moved

    def _slots_per_rank(self, slot_size: int) -> int:
        return BatchLayout(slot_size, 0, "").slots_per_rank(self.config.train.global_batch_size, self.rank.ranks)

    def synchronise(self) -> None:
        """Wait for the device."""
        if self.rank.device.type == "cuda":
            torch.cuda.synchronize(self.rank.device)

    # --- memory -------------------------------------------------------------------------------------------------------

    def memory_limit_bytes(self) -> int | None:
        """Return the memory of the GPU available to this rank: free, or reserved by it; None without a GPU."""
        if self.rank.device.type != "cuda":
            return None
        unused, _ = torch.cuda.mem_get_info(self.rank.device)
        return int(unused) + int(torch.cuda.memory_reserved(self.rank.device))

    @contextmanager
    def _peak_memory(self) -> Iterator[list[int]]:
        """Measure the peak of the block, in bytes: of the allocator on a GPU, else of resident memory on Linux.

        The list has the peak as its only entry after the block; it is empty if the peak cannot be measured.
        """
        peak: list[int] = []
        gc.collect()
        if self.rank.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.rank.device)
            yield peak
            self.synchronise()
            peak.append(torch.cuda.max_memory_allocated(self.rank.device))
            return
        with suppress(OSError):
            # 5 resets VmHWM to the current resident size (proc_pid_clear_refs(5)).
            Path("/proc/self/clear_refs").write_text("5")
        yield peak
        with suppress(OSError):
            lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
            peak += [int(entry[1]) * 1024 for entry in lines if entry[0] == "VmHWM:"]


class _Steps:
    """Optimizer steps on the slots of a loader; all ranks take the same number."""

    def __init__(self, bench: Bench, slots: Iterator[SlotBatch], clock: DataClock) -> None:
        self._bench, self._slots, self._clock = bench, slots, clock
        self._all_samples = self._samples = self._units = 0

    def step(self) -> None:
        """Take an optimizer step."""
        last = False
        while not last:
            slot = next(self._slots)
            self._bench.compute_slot(slot, self._clock)
            if slot.request.counts:
                self._samples += len(slot.request.samples)
                self._units += slot.units
            last = slot.request.last_of_step
        self._bench.update()
        self._all_samples += slot.request.batch_samples

    def take(self, number: int) -> tuple[Counters, dict[str, float]]:
        """Take a number of steps; return their counters, and the task's units per sample."""
        self._bench.synchronise()
        self._clock.take()
        self._clock.restart()
        self._all_samples = self._samples = self._units = 0
        for _ in range(number):
            self.step()
        self._bench.synchronise()
        data, unit = self._clock.take(), self._bench.task.unit
        rate = self._all_samples / self._bench.rank.ranks / data.wall_s
        waiting = min(1.0, (data.loader_s + (data.wait_s or 0.0)) / data.wall_s)
        counters = Counters(data.wall_s / number, rate, waiting)
        return counters, {unit: self._units / max(1, self._samples)} if unit else {}


def _annotated(slots: Iterator[SlotBatch], position: int, ahead: Prefetcher) -> Iterator[SlotBatch]:
    """Yield slots, annotating the wait for each in traces, and advance the prefetcher."""
    while True:
        with annotate(LOADER):
            slot = next(slots)
        yield slot
        if slot.request.last_of_step:
            position += slot.request.batch_samples
            ahead.advance(position)
