"""Every machine and GPU combination that Vertex AI's custom jobs take, and the search for the one that a user means."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import cache

from contracts.config.resources import MachineSection
from contracts.errors import ConfigError
from contracts.machines import compute
from contracts.machines.machine import ACCELERATORS, ALL_STRATEGIES, Machine

AS_OF = "2026-11-22"
"""When the sources below were read."""
SOURCE = "https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/configure-compute"
"""Machine types and numbers of GPUs. What a type is made of: compute.py."""

# Numbers of vCPUs of the machines without GPUs of their own that custom jobs take (SOURCE), by type without its size.
_SIZES: dict[str, tuple[int, ...]] = {
    "n1-standard": (4, 8, 16, 32, 64, 96),
    "n1-highmem": (2, 4, 8, 16, 32, 64, 96),
    "n1-highcpu": (16, 32, 64, 96),
    "n2-standard": (4, 8, 16, 32, 48, 64, 80),
    "n2-highmem": (2, 4, 8, 16, 32, 48, 64, 80),
    "n2-highcpu": (16, 32, 48, 64, 80),
    "n4-standard": (2, 4, 8, 16, 32, 48, 64, 80),
    "n4-highmem": (2, 4, 8, 16, 32, 48, 64, 80),
    "n4-highcpu": (2, 4, 8, 16, 32, 48, 64, 80),
    "e2-standard": (4, 8, 16, 32),
    "e2-highmem": (2, 4, 8, 16),
    "e2-highcpu": (16, 32),
    "c2-standard": (4, 8, 16, 30, 60),
}


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
        close = difflib.get_close_matches(type_, sorted({machine.type for machine in list_combinations()}), n=3)
        raise _refuse(
            f"{type_} is no machine type of Vertex AI's custom jobs",
            _list_types(),
            f"did you mean {' or '.join(close)}?" if close else _usual(),
        )
    if accelerator and accelerator not in ACCELERATORS:
        close = difflib.get_close_matches(accelerator.upper(), list(ACCELERATORS), n=1, cutoff=0.4)
        raise _refuse(
            f"{accelerator} is no accelerator of Vertex AI",
            ", ".join(ACCELERATORS),
            f"did you mean {close[0]}?" if close else "take one of these names",
        )
    return _choose(found, accelerator, count)


def _choose(found: list[Machine], accelerator: str, count: int | str) -> Machine:
    """Return the one of a type's combinations that has this accelerator and number."""
    type_ = found[0].type
    if not accelerator:
        if count == "auto" or found[0].accelerator_type:
            fitting = [m for m in found if count in ("auto", m.accelerator_count)]
            if fitting:
                return fitting[0]
        else:
            raise _refuse(
                f"accelerator_count = {count} of {type_} without accelerator_type",
                _list_of(found),
                "set accelerator_type too, or leave accelerator_count at auto",
            )
    of_kind = [machine for machine in found if machine.accelerator_type == accelerator] if accelerator else found
    if not of_kind:
        raise _refuse(f"{type_} with {accelerator}", _list_of(found), _advice(type_, accelerator))
    fitting = [machine for machine in of_kind if count in ("auto", machine.accelerator_count)]
    if not fitting:
        raise _refuse(
            f"{type_} with {count} x {of_kind[0].accelerator_type}",
            _list_of(of_kind),
            f"set accelerator_count to {' or '.join(str(machine.accelerator_count) for machine in of_kind)}, "
            "or leave it at auto",
        )
    return fitting[0]


def _advice(type_: str, accelerator: str) -> str:
    """Say which types have this accelerator."""
    types = list(dict.fromkeys(m.type for m in list_combinations() if m.accelerator_type == accelerator))
    if all(name.startswith("n1-") for name in types):
        return f"{accelerator} is attached to machines of type n1: {', '.join(types)}"
    stem = types[0].rpartition("-")[0]
    kinds = f"{stem}-* ({', '.join(types)})" if all(name.startswith(stem) for name in types) else ", ".join(types)
    return f"{accelerator} comes with {kinds}, never with {type_}: set type to one of these"


@cache
def list_combinations() -> tuple[Machine, ...]:
    """Return every valid combination, those of a type together, without GPUs first, then by number of GPUs."""
    return tuple(_combinations())


def _combinations() -> Iterator[Machine]:
    for stem, sizes in _SIZES.items():
        for vcpus in sizes:
            memory_gb = round(compute.GB_PER_VCPU[stem] * vcpus, 1)
            yield _machine(f"{stem}-{vcpus}", "", 0, vcpus, memory_gb)
            if stem.startswith("n1-"):
                for accelerator, numbers in compute.N1_GPUS.items():
                    if accelerator == "NVIDIA_TESLA_P100" and memory_gb > compute.P100_MOST_GB:
                        continue
                    for gpus in numbers.get(vcpus, ()):
                        yield _machine(f"{stem}-{vcpus}", accelerator, gpus, vcpus, memory_gb)
    for type_, (vcpus, memory_gb) in compute.SINGLE.items():
        yield _machine(type_, "", 0, vcpus, memory_gb)
    for type_, (accelerator, gpus, vcpus, memory_gb) in compute.BUILT_IN.items():
        yield _machine(type_, accelerator, gpus, vcpus, memory_gb)


def _machine(type_: str, accelerator: str, gpus: int, vcpus: int, memory_gb: float) -> Machine:
    known = ACCELERATORS.get(accelerator)
    strategies = [
        name
        for name in ALL_STRATEGIES
        if not (name == "STANDARD" and type_ in compute.NOT_STANDARD)
        and not (name == "FLEX_START" and (known is None or not known.flex_start))
    ]
    if type_ in compute.NOTES:
        strategies = []
    return Machine(
        type=type_,
        accelerator_type=accelerator,
        accelerator_count=gpus,
        vcpus=vcpus,
        memory_gb=memory_gb,
        boot_disks=compute.BOOT_DISKS.get(type_.rpartition("-")[0], compute.PERSISTENT),
        strategies=tuple(strategies),
        note=compute.NOTES.get(type_, known.note if known else ""),
    )


def _list_of(machines: list[Machine]) -> str:
    """List the combinations of one type."""
    kinds: dict[str, list[str]] = {}
    for machine in machines:
        kinds.setdefault(machine.accelerator_type, []).append(str(machine.accelerator_count))
    parts = [f"{' or '.join(counts)} x {name}" if name else "no accelerator" for name, counts in kinds.items()]
    return f"{machines[0].type} with {'; '.join(parts)}"


def _list_types() -> str:
    """List all types, a family a part."""
    stems: dict[str, list[str]] = {}
    for machine in list_combinations():
        stem, _, size = machine.type.rpartition("-")
        if size not in stems.setdefault(stem, []):
            stems[stem].append(size)
    return "; ".join(f"{stem}-{{{','.join(sizes)}}}" for stem, sizes in stems.items())


def _usual() -> str:
    return "set type, e.g. g2-standard-12 (one L4), a2-highgpu-1g (one A100) or n1-standard-8 with NVIDIA_TESLA_T4"


def _refuse(given: str, allowed: str, todo: str) -> ConfigError:
    return ConfigError(given, allowed=f"{allowed} ({SOURCE}, {AS_OF})", todo=todo)
