"""Rules about what the device does with its time and its memory."""

from __future__ import annotations

from contracts.artifacts.trace import KernelRow
from trainer.profiling.case import UNKNOWN, Case, Gain, Seen, at_most
from trainer.profiling.kernels import COPYING_OPERATORS, copies_by_name
from trainer.profiling.peaks import peak_flops
from trainer.profiling.rules_waiting import BUSY_TARGET, DATA_TIME

# To queue a kernel takes the host 5 to 10 us: kernels shorter than twice that leave the GPU waiting for the host.
SMALL_KERNEL_US = 20.0
LOW_OCCUPANCY = 0.30
IDLE_BAD = 0.40
# On a GPU that is busy, kernels are short up to here, and many from here on.
SHORT_KERNEL_US = 50.0
MANY_KERNELS_PER_SLOT = 500
SPREAD_TOP10 = 0.50
COPYING, COPYING_BAD = 0.10, 0.25
MEMORY = 0.92
LOW_MFU, VERY_LOW_MFU, MFU_AT_BUSY = 0.25, 0.10, 0.90
# Share of kernel time from which on memory is what limits a step: more than products take.
MEMORY_BOUND = 0.5
ON, CHANNELS_LAST = "train.compile=on", "train.channels_last=true"
COMPILE = f"compile the network ({ON}), which joins kernels"
LARGER_SLOTS = "take larger slots (parallel.slot_size)"


def small_batch(case: Case) -> Seen | None:
    """R2: the GPU idles between kernels that are too small for it."""
    given = case.indicators
    busy, data = given.gpu_busy_fraction, given.data_time_fraction
    if busy is None or busy >= BUSY_TARGET or data is None or data >= DATA_TIME:
        return None
    small = given.mean_kernel_us is not None and given.mean_kernel_us < SMALL_KERNEL_US
    sparse = given.occupancy_fraction is not None and given.occupancy_fraction < LOW_OCCUPANCY
    if not small and not sparse:
        return None
    evidence = [f"GPU busy {busy:.0%} (target: above {BUSY_TARGET:.0%})", f"data time only {data:.0%}"]
    if given.mean_kernel_us is not None:
        evidence.append(f"kernels of {given.mean_kernel_us:.3g} us on average (small: below {SMALL_KERNEL_US:.0f})")
    if given.occupancy_fraction is not None:
        evidence.append(f"occupancy {given.occupancy_fraction:.0%} (low: below {LOW_OCCUPANCY:.0%})")
    evidence += _nvidia_smi(case)
    change, overrides = (COMPILE, [ON]) if case.may_compile else (LARGER_SLOTS, _double_slot(case))
    gain = at_most(1 - busy, "the GPU's idling")
    if (compiled := case.flag("train.compile")) is not None:
        change, gain, overrides = f"set {compiled[0].setting}", compiled[1], [compiled[0].setting]
    if (larger := case.larger_slot()) is not None:
        point, by_slot = larger
        if gain.source.startswith("at most") or (by_slot.factor or 0.0) > (gain.factor or 0.0):
            overrides = [f"parallel.slot_size={point.slot_size}"]
            change, gain = f"take larger slots ({overrides[0]})", by_slot
    elif change == COMPILE and case.choice.slots_per_rank > 1:
        change += f"; {LARGER_SLOTS}"
    return Seen(
        "The GPU idles between small kernels",
        "bad" if busy < IDLE_BAD else "warning",
        evidence,
        change,
        gain,
        overrides,
    )


def many_kernels(case: Case) -> Seen | None:
    """R3: the GPU is busy, with very many short kernels."""
    given = case.indicators
    busy, top10 = given.gpu_busy_fraction, given.top10_kernel_fraction
    if busy is None or busy < BUSY_TARGET or given.kernels_per_step is None or given.mean_kernel_us is None:
        return None
    per_slot = given.kernels_per_step / case.choice.slots_per_rank
    if per_slot <= MANY_KERNELS_PER_SLOT or given.mean_kernel_us >= SHORT_KERNEL_US:
        return None
    if top10 is None or top10 >= SPREAD_TOP10:
        return None
    evidence = [
        f"{per_slot:.0f} kernels for a slot (many: above {MANY_KERNELS_PER_SLOT})",
        f"{given.mean_kernel_us:.3g} us on average (short: below {SHORT_KERNEL_US:.0f})",
        f"the ten that take most take {top10:.0%} of the kernels' time (spread: below {SPREAD_TOP10:.0%})",
        f"GPU busy {busy:.0%}",
    ]
    ways = {COMPILE: ON} if case.may_compile else {}
    ways |= {f"try {CHANNELS_LAST}": CHANNELS_LAST} if case.may_change_layout else {}
    change, overrides = "; ".join(ways) or LARGER_SLOTS, [*ways.values()][:1] or _double_slot(case)
    change, gain, overrides = _measured_flag(case, change, UNKNOWN, overrides, "train.compile", "train.channels_last")
    return Seen("Very many short kernels", "warning", evidence, change, gain, overrides)


def copying(case: Case) -> Seen | None:
    """R4: much time goes into copies and changes of layout."""
    given = case.indicators
    share, busy = given.copy_kernel_fraction, given.gpu_busy_fraction
    if share is None or share <= COPYING:
        return None
    what = "operators' own time" if busy is None else "kernel time"
    evidence = [f"{share:.0%} of {what} in copies and changes of layout (target: {COPYING:.0%})", *_copies(case)]
    change = "look for .contiguous(), .permute() and casts in the model"
    overrides = [CHANNELS_LAST] if case.may_change_layout else []
    if overrides:
        change = f"try {CHANNELS_LAST}; {change}"
    # On a GPU, kernels follow each other; what copies on a CPU may run beside the rest. With channels last the kernels
    # that compute are others too: on an H100, ResNet-50 in bf16 gained 1.7 (docs/gpu.md).
    gain = UNKNOWN if busy is None or overrides else at_most(share * busy, "copying kernels")
    change, gain, overrides = _measured_flag(case, change, gain, overrides, "train.channels_last")
    return Seen(
        "Copies and changes of layout take much of the time",
        "bad" if share >= COPYING_BAD else "warning",
        evidence,
        change,
        gain,
        overrides,
    )


def memory_short(case: Case) -> Seen | None:
    """R5: memory is nearly full, so that a step may fail."""
    given = case.indicators
    used = given.memory_reserved_bytes if given.memory_reserved_bytes is not None else given.memory_peak_bytes
    limit, retries = given.memory_limit_bytes, given.allocation_retries or 0
    full = used / limit if used is not None and limit else None
    if not retries and (full is None or full <= MEMORY):
        return None
    evidence = []
    if full is not None and used is not None and limit is not None:
        held = "held by the allocator" if given.memory_reserved_bytes is not None else "at the peak"
        evidence.append(f"{_gib(used)} {held} of {_gib(limit)} that others leave it: {full:.0%} (target: {MEMORY:.0%})")
    if retries:
        evidence.append(f"the allocator had to give back what it held {retries} times to find room")
    if given.fragmentation_fraction is not None:
        evidence.append(f"{given.fragmentation_fraction:.0%} of what it holds is not in use at the peak")
    ways, overrides = list[str](), list[str]()
    line = next((model for model in case.memory if model.flags == case.choice.flags), None)
    if limit and line is not None and line.bytes_per_sample > 0:
        fits = int((MEMORY * limit - line.base_bytes) / line.bytes_per_sample)
        if 0 < fits < case.choice.slot_size:
            ways.append(f"take smaller slots: {fits} samples fit by the measured line (parallel.slot_size)")
            overrides.append(f"parallel.slot_size={fits}")
    if not ways:
        ways.append("take smaller slots (parallel.slot_size)")
        overrides += [f"parallel.slot_size={case.choice.slot_size // 2}"] if case.choice.slot_size > 1 else []
    if case.choice.flags.activation_checkpointing == "none" and not case.choice.flags.compile:
        ways.append("set train.activation_checkpointing=whole")
        overrides = overrides or ["train.activation_checkpointing=whole"]
    if case.choice.flags.precision == "fp32":
        ways.append("compute in bf16 (train.precision)")
    return Seen("Memory is nearly full", "bad" if retries else "warning", evidence, "; ".join(ways), UNKNOWN, overrides)


def low_mfu(case: Case) -> Seen | None:
    """R9: the GPU is busy all the time, and computes little: its memory limits it, or it does not use tensor cores."""
    given = case.indicators
    busy, mfu = given.gpu_busy_fraction, given.mfu
    if busy is None or mfu is None or busy <= MFU_AT_BUSY or mfu >= LOW_MFU:
        return None
    flags = case.choice.flags
    evidence = [f"MFU {mfu:.0%} at GPU busy {busy:.0%} (target: {LOW_MFU:.0%})", f"computing in {flags.precision}"]
    tensor = case.summary.tensor_core_fraction if case.summary is not None else None
    if tensor is not None:
        evidence.append(f"{tensor:.0%} of kernel time in kernels that use tensor cores, by their names")
    if given.memory_bound_fraction is not None:
        evidence.append(
            f"{given.memory_bound_fraction:.0%} of kernel time in operators that move at least half of what the GPU's "
            f"memory can (memory limits it: from {MEMORY_BOUND:.0%}), estimated from shapes"
        )
        bound = case.summary.memory_bound if case.summary is not None else None
        evidence += [f"{name}: limited by memory, {share:.0%}" for name, share in list((bound or {}).items())[:3]]
    evidence += [f"{_short(row.name)}: {row.total_s / total:.0%} of kernel time" for row, total in _top_kernels(case)]
    evidence += _nvidia_smi(case)
    ways, overrides = list[str](), list[str]()
    limited = given.memory_bound_fraction is not None and given.memory_bound_fraction >= MEMORY_BOUND
    if flags.precision == "fp32":
        gpu = case.summary.gpu_name if case.summary is not None else None
        precision = "fp16" if peak_flops(gpu, "fp16") and not peak_flops(gpu, "bf16") else "bf16"
        overrides.append(f"train.precision={precision}")
        ways.append(f"compute in {precision} ({overrides[0]})")
    if not limited and case.may_change_layout:
        ways.append(f"set {CHANNELS_LAST}, as tensor cores want convolutions")
        overrides.append(CHANNELS_LAST)
    if case.may_compile:
        ways.append(f"set {ON}" + (", which joins operators that pass a tensor on" if limited else ""))
        overrides.append(ON)
    ways.append(
        "use fewer element-wise operators and normalisations between products"
        if limited
        else "make channels and widths multiples of 8"
    )
    settings = ("train.precision", "train.channels_last", "train.compile")
    change, gain, overrides = _measured_flag(case, "; ".join(ways), UNKNOWN, overrides[:1], *settings)
    return Seen(
        "The GPU is busy moving data" if limited else "The GPU is busy, but computes little",
        "bad" if mfu < VERY_LOW_MFU else "warning",
        evidence,
        change,
        gain,
        overrides,
    )


def _measured_flag(
    case: Case, change: str, gain: Gain, overrides: list[str], *settings: str
) -> tuple[str, Gain, list[str]]:
    """Put a flag that was measured to help in the place of what might help."""
    best = case.flag(*settings)
    return (change, gain, overrides) if best is None else (f"set {best[0].setting}", best[1], [best[0].setting])


def _double_slot(case: Case) -> list[str]:
    return [f"parallel.slot_size={2 * case.choice.slot_size}"] if case.choice.slots_per_rank > 1 else []


def _nvidia_smi(case: Case) -> list[str]:
    """Say what nvidia-smi shows, where somebody who looks there would not believe the rest."""
    shown, busy = case.indicators.nvml_utilisation_fraction, case.indicators.gpu_busy_fraction
    if shown is None:
        return []
    mfu = "not measured" if case.indicators.mfu is None else f"{case.indicators.mfu:.0%}"
    return [f"nvidia-smi shows {shown:.0%}: any kernel at all, however small; busy {busy:.0%}, MFU {mfu}"]


def _top_kernels(case: Case, number: int = 3) -> list[tuple[KernelRow, float]]:
    if case.summary is None:
        return []
    computing = [row for row in case.summary.kernels if row.category == "compute"]
    total = sum(row.total_s for row in computing)
    return [(row, total) for row in computing[:number]] if total > 0 else []


def _copies(case: Case, number: int = 3) -> list[str]:
    """Return what copies most, by kernel, or by operator where there is no GPU."""
    summary = case.summary
    if summary is None:
        return []
    computing = [row for row in summary.kernels if row.category == "compute"]
    kernels = [(row.name, row.calls, row.total_s) for row in computing if copies_by_name(row.name)]
    operators = [(row.name, row.calls, row.self_s) for row in summary.operators if row.name in COPYING_OPERATORS]
    found = kernels or ([] if computing else operators)
    found.sort(key=lambda entry: -entry[2])
    return [
        f"{_short(name)}: {calls / summary.steps:.0f} in a step, {seconds / summary.steps * 1e3:.3g} ms"
        for name, calls, seconds in found[:number]
    ]


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:57]}..."


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"
