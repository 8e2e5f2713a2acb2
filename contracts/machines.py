"""Machine types that Vertex AI's custom jobs take: GPUs, memory, boot disks, strategies and the price of an hour.

Sources, read 2026-11-22: SOURCE (types and numbers of GPUs), https://docs.cloud.google.com/compute/docs/machine-resource
and https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines (memory, disks, how a type is sold). The
local Vertex has a table of its own (rehearsal/vertex/machines.py), so that one mistake is not made on both sides.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from contracts.config.resources import MachineSection, Strategy
from contracts.errors import ConfigError

AS_OF = "2026-11-22"
"""When the sources were read."""
SOURCE = "https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/configure-compute"
PRICE_REGION = "us-central1"
"""Region whose prices are in the table; prices elsewhere are unknown."""
PRICE_SOURCE = (
    "Compute Engine's prices in us-central1: github.com/skypilot-org/skypilot-catalog v8 at 006059e, read 2026-11-22; "
    "H100 github.com/tgarg01/silybench 2026-09-26, H200 huggingface.co/datasets/tanod/cloud-gpu-list-prices 2026-10-13"
)

LEAST_FOR_CUDA_13 = 75
"""Compute capability (times ten) that CUDA 13 needs at least, and with it TensorRT 11 and Triton's images: Turing.
https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/index.html removed Pascal and Volta;
https://docs.nvidia.com/deeplearning/tensorrt/11.2.1/installing-tensorrt/prerequisites.html. PyTorch's wheels for CUDA
12.6 have code for Pascal and Volta: RELEASE.md of pytorch/pytorch, releases 2.12 to 2.14 (read 2026-11-26); 2.15 has no
such wheels."""
LEAST_FOR_COMPILE = 70
"""Compute capability (times ten) that torch.compile needs: Triton, its compiler of kernels, has no Pascal."""

Usd = tuple[float, float]
"""US dollars an hour: on demand, spot."""


@dataclass(frozen=True)
class Accelerator:
    """A kind of GPU."""

    name: str
    """As Vertex AI names it."""
    short: str
    """As people name it."""
    capability: str
    """Compute capability, e.g. sm89."""
    flex_start: bool
    """Whether the Dynamic Workload Scheduler hands it out."""
    usd_per_h: Usd | None
    """Price of one; None: unknown."""
    note: str = ""
    """Remark that a plan shows."""

    @property
    def capability_x10(self) -> int:
        """Compute capability times ten."""
        return int(self.capability.removeprefix("sm"))


_P100_ENDED = "Google ended the support of P100 on 2026-09-15: machines with it may not start any more"
# capability: https://developer.nvidia.com/cuda-gpus. flex_start: "L4, A100, H100, H200, or B200" of
# https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/schedule-jobs-dws.
# The prices of H100 and H200 have the GPU's share of the machine in them. No source prices A100 80 GB, B200, GB200 and
# RTX PRO 6000 well in us-central1.
ACCELERATORS: dict[str, Accelerator] = {
    entry.name: entry
    for entry in (
        Accelerator("NVIDIA_TESLA_T4", "T4", "sm75", False, (0.35, 0.175)),
        Accelerator("NVIDIA_TESLA_V100", "V100", "sm70", False, (2.48, 1.0885)),
        Accelerator("NVIDIA_TESLA_P4", "P4", "sm61", False, (0.6, 0.2236)),
        Accelerator("NVIDIA_TESLA_P100", "P100", "sm60", False, (1.46, 0.7034), _P100_ENDED),
        Accelerator("NVIDIA_L4", "L4", "sm89", True, (0.56004, 0.2231)),
        Accelerator("NVIDIA_TESLA_A100", "A100 40 GB", "sm80", True, (2.93391, 1.4341)),
        Accelerator("NVIDIA_A100_80GB", "A100 80 GB", "sm80", True, None),
        Accelerator("NVIDIA_H100_80GB", "H100", "sm90", True, (10.979, 6.571)),
        Accelerator("NVIDIA_H100_MEGA_80GB", "H100 MEGA", "sm90", True, (10.34428, 3.1601)),
        Accelerator("NVIDIA_H200_141GB", "H200", "sm90", True, (10.4365, 6.2607)),
        Accelerator("NVIDIA_B200", "B200", "sm100", True, None),
        Accelerator("NVIDIA_GB200", "GB200", "sm100", False, None),
        Accelerator("NVIDIA_RTX_PRO_6000", "RTX PRO 6000", "sm120", False, None),
    )
}

_SSD = "pd-ssd"
_HYPERDISK = "hyperdisk-balanced"


@dataclass(frozen=True)
class _Family:
    """Machine types that differ in size."""

    gb_per_vcpu: float
    vcpus: tuple[int, ...]
    """Sizes of types without GPUs of their own, which are named by them."""
    boot_disk: str = _SSD
    usd_per_vcpu: Usd | None = None
    """Price of a vCPU with its memory, GPUs aside; None: unknown."""


_TO_80 = (48, 64, 80)
_FAMILIES: dict[str, _Family] = {
    "n1-standard": _Family(3.75, (4, 8, 16, 32, 64, 96), usd_per_vcpu=(0.0475, 0.013058)),
    "n1-highmem": _Family(6.5, (2, 4, 8, 16, 32, 64, 96), usd_per_vcpu=(0.059152, 0.016165)),
    "n1-highcpu": _Family(0.9, (16, 32, 64, 96), usd_per_vcpu=(0.035424, 0.009837)),
    "n2-standard": _Family(4, (4, 8, 16, 32, *_TO_80)),
    "n2-highmem": _Family(8, (2, 4, 8, 16, 32, *_TO_80)),
    "n2-highcpu": _Family(1, (16, 32, *_TO_80)),
    "n4-standard": _Family(4, (2, 4, 8, 16, 32, *_TO_80), _HYPERDISK),
    "n4-highmem": _Family(8, (2, 4, 8, 16, 32, *_TO_80), _HYPERDISK),
    "n4-highcpu": _Family(2, (2, 4, 8, 16, 32, *_TO_80), _HYPERDISK),
    "e2-standard": _Family(4, (4, 8, 16, 32), usd_per_vcpu=(0.033505, 0.0147)),
    "e2-highmem": _Family(8, (2, 4, 8, 16)),
    "e2-highcpu": _Family(1, (16, 32)),
    "c2-standard": _Family(4, (4, 8, 16, 30, 60), usd_per_vcpu=(0.052202, 0.016992)),
    "m1-ultramem": _Family(24.025, (40, 80, 160)),
    "m1-megamem": _Family(14.933, (96,)),
    "g2-standard": _Family(4, (), _SSD, (0.036698, 0.014684)),
    "a2-highgpu": _Family(85 / 12, (), usd_per_vcpu=(0.061623, 0.030813)),
    "a2-megagpu": _Family(1360 / 96, (), usd_per_vcpu=(0.091635, 0.045815)),
    "a2-ultragpu": _Family(170 / 12, ()),
    "a3-highgpu": _Family(9, (), usd_per_vcpu=(0.0, 0.0)),
    "a3-megagpu": _Family(9, (), usd_per_vcpu=(0.045481, 0.013891)),
    "a3-ultragpu": _Family(2952 / 224, (), _HYPERDISK, (0.0, 0.0)),
    "a4-highgpu": _Family(3968 / 224, (), _HYPERDISK),
    "a4x-highgpu": _Family(884 / 140, (), _HYPERDISK),
    "g4-standard": _Family(3.75, (), _HYPERDISK),
}
# Machines that bring their GPUs: type -> accelerator, GPUs, vCPUs.
_BUILT_IN: dict[str, tuple[str, int, int]] = {
    **{f"g2-standard-{vcpus}": ("NVIDIA_L4", 1, vcpus) for vcpus in (4, 8, 12, 16, 32)},
    **{f"g2-standard-{vcpus}": ("NVIDIA_L4", vcpus // 12, vcpus) for vcpus in (24, 48, 96)},
    **{f"a2-highgpu-{gpus}g": ("NVIDIA_TESLA_A100", gpus, 12 * gpus) for gpus in (1, 2, 4, 8)},
    "a2-megagpu-16g": ("NVIDIA_TESLA_A100", 16, 96),
    **{f"a2-ultragpu-{gpus}g": ("NVIDIA_A100_80GB", gpus, 12 * gpus) for gpus in (1, 2, 4, 8)},
    **{f"a3-highgpu-{gpus}g": ("NVIDIA_H100_80GB", gpus, 26 * gpus) for gpus in (1, 2, 4, 8)},
    "a3-megagpu-8g": ("NVIDIA_H100_MEGA_80GB", 8, 208),
    "a3-ultragpu-8g": ("NVIDIA_H200_141GB", 8, 224),
    "a4-highgpu-8g": ("NVIDIA_B200", 8, 224),
    "a4x-highgpu-4g": ("NVIDIA_GB200", 4, 140),
    **{f"g4-standard-{48 * gpus}": ("NVIDIA_RTX_PRO_6000", gpus, 48 * gpus) for gpus in (1, 2, 4, 8)},
}
# GPUs of an n1: accelerator -> number -> the most vCPUs that it serves.
_N1_GPUS: dict[str, dict[int, int]] = {
    "NVIDIA_TESLA_T4": {1: 16, 2: 32, 4: 96},
    "NVIDIA_TESLA_P4": {1: 16, 2: 32, 4: 96},
    "NVIDIA_TESLA_P100": {1: 16, 2: 32, 4: 64},
    "NVIDIA_TESLA_V100": {1: 8, 2: 16, 4: 32, 8: 96},
}
# Four P100 serve 208 GB at most.
_P100_MOST_GB = 208
# Compute Engine sells them as spot or flex-start machines only.
_NOT_STANDARD = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")
_NOTES = {
    "a4x-highgpu-4g": "ARM processors, blocks of 18 machines and a shared reservation, which no configuration can name",
}


@dataclass(frozen=True)
class Machine:
    """One kind of machine, with its GPUs.

    `accelerator_type` is empty and `accelerator_count` 0 where it has none.
    """

    type: str
    accelerator_type: str
    accelerator_count: int
    vcpus: int
    boot_disk: str
    """Type of boot disk that it starts from."""
    strategies: tuple[Strategy, ...]
    """Ways in which it can be asked for."""
    usd_per_h: Usd | None = None
    """Price in PRICE_REGION, GPUs within; None: unknown."""
    note: str = ""
    """Remark that a plan shows."""

    @property
    def label(self) -> str:
        """The machine in one line, e.g. `g2-standard-24 with 2 x NVIDIA_L4`."""
        return f"{self.type} with {self.accelerator_count} x {self.accelerator_type}" if self.gpus else self.type

    @property
    def gpus(self) -> int:
        """GPUs of one machine; 0: none."""
        return self.accelerator_count

    def price(self, strategy: Strategy, region: str) -> float | None:
        """Return the price of an hour in US dollars: the spot price of SPOT, on demand of STANDARD; None: unknown."""
        if self.usd_per_h is None or region != PRICE_REGION or strategy == "FLEX_START":
            return None
        return self.usd_per_h[strategy == "SPOT"]


def find_machine(section: MachineSection) -> Machine:
    """Return the machine that a configuration means.

    GPUs that the type brings are derived; of an n1 the number of GPUs is one where it is to be chosen.

    Raises:
        ConfigError: There is no such machine, or not with these GPUs; the error lists the valid ones.
    """
    type_, accelerator, count = section.type, section.accelerator_type, section.accelerator_count
    if not type_:
        raise _refuse("type is not set", "a machine type of Vertex AI's custom jobs", _usual())
    if type_.startswith(("ct", "tpu", "cloud-tpu")) or accelerator.startswith("TPU"):
        raise _refuse(
            f"{type_} {accelerator}".rstrip() + ": a TPU",
            "machines with NVIDIA GPUs, or without accelerators",
            "TPUs are not supported: training is PyTorch on GPUs, and TensorRT exports for nothing else. " + _usual(),
        )
    found = [machine for machine in list_combinations() if machine.type == type_]
    if not found:
        types = list(dict.fromkeys(machine.type for machine in list_combinations()))
        close = difflib.get_close_matches(type_, types, n=3)
        raise _refuse(
            f"{type_} is no machine type of Vertex AI's custom jobs",
            ", ".join(types),
            f"did you mean {' or '.join(close)}?" if close else _usual(),
        )
    if accelerator and accelerator not in ACCELERATORS:
        close = difflib.get_close_matches(accelerator.upper(), list(ACCELERATORS), n=1, cutoff=0.4)
        raise _refuse(
            f"{accelerator} is no accelerator of Vertex AI",
            ", ".join(ACCELERATORS),
            f"did you mean {close[0]}?" if close else "take one of these names",
        )
    if not accelerator and count != "auto" and not found[0].accelerator_type:
        raise _refuse(
            f"accelerator_count = {count} of {type_} without accelerator_type",
            _list_of(found),
            "set accelerator_type too, or leave accelerator_count at auto",
        )
    of_kind = [machine for machine in found if accelerator in ("", machine.accelerator_type)]
    if not of_kind:
        types = list(dict.fromkeys(m.type for m in list_combinations() if m.accelerator_type == accelerator))
        raise _refuse(
            f"{type_} with {accelerator}",
            _list_of(found),
            f"{accelerator} comes with {', '.join(types)}, never with {type_}: set type to one of these",
        )
    fitting = [machine for machine in of_kind if count in ("auto", machine.accelerator_count)]
    if not fitting:
        raise _refuse(
            f"{type_} with {count} x {of_kind[0].accelerator_type}",
            _list_of(of_kind),
            f"set accelerator_count to {' or '.join(str(machine.accelerator_count) for machine in of_kind)}, "
            "or leave it at auto",
        )
    return fitting[0]


@cache
def list_combinations() -> tuple[Machine, ...]:
    """Return every valid combination, those of a type together, without GPUs first, then by number of GPUs."""
    return tuple(_combinations())


def _combinations() -> Iterator[Machine]:
    for stem, family in _FAMILIES.items():
        for vcpus in family.vcpus:
            yield _machine(f"{stem}-{vcpus}", "", 0, vcpus)
            for accelerator, numbers in _N1_GPUS.items() if stem.startswith("n1-") else ():
                if accelerator == "NVIDIA_TESLA_P100" and family.gb_per_vcpu * vcpus > _P100_MOST_GB:
                    continue
                for gpus, most_vcpus in numbers.items():
                    if vcpus <= most_vcpus:
                        yield _machine(f"{stem}-{vcpus}", accelerator, gpus, vcpus)
    for type_, (accelerator, gpus, vcpus) in _BUILT_IN.items():
        yield _machine(type_, accelerator, gpus, vcpus)


def _machine(type_: str, accelerator: str, gpus: int, vcpus: int) -> Machine:
    family, gpu = _FAMILIES[type_.rpartition("-")[0]], ACCELERATORS.get(accelerator)
    strategies: list[Strategy] = ["SPOT"] if type_ in _NOT_STANDARD else ["STANDARD", "SPOT"]
    if gpu is not None and gpu.flex_start:
        strategies.append("FLEX_START")
    each = (0.0, 0.0) if gpu is None else gpu.usd_per_h
    usd = None
    if family.usd_per_vcpu is not None and each is not None:
        on_demand, spot = (
            round(host * vcpus + one * gpus, 4) for host, one in zip(family.usd_per_vcpu, each, strict=True)
        )
        usd = (on_demand, spot)
    return Machine(
        type=type_,
        accelerator_type=accelerator,
        accelerator_count=gpus,
        vcpus=vcpus,
        boot_disk=family.boot_disk,
        strategies=() if type_ in _NOTES else tuple(strategies),
        usd_per_h=usd,
        note=_NOTES.get(type_, gpu.note if gpu else ""),
    )


def _list_of(machines: list[Machine]) -> str:
    """List the combinations of one type."""
    kinds: dict[str, list[str]] = {}
    for machine in machines:
        kinds.setdefault(machine.accelerator_type, []).append(str(machine.accelerator_count))
    parts = [f"{' or '.join(counts)} x {name}" if name else "no accelerator" for name, counts in kinds.items()]
    return f"{machines[0].type} with {'; '.join(parts)}"


def _usual() -> str:
    return "set type, e.g. g2-standard-12 (one L4), a2-highgpu-1g (one A100) or n1-standard-8 with NVIDIA_TESLA_T4"


def _refuse(given: str, allowed: str, todo: str) -> ConfigError:
    return ConfigError(given, allowed=f"{allowed} ({SOURCE}, {AS_OF})", todo=todo)
