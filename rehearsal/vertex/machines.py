"""Which machines and GPUs go together, as the local Vertex sees it.

Written apart from contracts.machines, so that what one of the two has wrong the other does not repeat; a test compares
them, and every difference that is left is named there. Where the documentation seen was no help (GPUs on the largest
n1, families that Vertex may have stopped to list) this table is the wider one: a rehearsal that refuses what the
service takes would be wrong in the worse way.

https://cloud.google.com/vertex-ai/docs/training/configure-compute (machine types, GPUs, disks),
https://cloud.google.com/compute/docs/gpus (vCPUs a GPU takes on n1)
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One machine type."""

    vcpus: int
    gpu: str = ""
    """The GPU that is part of the machine; "" where it has none of its own."""
    num_gpus: int = 0
    disks: tuple[str, ...] = ("pd-ssd", "pd-standard")
    spot_only: bool = False
    """Given with SPOT and FLEX_START only."""


_HYPERDISK = ("hyperdisk-balanced",)
# Compute Engine has no pd-standard of these: https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines
_SSD = ("pd-ssd",)
_SSD_OR_HYPERDISK = ("pd-ssd", "hyperdisk-balanced")
_BOTH = ("pd-ssd", "pd-standard", "hyperdisk-balanced")

# Families whose GPUs are part of the machine.
_WITH_GPUS: dict[str, Kind] = {
    **{f"g2-standard-{n}": Kind(n, "NVIDIA_L4", 1, _SSD) for n in (4, 8, 12, 16, 32)},
    **{f"g2-standard-{n}": Kind(n, "NVIDIA_L4", n // 12, _SSD) for n in (24, 48, 96)},
    **{f"a2-highgpu-{n}g": Kind(12 * n, "NVIDIA_TESLA_A100", n) for n in (1, 2, 4, 8)},
    "a2-megagpu-16g": Kind(96, "NVIDIA_TESLA_A100", 16),
    **{f"a2-ultragpu-{n}g": Kind(12 * n, "NVIDIA_A100_80GB", n) for n in (1, 2, 4, 8)},
    **{
        f"a3-highgpu-{n}g": Kind(26 * n, "NVIDIA_H100_80GB", n, _SSD_OR_HYPERDISK, spot_only=n < 8)
        for n in (1, 2, 4, 8)
    },
    "a3-megagpu-8g": Kind(208, "NVIDIA_H100_MEGA_80GB", 8, _SSD_OR_HYPERDISK),
    "a3-ultragpu-8g": Kind(224, "NVIDIA_H200_141GB", 8, _HYPERDISK),
    "a4-highgpu-8g": Kind(224, "NVIDIA_B200", 8, _HYPERDISK),
    "a4x-highgpu-4g": Kind(140, "NVIDIA_GB200", 4, _HYPERDISK),
    **{f"g4-standard-{48 * n}": Kind(48 * n, "NVIDIA_RTX_PRO_6000", n, _HYPERDISK) for n in (1, 2, 4, 8)},
}
# Families without, by their sizes.
_PLAIN = {
    "n1-standard": (4, 8, 16, 32, 64, 96),
    "n1-highmem": (2, 4, 8, 16, 32, 64, 96),
    "n1-highcpu": (16, 32, 64, 96),
    "e2-standard": (4, 8, 16, 32),
    "e2-highmem": (2, 4, 8, 16),
    "e2-highcpu": (16, 32),
    "n2-standard": (4, 8, 16, 32, 48, 64, 80),
    "n2-highmem": (2, 4, 8, 16, 32, 48, 64, 80),
    "n2-highcpu": (16, 32, 48, 64, 80),
    "n2d-standard": (4, 8, 16, 32, 48, 64, 80, 96, 128, 224),
    "n2d-highmem": (2, 4, 8, 16, 32, 48, 64, 80, 96),
    "n2d-highcpu": (16, 32, 48, 64, 80, 96, 128, 224),
    "n4-standard": (2, 4, 8, 16, 32, 48, 64, 80),
    "n4-highmem": (2, 4, 8, 16, 32, 48, 64, 80),
    "n4-highcpu": (2, 4, 8, 16, 32, 48, 64, 80),
    "c2-standard": (4, 8, 16, 30, 60),
    "c2d-standard": (4, 8, 16, 32, 56, 112),
    "c2d-highcpu": (4, 8, 16, 32, 56, 112),
    "c2d-highmem": (4, 8, 16, 32, 56, 112),
    "m1-ultramem": (40, 80, 160),
    "m1-megamem": (96,),
}
# Families whose boot disks are not persistent disks alone.
_DISKS = {"n4": _HYPERDISK, "m1": _BOTH}


def _plain(family: str, size: int) -> Kind:
    return Kind(size, disks=_DISKS.get(family.split("-")[0], Kind.disks))


KINDS: dict[str, Kind] = _WITH_GPUS | {f"{f}-{size}": _plain(f, size) for f, sizes in _PLAIN.items() for size in sizes}

# GPUs that are attached to n1: how many there may be, and the most vCPUs that a number of them takes.
_ATTACHED: dict[str, dict[int, int]] = {
    "NVIDIA_TESLA_T4": {1: 16, 2: 32, 4: 96},
    "NVIDIA_TESLA_P4": {1: 16, 2: 32, 4: 96},
    "NVIDIA_TESLA_P100": {1: 16, 2: 32, 4: 96},
    "NVIDIA_TESLA_V100": {1: 8, 2: 16, 4: 32, 8: 96},
}


def find_fault(machine_type: str, gpu: str, num_gpus: int) -> tuple[str, str] | None:
    """Return (field of MachineSpec, what is wrong) of a combination; None where it is one that Vertex has."""
    kind = KINDS.get(machine_type)
    if kind is None:
        return "machine_type", f'Machine type "{machine_type}" is not supported.'
    if not gpu:
        if num_gpus:
            return "accelerator_type", f"accelerator_count is {num_gpus} and accelerator_type is not set."
        if kind.gpu:
            return "accelerator_type", f"{machine_type} comes with {kind.num_gpus} x {kind.gpu}: both are to be given."
        return None
    if kind.gpu:
        if gpu != kind.gpu:
            return "accelerator_type", f"{machine_type} comes with {kind.gpu}, not with {gpu}."
        if num_gpus != kind.num_gpus:
            return "accelerator_count", f"{machine_type} has {kind.num_gpus} x {gpu}, not {num_gpus}."
        return None
    counts = _ATTACHED.get(gpu) if re.match(r"n1-", machine_type) else None
    if counts is None:
        homes = sorted(name for name, its in KINDS.items() if its.gpu == gpu) or ["n1 machines"]
        return "machine_type", f"{gpu} is not attached to {machine_type}: it is on {', '.join(homes)}."
    if num_gpus not in counts:
        return "accelerator_count", f"{num_gpus} x {gpu} is not supported: {', '.join(map(str, counts))} are."
    if kind.vcpus > counts[num_gpus]:
        text = f"{machine_type} has more vCPUs than {num_gpus} x {gpu} takes, {counts[num_gpus]} at most."
        return "accelerator_count", text
    return None
