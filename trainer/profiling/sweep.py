"""Which configurations to measure, and which one to take."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.artifacts import ProfileChoice, ProfilePoint
from contracts.config import RunConfig
from contracts.errors import ConfigError

# Rates within this share of the best count as equal: noise must not buy processes and memory.
TOLERANCE = 0.03


def candidate_slot_sizes(config: RunConfig, ranks: int) -> list[int]:
    """Return the slot sizes to measure; a pinned parallel.slot_size is the only one.

    Raises:
        ConfigError: None of the given sizes leaves every rank a slot.
    """
    batch = config.train.global_batch_size
    if config.parallel.slot_size != "auto":
        return [config.parallel.slot_size]
    share = max(1, batch // ranks)
    if config.profile.slot_sizes == "auto":
        return sorted({max(1, share // part) for part in (1, 2, 4)})
    usable = sorted({size for size in config.profile.slot_sizes if -(-batch // size) >= ranks})
    if not usable:
        raise ConfigError(
            f"profile.slot_sizes {config.profile.slot_sizes}: none leaves each of {ranks} ranks a slot "
            f"of a global batch of {batch}",
            allowed=f"at least one size up to {share}",
            todo=f"add {share} to profile.slot_sizes",
        )
    return usable


def candidate_num_workers(config: RunConfig, cores_per_rank: int) -> list[int]:
    """Return the numbers of loader processes to measure; a pinned data.num_workers is the only one."""
    if config.data.num_workers != "auto":
        return [config.data.num_workers]
    if config.profile.num_workers != "auto":
        return sorted(set(config.profile.num_workers))
    numbers = [0]
    workers = 1
    while workers <= cores_per_rank:
        numbers.append(workers)
        workers *= 2
    return numbers


def choose(points: Sequence[ProfilePoint]) -> ProfileChoice:
    """Return the cheapest configuration within TOLERANCE of the fastest: fewest processes, then the smallest slot."""
    best = max(points, key=lambda point: point.samples_per_s)
    good = [point for point in points if point.samples_per_s >= best.samples_per_s * (1 - TOLERANCE)]
    chosen = min(good, key=lambda point: (point.num_workers, point.slot_size))
    reason = (
        f"{chosen.samples_per_s:.0f} samples/s a rank at {chosen.data_time_fraction:.0%} data time; the fastest of "
        f"{len(points)} points has {best.samples_per_s:.0f} (slot size {best.slot_size}, {best.num_workers} workers), "
        f"and the cheapest within {TOLERANCE:.0%} of it is taken"
    )
    return ProfileChoice(slot_size=chosen.slot_size, num_workers=chosen.num_workers, reason=reason)
