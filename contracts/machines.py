"""Machine types for Vertex AI's custom jobs: GPUs, boot disks, provisioning strategies and hourly prices.

Sources, read 2026-11-22: SOURCE (types and numbers of GPUs), https://docs.cloud.google.com/compute/docs/machine-resource
and https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines (disks, how a type is sold).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from contracts.config import MachineSection, RunConfig, Strategy
from contracts.errors import ConfigError

AS_OF = "2026-11-22"
"""When the sources were read."""
SOURCE = "https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/configure-compute"
PRICE_REGION = "us-central1"
"""Region of the prices; prices elsewhere are unknown."""
_PRICE_SOURCE = "github.com/skypilot-org/skypilot-catalog v8 at 006059e, read 2026-11-22"
_PRICE_SOURCES = {
    "NVIDIA_H100_80GB": "github.com/tgarg01/silybench 2026-09-26",
    "NVIDIA_H200_141GB": "huggingface.co/datasets/tanod/cloud-gpu-list-prices 2026-10-13",
}
COMMITTED_SOURCE = (
    "commitments in us-central1: T4 by Google's billing catalog of 2025-11-16, a2-highgpu by a collection of prices of "
    "2025-03-06; L4, H100, H200, and the machine's share of B200: not found"
)
LEAST_FOR_CUDA_13 = 75
"""Compute capability (times ten) that CUDA 13 needs at least, and with it TensorRT 11 and Triton's images: Turing.
https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/index.html removed Volta;
https://docs.nvidia.com/deeplearning/tensorrt/11.2.1/installing-tensorrt/prerequisites.html. PyTorch's wheels for CUDA
12.6 have code for Volta: RELEASE.md of pytorch/pytorch, releases 2.12 to 2.14 (read 2026-11-26); 2.15 has no such
wheels."""

Usd = tuple[float, float]
"""US dollars an hour: on demand, spot."""


@dataclass(frozen=True)
class Accelerator:
    """A kind of GPU."""

    name: str
    """Name of the kind in Vertex AI's API."""
    short: str
    """Name of the kind in texts."""
    capability: str
    """Compute capability, e.g. sm89 (https://developer.nvidia.com/cuda-gpus)."""
    flex_start: bool = False
    """Whether FLEX_START provides it: "L4, A100, H100, H200, or B200" of
    https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/schedule-jobs-dws."""
    usd_per_h: Usd | None = None
    """Price of one GPU; that of H100 and H200 includes its share of the machine. None: no source has it."""
    committed_usd_per_h: Usd | None = None
    """Price of one GPU by a commitment of one and of three years (COMMITTED_SOURCE); None: no source has it."""
    is_committed_whole: bool = False
    """Whether that includes its share of the machine."""

    @property
    def capability_x10(self) -> int:
        """Compute capability times ten."""
        return int(self.capability.removeprefix("sm"))


ACCELERATORS: dict[str, Accelerator] = {
    entry.name: entry
    for entry in (
        Accelerator("NVIDIA_TESLA_T4", "T4", "sm75", usd_per_h=(0.35, 0.175), committed_usd_per_h=(0.22, 0.16)),
        Accelerator("NVIDIA_TESLA_V100", "V100", "sm70", usd_per_h=(2.48, 1.0885)),
        Accelerator("NVIDIA_L4", "L4", "sm89", flex_start=True, usd_per_h=(0.56004, 0.2231)),
        Accelerator(
            "NVIDIA_TESLA_A100",
            "A100 40 GB",
            "sm80",
            flex_start=True,
            usd_per_h=(2.93391, 1.4341),
            committed_usd_per_h=(2.314, 1.286),
            is_committed_whole=True,
        ),
        Accelerator("NVIDIA_A100_80GB", "A100 80 GB", "sm80", flex_start=True),
        Accelerator("NVIDIA_H100_80GB", "H100", "sm90", flex_start=True, usd_per_h=(10.979, 6.571)),
        Accelerator("NVIDIA_H100_MEGA_80GB", "H100 MEGA", "sm90", flex_start=True, usd_per_h=(10.34428, 3.1601)),
        Accelerator("NVIDIA_H200_141GB", "H200", "sm90", flex_start=True, usd_per_h=(10.4365, 6.2607)),
        Accelerator("NVIDIA_B200", "B200", "sm100", flex_start=True),
        Accelerator("NVIDIA_RTX_PRO_6000", "RTX PRO 6000", "sm120"),
    )
}


@dataclass(frozen=True)
class _Family:
    """Machine types that differ in size, FAMILY-SIZE."""

    sizes: dict[str, tuple[int, int]]
    """vCPUs and built-in GPUs by size."""
    accelerator_type: str = ""
    boot_disk: str = "pd-ssd"
    usd_per_vcpu: Usd | None = None
    """Price of a vCPU with its memory, without GPUs; None: no source has it."""


def _cpu_sizes(*vcpus: int) -> dict[str, tuple[int, int]]:
    return {str(number): (number, 0) for number in vcpus}


def _gpu_sizes(vcpus_per_gpu: int, *gpus: int) -> dict[str, tuple[int, int]]:
    return {f"{number}g": (vcpus_per_gpu * number, number) for number in gpus}


_HYPERDISK = "hyperdisk-balanced"
_FAMILIES: dict[str, _Family] = {
    "n1-standard": _Family(_cpu_sizes(4, 8, 16, 32, 64, 96), usd_per_vcpu=(0.0475, 0.013058)),
    "n1-highmem": _Family(_cpu_sizes(2, 4, 8, 16, 32, 64, 96), usd_per_vcpu=(0.059152, 0.016165)),
    "n1-highcpu": _Family(_cpu_sizes(16, 32, 64, 96), usd_per_vcpu=(0.035424, 0.009837)),
    "n2-standard": _Family(_cpu_sizes(4, 8, 16, 32, 48, 64, 80)),
    "n2-highmem": _Family(_cpu_sizes(2, 4, 8, 16, 32, 48, 64, 80)),
    "n2-highcpu": _Family(_cpu_sizes(16, 32, 48, 64, 80)),
    "n4-standard": _Family(_cpu_sizes(2, 4, 8, 16, 32, 48, 64, 80), boot_disk=_HYPERDISK),
    "n4-highmem": _Family(_cpu_sizes(2, 4, 8, 16, 32, 48, 64, 80), boot_disk=_HYPERDISK),
    "n4-highcpu": _Family(_cpu_sizes(2, 4, 8, 16, 32, 48, 64, 80), boot_disk=_HYPERDISK),
    "e2-standard": _Family(_cpu_sizes(4, 8, 16, 32), usd_per_vcpu=(0.033505, 0.0147)),
    "e2-highmem": _Family(_cpu_sizes(2, 4, 8, 16)),
    "e2-highcpu": _Family(_cpu_sizes(16, 32)),
    "c2-standard": _Family(_cpu_sizes(4, 8, 16, 30, 60), usd_per_vcpu=(0.052202, 0.016992)),
    "g2-standard": _Family(
        {**{str(vcpus): (vcpus, 1) for vcpus in (4, 8, 12, 16, 32)}, "24": (24, 2), "48": (48, 4), "96": (96, 8)},
        "NVIDIA_L4",
        usd_per_vcpu=(0.036698, 0.014684),
    ),
    "a2-highgpu": _Family(_gpu_sizes(12, 1, 2, 4, 8), "NVIDIA_TESLA_A100", usd_per_vcpu=(0.061623, 0.030813)),
    "a2-megagpu": _Family(_gpu_sizes(6, 16), "NVIDIA_TESLA_A100", usd_per_vcpu=(0.091635, 0.045815)),
    "a2-ultragpu": _Family(_gpu_sizes(12, 1, 2, 4, 8), "NVIDIA_A100_80GB"),
    "a3-highgpu": _Family(_gpu_sizes(26, 1, 2, 4, 8), "NVIDIA_H100_80GB", usd_per_vcpu=(0.0, 0.0)),
    "a3-megagpu": _Family(_gpu_sizes(26, 8), "NVIDIA_H100_MEGA_80GB", usd_per_vcpu=(0.045481, 0.013891)),
    "a3-ultragpu": _Family(_gpu_sizes(28, 8), "NVIDIA_H200_141GB", _HYPERDISK, (0.0, 0.0)),
    "a4-highgpu": _Family(_gpu_sizes(28, 8), "NVIDIA_B200", _HYPERDISK),
    "g4-standard": _Family(
        {str(48 * gpus): (48 * gpus, gpus) for gpus in (1, 2, 4, 8)}, "NVIDIA_RTX_PRO_6000", _HYPERDISK
    ),
}
# GPUs that an n1 can be given: the most vCPUs that a number of them serves.
_N1_GPUS: dict[str, dict[int, int]] = {
    "NVIDIA_TESLA_T4": {1: 16, 2: 32, 4: 96},
    "NVIDIA_TESLA_V100": {1: 8, 2: 16, 4: 32, 8: 96},
}
# Compute Engine sells these as spot or flex-start machines only.
_NOT_STANDARD = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")
_EXAMPLES = "set type, e.g. g2-standard-12 (one L4), a2-highgpu-1g (one A100) or n1-standard-8 with NVIDIA_TESLA_T4"


@dataclass(frozen=True)
class Machine:
    """A machine type with its GPUs."""

    type: str
    vcpus: int
    accelerator_type: str
    """Kind of its GPUs, a key of ACCELERATORS; empty: it has none."""
    gpus: int
    boot_disk: str
    """Type of the boot disk."""
    strategies: tuple[Strategy, ...]
    """Provisioning strategies that provide it."""
    usd_per_h: Usd | None
    """Price in PRICE_REGION, including GPUs; None: unknown."""

    @property
    def label(self) -> str:
        """The machine in one line, e.g. `g2-standard-24 with 2 x NVIDIA_L4`."""
        return f"{self.type} with {self.gpus} x {self.accelerator_type}" if self.gpus else self.type

    @property
    def price_source(self) -> str:
        """Where its price is from."""
        return f"Compute Engine's prices in {PRICE_REGION}: {_PRICE_SOURCES.get(self.accelerator_type, _PRICE_SOURCE)}"

    def price(self, strategy: Strategy, region: str) -> float | None:
        """Return the price of an hour in US dollars: the spot price of SPOT, on demand of STANDARD; None: unknown."""
        if self.usd_per_h is None or region != PRICE_REGION or strategy == "FLEX_START":
            return None
        return self.usd_per_h[strategy == "SPOT"]

    def committed(self, region: str) -> tuple[Usd | None, Usd | None]:
        """Return the price of an hour by a commitment of one year and of three years; None: unknown.

        Each in two parts: what every hour of the term costs, and what an hour of use costs beside it.
        """
        kind, on_demand = ACCELERATORS.get(self.accelerator_type), self.price("STANDARD", region)
        if kind is None or kind.committed_usd_per_h is None or kind.usd_per_h is None or on_demand is None:
            return None, None
        if kind.is_committed_whole and not self.type.startswith("a2-highgpu"):
            return None, None
        hourly = 0.0 if kind.is_committed_whole else on_demand - self.gpus * kind.usd_per_h[0]
        one_year, three_years = (self.gpus * price for price in kind.committed_usd_per_h)
        return (one_year, hourly), (three_years, hourly)


def serving_section(config: RunConfig) -> MachineSection:
    """Return the machine of the export: the one that will serve, else the training's."""
    resources = config.resources
    serving = resources.serving_machine
    return MachineSection(**serving.model_dump()) if serving.type else resources.machine


def find_machine(section: MachineSection) -> Machine:
    """Return the machine that a configuration names.

    Built-in GPUs follow from the type; of an n1's GPUs `auto` is the smallest number.

    Raises:
        ConfigError: There is no such machine, or not with these GPUs; the error lists the valid ones.
    """
    type_, accelerator, count = section.type, section.accelerator_type, section.accelerator_count
    machines = [machine for machine in list_machines() if machine.type == type_]
    if not machines:
        raise _unknown_type(type_)
    if accelerator and accelerator not in ACCELERATORS:
        close = difflib.get_close_matches(accelerator.upper(), ACCELERATORS, n=1, cutoff=0.4)
        todo = f"did you mean {close[0]}?" if close else "take one of these names"
        raise _refusal(f"{accelerator} is no accelerator of Vertex AI", ", ".join(ACCELERATORS), todo)
    kind = accelerator or machines[0].accelerator_type
    of_kind = [machine for machine in machines if machine.accelerator_type == kind]
    for machine in of_kind:
        if count in ("auto", machine.gpus):
            return machine
    if not of_kind:
        types = dict.fromkeys(machine.type for machine in list_machines() if machine.accelerator_type == kind)
        todo = f"{kind} comes with {', '.join(types)}, never with {type_}: set type to one of these"
    elif not kind:
        todo = "set accelerator_type too, or leave accelerator_count at auto"
    else:
        todo = f"set accelerator_count to {' or '.join(str(machine.gpus) for machine in of_kind)}, or leave it at auto"
    given = f"{type_} with {'' if count == 'auto' else f'{count} x '}{kind or 'a GPU without accelerator_type'}"
    raise _refusal(given, "; ".join(machine.label for machine in machines), todo)


@cache
def list_machines() -> tuple[Machine, ...]:
    """Return all machines, those of one type together: first without GPUs, then by number of GPUs."""
    return tuple(_machines())


def _machines() -> Iterator[Machine]:
    for name, family in _FAMILIES.items():
        for size, (vcpus, gpus) in family.sizes.items():
            yield _machine(f"{name}-{size}", family, vcpus, family.accelerator_type, gpus)
            for accelerator_type, most_vcpus in _N1_GPUS.items() if name.startswith("n1-") else ():
                for number, most in most_vcpus.items():
                    if vcpus <= most:
                        yield _machine(f"{name}-{size}", family, vcpus, accelerator_type, number)


def _machine(type_: str, family: _Family, vcpus: int, accelerator_type: str, gpus: int) -> Machine:
    strategies: list[Strategy] = ["SPOT"] if type_ in _NOT_STANDARD else ["STANDARD", "SPOT"]
    gpu_usd: Usd | None = (0.0, 0.0)
    if accelerator_type:
        gpu_usd = ACCELERATORS[accelerator_type].usd_per_h
        if ACCELERATORS[accelerator_type].flex_start:
            strategies.append("FLEX_START")
    usd_per_h = None
    if family.usd_per_vcpu is not None and gpu_usd is not None:
        on_demand, spot = (
            round(host * vcpus + gpu * gpus, 4) for host, gpu in zip(family.usd_per_vcpu, gpu_usd, strict=True)
        )
        usd_per_h = (on_demand, spot)
    return Machine(type_, vcpus, accelerator_type, gpus, family.boot_disk, tuple(strategies), usd_per_h)


def _unknown_type(type_: str) -> ConfigError:
    if not type_:
        return _refusal("type is not set", "a machine type of Vertex AI's custom jobs", _EXAMPLES)
    if type_.startswith(("ct", "tpu", "cloud-tpu")):
        given = f"{type_}: a TPU, on which nothing of this was tried (torch-tpu 0.2 is a beta; TensorRT has no TPU)"
        return _refusal(given, "machines with NVIDIA GPUs or without", _EXAMPLES)
    types = list(dict.fromkeys(machine.type for machine in list_machines()))
    close, family = difflib.get_close_matches(type_, types, n=3), type_.rpartition("-")[0]
    todo = f"did you mean {' or '.join(close)}?" if close else _EXAMPLES
    allowed = [name for name in types if name.rpartition("-")[0] == family] or [f"{name}-..." for name in _FAMILIES]
    return _refusal(f"{type_} is no machine type of Vertex AI's custom jobs", ", ".join(allowed), todo)


def _refusal(given: str, allowed: str, todo: str) -> ConfigError:
    return ConfigError(given, allowed=f"{allowed} ({SOURCE}, {AS_OF})", todo=todo)
