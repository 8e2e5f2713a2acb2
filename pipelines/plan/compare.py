"""`shardline plan --compare`: one training over kinds and numbers of machines, and where each figure is from.

    measured    a finished training of this line on as many machines of this kind
    profile     the profile of this kind of GPU, times ranks and machines
    assumed     another GPU's speed by the ratio of memory bandwidths, more machines by a loss for each doubling

What rests on an assumption says so, and every assumption is printed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from contracts.config import RunConfig, Strategy
from contracts.estimate import count_samples
from contracts.machines import ACCELERATORS, Machine, PriceBook, hourly_price
from pipelines.plan.estimate import Profile, has_hardware, ranks_of
from pipelines.plan.measured import Measurement
from pipelines.rules.preflight import find_rungs

Origin = Literal["measured", "profile", "assumed", "unknown"]

KEPT_PER_DOUBLING = 0.95
"""Share of the speed that is kept at each doubling of the machines, where nothing was measured."""


@dataclass(frozen=True)
class Candidate:
    """One way to train."""

    machine: Machine
    nodes: int
    strategy: Strategy
    samples_per_s: float | None
    speed_from: Origin
    efficiency: float | None
    """Speed of the machines together over that of one times their number."""
    efficiency_from: Origin
    hours: float | None
    low_usd: float | None
    high_usd: float | None
    low_usd_per_epoch: float | None
    high_usd_per_epoch: float | None
    price_from: str
    """Source of the price; empty: unknown."""


@dataclass(frozen=True)
class Comparison:
    """All ways, and what they rest on."""

    region: str
    candidates: tuple[Candidate, ...]
    assumptions: tuple[str, ...]
    unknown: tuple[str, ...]
    """Why something is unknown."""


@dataclass(frozen=True)
class _Speed:
    samples_per_s: float
    origin: Origin


def compare(
    config: RunConfig,
    machines: Sequence[Machine],
    node_counts: Sequence[int],
    *,
    profile: Profile | None,
    measurements: Sequence[Measurement] = (),
    book: PriceBook | None = None,
    kept_per_doubling: float = KEPT_PER_DOUBLING,
) -> Comparison:
    """Price the same training on every machine and number of machines.

    Args:
        config: The training.
        machines: Kinds to compare, each with its GPUs.
        node_counts: Numbers of machines.
        profile: Of one kind of machine; the others' speed is assumed from it.
        measurements: Finished trainings of this line (pipelines/plan/measured.py).
        book: The user's own prices.
        kept_per_doubling: In (0, 1].
    """
    rung = find_rungs(config)[0]
    assumptions: dict[str, None] = {}
    unknown: dict[str, None] = {}
    candidates = []
    for machine in machines:
        if not machine.strategies:
            unknown[f"{machine.label}: {machine.note}"] = None
            continue
        strategy: Strategy = rung.strategy if rung.strategy in machine.strategies else machine.strategies[0]
        if strategy != rung.strategy:
            assumptions[f"{machine.type} is priced by {strategy}: {rung.strategy} does not hand it out"] = None
        one = _speed_of_one(config, machine, profile, measurements, assumptions, unknown)
        for nodes in node_counts:
            speed, efficiency, efficiency_from = _speed(
                machine, nodes, one, measurements, kept_per_doubling, assumptions
            )
            candidates.append(
                _candidate(
                    config, machine, nodes, strategy, rung.region, speed, efficiency, efficiency_from, profile, book
                )
            )
    if profile is None:
        unknown["no profile: give --profile URI; `shardline plan --online` looks for one in the line"] = None
    elif profile.train_samples is None:
        unknown[f"the shards of the profile {profile.uri} were not found: the samples of an epoch are unknown"] = None
    if any(candidate.high_usd is None and candidate.hours is not None for candidate in candidates):
        unknown["no table has the price of some machines: give --prices FILE"] = None
    return Comparison(rung.region, tuple(candidates), tuple(assumptions), tuple(unknown))


def _speed_of_one(
    config: RunConfig,
    machine: Machine,
    profile: Profile | None,
    measurements: Sequence[Measurement],
    assumptions: dict[str, None],
    unknown: dict[str, None],
) -> _Speed | None:
    """Return how fast one machine is."""
    for found in measurements:
        if found.fits(machine, 1):
            return _Speed(found.samples_per_s, "measured")
    if profile is None:
        return None
    per_rank = profile.samples_per_s
    if per_rank is None:
        unknown[f"the profile {profile.uri} has no rate for what it chose"] = None
        return None
    if has_hardware(profile.report, machine):
        return _Speed(per_rank * ranks_of(config, machine), "profile")
    base = _bandwidth_of(profile)
    known = ACCELERATORS.get(machine.accelerator_type)
    if base is None or known is None or not known.memory_gb_per_s:
        hardware = profile.report.hardware.get("gpus", "none")
        unknown[f"speed of {machine.label}: nothing is known of it from a profile on GPUs: {hardware}"] = None
        return None
    name, base_gb_per_s = base
    assumptions[
        f"a {known.short} is as much faster than a {name} as its memory: {known.memory_gb_per_s} and {base_gb_per_s} "
        "GB/s (NVIDIA's data sheets)"
    ] = None
    return _Speed(per_rank * ranks_of(config, machine) * known.memory_gb_per_s / base_gb_per_s, "assumed")


def _bandwidth_of(profile: Profile) -> tuple[str, int] | None:
    """Return name and memory bandwidth of the GPU that a profile was measured on."""
    gpus = profile.report.hardware.get("gpus", "none")
    for accelerator in ACCELERATORS.values():
        if accelerator.driver_name in gpus and accelerator.memory_gb_per_s:
            return accelerator.short, accelerator.memory_gb_per_s
    return None


def _speed(
    machine: Machine,
    nodes: int,
    one: _Speed | None,
    measurements: Sequence[Measurement],
    kept_per_doubling: float,
    assumptions: dict[str, None],
) -> tuple[_Speed | None, float | None, Origin]:
    """Return the speed of `nodes` machines, their efficiency, and where the efficiency is from."""
    if nodes == 1:
        return (one, 1.0, one.origin) if one is not None else (None, None, "unknown")
    for found in measurements:
        if found.fits(machine, nodes):
            efficiency = found.samples_per_s / (one.samples_per_s * nodes) if one is not None else None
            return _Speed(found.samples_per_s, "measured"), efficiency, "measured" if one is not None else "unknown"
    if one is None:
        return None, None, "unknown"
    kept = kept_per_doubling ** math.log2(nodes)
    assumptions[f"each doubling of the machines keeps {kept_per_doubling:.0%} of the speed (--kept)"] = None
    return _Speed(one.samples_per_s * nodes * kept, "assumed"), kept, "assumed"


def _candidate(
    config: RunConfig,
    machine: Machine,
    nodes: int,
    strategy: Strategy,
    region: str,
    speed: _Speed | None,
    efficiency: float | None,
    efficiency_from: Origin,
    profile: Profile | None,
    book: PriceBook | None,
) -> Candidate:
    price = hourly_price(machine, strategy, region, book)
    samples = None if profile is None or profile.train_samples is None else profile.train_samples
    hours = epochs = None
    if speed is not None and samples is not None:
        hours = count_samples(config, samples) / speed.samples_per_s / 3600
        epochs = count_samples(config, samples) / samples
    total = None if price is None else price.times(nodes)
    costs: Mapping[str, float | None] = dict.fromkeys(("low", "high", "low_epoch", "high_epoch"))
    if total is not None and hours is not None and epochs:
        low, high = total.low_usd_per_h * hours, total.high_usd_per_h * hours
        costs = {"low": low, "high": high, "low_epoch": low / epochs, "high_epoch": high / epochs}
    return Candidate(
        machine=machine,
        nodes=nodes,
        strategy=strategy,
        samples_per_s=speed.samples_per_s if speed else None,
        speed_from=speed.origin if speed else "unknown",
        efficiency=efficiency,
        efficiency_from=efficiency_from,
        hours=hours,
        low_usd=costs["low"],
        high_usd=costs["high"],
        low_usd_per_epoch=costs["low_epoch"],
        high_usd_per_epoch=costs["high_epoch"],
        price_from=price.source if price else "",
    )
