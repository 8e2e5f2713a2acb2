"""Traces some steps of a configuration by torch.profiler, and counts what a trace does not show.

The profiler exists for the traced steps only: nothing of it is in the steps that are counted, nor in training.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from contracts.artifacts import Settings
from trainer.checkpoint.staging import HostBuffer
from trainer.model.build import construct_model
from trainer.parallel.spread import runs_in_lockstep
from trainer.profiling.bench import Bench
from trainer.profiling.flops import count_flops
from trainer.profiling.indicators import Counted
from trainer.profiling.steps import Steps
from trainer.report.gauges import GpuGauges

# A trace takes about a megabyte for a hundred slots of a small network, and a viewer opens no more than some of them.
MOST_TRACED_SLOTS = 32
# Windows of steps that are counted; what is counted is not measured again.
COUNTED_WINDOWS = 2
# Steps of the trace in detail: of them nothing is averaged.
DETAILED_STEPS = 2
# Beside the light traces, which TensorBoard's plugin would otherwise take for spans of the same run.
DETAILS_FOLDER = "details"
# Slots that a rank computes alone, for as long as a window.
LEAST_ALONE, MOST_ALONE = 4, 64


def trace(bench: Bench, settings: Settings, steps: int, folder: Path) -> Counted:
    """Count steps of a configuration as they are, then trace `steps` of them lightly, and some in detail.

    Traces are rank-R.MS.pt.trace.json.gz and details/rank-R.MS.pt.trace.json.gz, MS being milliseconds since 1970:
    torch.profiler.tensorboard_trace_handler's names, with the rank in the place of the host.

    Args:
        bench: Of this rank; all ranks do this together.
        settings: The configuration.
        steps: Optimizer steps to trace, fewer where they have many slots; 0: none.
        folder: Where the profiler writes them, to be read from.
    """
    alone_s = _time_alone(bench, settings)
    flops = _count_flops(bench, settings.slot_size)
    copy_s = _time_checkpoint_copy(bench)
    device = bench.rank.device
    gauges = GpuGauges(device, lambda message: None)
    with bench.steps(settings) as taken:
        retries = _allocation_retries(device)
        # What the loader prepares while nobody takes steps would make the next ones look fast.
        taken.hold()
        with bench.memory.peak(timed=True) as peak:
            taken.go_on()
            # On a GPU memory is allocated anew, since its peak is counted.
            taken.take_one()
            passed = taken.for_about(COUNTED_WINDOWS * bench.config.profile.window_s)
            busy = gauges.values().get("gpu/utilization_percent")
        reserved = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
        more = _allocation_retries(device)
        # What others hold has changed since the probe began, and is not this rank's to take.
        limit = bench.memory.limit_bytes(bench.rank.ranks)
        taken.hold()
        wanted = min(steps, max(1, MOST_TRACED_SLOTS // settings.slots_per_rank))
        light = f"rank-{bench.rank.rank}.{time.time_ns() // 10**6}.pt.trace.json.gz"
        names = {light: wanted, f"{DETAILS_FOLDER}/{light}": min(wanted, DETAILED_STEPS)} if wanted else {}
        for name, number in names.items():
            _trace(bench, taken, number, folder / name, in_detail=name != light)
    return Counted(
        step_s=passed.data.wall_s / passed.steps,
        samples_per_s=passed.rate(bench.rank.ranks),
        data_time_fraction=min(1.0, (passed.data.loader_s + (passed.data.wait_s or 0.0)) / passed.data.wall_s),
        copy_wait_fraction=None if passed.data.wait_s is None else passed.data.wait_s / passed.data.wall_s,
        alone_slot_s=alone_s,
        flops_per_sample=flops,
        memory_peak_bytes=peak.bytes,
        memory_reserved_bytes=reserved,
        memory_limit_bytes=limit,
        allocation_retries=None if more is None or retries is None else more - retries,
        nvml_utilisation_fraction=None if busy is None else busy / 100,
        checkpoint_copy_s=copy_s,
        files={name: (folder / name).read_bytes() for name in names},
    )


def _time_alone(bench: Bench, settings: Settings) -> float | None:
    """Return seconds of a slot that this rank computes without waiting for any other; the lower quartile.

    On a CPU it is processor time: ranks share cores with each other and with all else, and what one is kept from by
    others is no property of that rank. None where a forward pass talks to the other ranks: then nothing is alone.
    """
    if runs_in_lockstep(bench.config.parallel):
        return None
    bench.warm_up(settings.slot_size, settings.flags)
    slot = bench.batch(settings.slot_size, last=False)
    on_cpu = bench.rank.device.type == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter
    end_s, times = time.perf_counter() + bench.config.profile.window_s, list[float]()
    while len(times) < LEAST_ALONE or (time.perf_counter() < end_s and len(times) < MOST_ALONE):
        bench.synchronise()
        start_s = clock()
        bench.compute_slot(slot)
        bench.synchronise()
        times.append(clock() - start_s)
    bench.stepper.drop_slots()
    return sorted(times)[len(times) // 4]


def _trace(bench: Bench, taken: Steps, steps: int, path: Path, *, in_detail: bool) -> None:
    """Trace steps.

    Args:
        bench: Of this rank.
        taken: The steps.
        steps: How many.
        path: For the trace.
        in_detail: With shapes and the allocator's events, which make a step longer; not for shares of its time.
    """
    activities = [ProfilerActivity.CPU]
    if bench.rank.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    bench.around = _annotate
    path.parent.mkdir(parents=True, exist_ok=True)
    with profile(
        activities=activities,
        # A step for which it only gets ready, which takes a while.
        schedule=schedule(wait=0, warmup=1, active=steps, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        record_shapes=in_detail,
        profile_memory=in_detail,
    ) as profiler:
        taken.go_on()
        taken.take_one()
        # Here the profiler starts for good, which takes a while.
        taken.hold()
        # A GPU begins the first traced step with nothing queued, so that its steps and the host's are the same time.
        bench.synchronise()
        profiler.step()
        taken.go_on()
        for number in range(steps):
            taken.take_one()
            if number == steps - 1:
                # Once: the host runs ahead of a GPU from step to step.
                bench.synchronise()
                taken.hold()
            profiler.step()
    bench.around = lambda part: nullcontext()
    taken.go_on()


def _annotate(part: str) -> AbstractContextManager[object]:
    return record_function(f"shardline: {part}")


def _count_flops(bench: Bench, slot_size: int) -> float | None:
    """Return the floating point operations of a sample, forward and backward; None where they cannot be counted."""
    with torch.no_grad():
        inputs, samples = bench.typical_inputs(slot_size)
    learns = {name: parameter.requires_grad for name, parameter in bench.stepper.model.named_parameters()}
    flops = count_flops(lambda: construct_model(bench.task, bench.config), inputs, learns)
    return None if flops is None else flops / samples


def _time_checkpoint_copy(bench: Bench) -> float | None:
    """Return seconds of the copy for which steps stand still when a checkpoint is saved; the second one counts."""
    buffer = HostBuffer(bench.rank)
    state = bench.stepper.state()
    try:
        buffer.stage(state)
        start = time.perf_counter()
        buffer.stage(state)
    except (RuntimeError, MemoryError):
        # A rank that just fits has no room for a copy beside it, which says nothing about its steps.
        return None
    return time.perf_counter() - start


def _allocation_retries(device: torch.device) -> int | None:
    return int(torch.cuda.memory_stats(device)["num_alloc_retries"]) if device.type == "cuda" else None
