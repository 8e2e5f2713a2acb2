"""What ran on the GPU, kernel by kernel: rows of a table, and shares of its time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.artifacts.trace import KernelRow
from trainer.profiling.kineto import Event

# NCCL names its kernels ncclKernel_..., since 2.19 ncclDevKernel_..., since 2.27 ncclSymDevKernel_... or
# ncclSymkDevKernel_... on symmetric memory; RCCL keeps the names.
_COMMUNICATION = re.compile(r"^nccl(Symk?)?(Dev)?Kernel|^nvshmem", re.IGNORECASE)
# Copies and changes of layout by the names of the kernels: ATen's and cuDNN's (nchw <-> nhwc).
_COPYING = re.compile(
    r"direct_copy|copy_kernel|CatArrayBatchedCopy|nchwToNhwc|nhwcToNchw|nchw_to_nhwc|nhwc_to_nchw|transpose|permute",
    re.IGNORECASE,
)
# TorchInductor names a kernel after all operators that it fuses (torch/_inductor/codegen/triton.py: triton, kind,
# "fused", operators, number). It only copies where none of them computes: a cast beside an addition costs nothing.
_INDUCTOR = re.compile(r"^triton_[a-z]+_fused_")
_INDUCTOR_COPYING = re.compile(
    r"^triton_[a-z]+_fused(?:_(?:_to_copy|clone|copy_?|cat|permute|transpose|t|_unsafe_view|view|expand|slice|select"
    r"|squeeze|unsqueeze))+_\d+$"
)
# The operators that only copy or change a layout, for kernels whose names do not tell.
COPYING_OPERATORS = frozenset(
    {
        "aten::copy_",
        "aten::contiguous",
        "aten::clone",
        "aten::_to_copy",
        "aten::to",
        "aten::cat",
        "aten::transpose",
        "aten::permute",
        "aten::reshape",
        "aten::transpose_copy",
        "aten::permute_copy",
    }
)
# Tensor cores by the instructions and tiles in the names: Volta's h884/s884, Turing's 1688, Ampere's 16816, Hopper's
# wgmma and xmma, cuBLAS's nvjet, cutlass's tensorop.
_TENSOR_CORES = re.compile(
    r"884|1688|16816|16832|tensorop|hmma|imma|wgmma|gmma|xmma|nvjet|cutlass_\w*tensor|fmha|flash_(fwd|bwd)|TensorOp",
    re.IGNORECASE,
)


def copies_by_name(kernel: str) -> bool:
    """Return whether a kernel's name says that it only copies or changes a layout."""
    names = _INDUCTOR_COPYING if _INDUCTOR.search(kernel) else _COPYING
    return names.search(kernel) is not None


def category_of(event: Event) -> str:
    """Return compute, communication, copy or memset for something that ran on the GPU."""
    if event.category == "gpu_memcpy":
        return "copy"
    if event.category == "gpu_memset":
        return "memset"
    return "communication" if _COMMUNICATION.search(event.name) else "compute"


def kernel_rows(events: Sequence[Event]) -> tuple[KernelRow, ...]:
    """Return a row for each name, that of most time first."""
    grouped: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        grouped[event.name, category_of(event)].append(event)
    rows = [
        KernelRow(
            name=name,
            category=category,
            calls=len(runs),
            total_s=sum(run.duration_us for run in runs) / 1e6,
            occupancy_fraction=occupancy(runs),
            blocks_per_sm=_weighted(runs, "blocks per SM"),
        )
        for (name, category), runs in grouped.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.total_s, row.name)))


def kernel_shares(computing: Sequence[Event], steps: int, launched_by: Mapping[str, str]) -> dict[str, Any]:
    """Return what kernels of a number of steps are like, by the names of `TraceSummary`; nothing where none ran.

    Args:
        computing: Kernels other than communication.
        steps: Over how many steps they are.
        launched_by: Operator by the external id that a kernel has in common with it.
    """
    total = sum(event.duration_us for event in computing)
    if not computing or total <= 0:
        return {}
    by_name: dict[str, float] = defaultdict(float)
    for event in computing:
        by_name[event.name] += event.duration_us
    return {
        "kernels_per_step": len(computing) / steps,
        "mean_kernel_us": total / len(computing),
        "top10_kernel_fraction": sum(sorted(by_name.values(), reverse=True)[:10]) / total,
        "copy_kernel_fraction": sum(e.duration_us for e in computing if _copies(e, launched_by)) / total,
        "tensor_core_fraction": sum(e.duration_us for e in computing if _TENSOR_CORES.search(e.name)) / total,
        "occupancy_fraction": occupancy(computing),
    }


def occupancy(runs: Sequence[Event]) -> float | None:
    """Return the achieved occupancy that kineto estimates, weighted by time; None where it gives none."""
    percent = _weighted(runs, "est. achieved occupancy %")
    return None if percent is None else percent / 100


def _copies(event: Event, launched_by: Mapping[str, str]) -> bool:
    if _INDUCTOR.search(event.name):
        return copies_by_name(event.name)
    operator = launched_by.get(str(event.arguments.get("External id")))
    return operator in COPYING_OPERATORS or copies_by_name(event.name)


def _weighted(runs: Sequence[Event], argument: str) -> float | None:
    known = [(run.duration_us, value) for run in runs if isinstance(value := run.arguments.get(argument), int | float)]
    weight = sum(duration for duration, _ in known)
    return sum(duration * value for duration, value in known) / weight if weight > 0 else None
