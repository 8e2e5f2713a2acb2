"""What may be tried: the values of every knob, as the configuration pins or lists them.

A pinned knob has one value. An excluded one has the value that training would have without a profile. Of the flags of
a step only those set to `auto` may be chosen; the others are measured beside it, one changed at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from contracts.artifacts import Flags, Settings
from contracts.config import RunConfig
from trainer.launch.choices import PREFETCH_FACTOR, BatchLayout, choose_batch_layout, choose_flags
from trainer.profiling.knobs import (
    KnobReader,
    doubling,
    flags_of,
    gives_every_rank_a_slot,
    halving,
    slot_sizes,
    smallest_slot,
)
from trainer.profiling.measure import Device


@dataclass(frozen=True)
class Space:
    """Everything that may be chosen, and what it is held to. Every tuple of numbers ascends."""

    global_batch_size: int
    ranks: int
    """Of all machines."""
    cores_per_rank: int
    device: Device
    slot_sizes: tuple[int, ...]
    num_workers: tuple[int, ...]
    prefetch_factors: tuple[int, ...]
    threads: tuple[int, ...]
    flags: tuple[Flags, ...]
    """That may be chosen; the first are those that training would have, as far as they are in the space."""
    default: Settings
    """What training has without a profile, as far as the configuration pins nothing else; it need not be tried."""
    measured_flags: tuple[Flags, ...] = ()
    """One knob each away from `flags[0]`, that the configuration does not let be chosen."""
    finds_slot_sizes: bool = False
    """Whether slot sizes beside `slot_sizes` may be taken: the largest that fits into memory."""
    smallest_slot: int = 1
    """Smallest slot size that may be taken beside `slot_sizes`."""
    tries_default: bool = True
    """Whether the default may be measured: no list of the configuration leaves a value of it out."""
    ignored: tuple[str, ...] = ()
    """What the configuration lists and cannot be tried, or is better not, with the reason."""

    @property
    def usual_threads(self) -> int:
        """Return the threads that training would have, where they may be chosen, else the most."""
        return self.cores_per_rank if self.cores_per_rank in self.threads else self.threads[-1]

    @property
    def usual_prefetch_factor(self) -> int:
        """Return what stands for it where there are no loader processes."""
        return PREFETCH_FACTOR if PREFETCH_FACTOR in self.prefetch_factors else self.prefetch_factors[0]

    def slots_per_rank(self, slot_size: int) -> int:
        """Return the largest number of slots that a rank processes in a full batch."""
        return BatchLayout(slot_size, 0, "").slots_per_rank(self.global_batch_size, self.ranks)

    def fill(self, slot_size: int) -> float:
        """Return a rank's mean share of the global batch over the samples of its slots, were they all full.

        What is measured are full slots. Where they do not add up to the global batch, a step takes as long, for fewer
        samples: 48 of 64 samples in the slot of one of two ranks leave the other one waiting.
        """
        full = self.slots_per_rank(slot_size) * slot_size
        return min(1.0, self.global_batch_size / self.ranks / full)

    def rate(self, slot_size: int, step_s: float) -> float:
        """Return samples per second of a rank whose step of full slots takes so many seconds."""
        return self.fill(slot_size) * self.slots_per_rank(slot_size) * slot_size / step_s

    def slot_size_of(self, slots: int) -> int:
        """Return the size that cuts a rank's share evenly in a number of slots (of the last, what is left)."""
        even = -(-self.global_batch_size // (self.ranks * slots))
        return even if gives_every_rank_a_slot(self.global_batch_size, self.ranks, even) else max(1, even - 1)

    def settings(
        self, slot_size: int, num_workers: int, *, threads: int, flags: Flags, prefetch_factor: int | None = None
    ) -> Settings:
        """Return a configuration, by default with the fewest slots ahead; slots per rank follow from the slot size."""
        ahead = self.prefetch_factors[0] if prefetch_factor is None else prefetch_factor
        return Settings(
            slot_size=slot_size,
            slots_per_rank=self.slots_per_rank(slot_size),
            num_workers=num_workers,
            # Nobody fetches ahead without loader processes: one value for all, so that equals are equal.
            prefetch_factor=ahead if num_workers else self.usual_prefetch_factor,
            threads=threads,
            flags=flags,
        )

    @property
    def reference(self) -> Settings | None:
        """Return the default as a configuration to measure; None: the configuration's lists leave it out."""
        if not self.tries_default:
            return None
        default = self.default
        return self.settings(
            default.slot_size,
            default.num_workers,
            threads=default.threads,
            flags=default.flags,
            prefetch_factor=default.prefetch_factor,
        )

    def recomputes(self, flags: Flags) -> bool:
        """Whether flags have an activation checkpointing that training would not have: it is slower by itself."""
        return flags.activation_checkpointing != self.flags[0].activation_checkpointing

    def has_alternatives(self) -> bool:
        """Whether there is more than one configuration."""
        return len(list(itertools.islice(self.combinations(), 2))) > 1

    def combinations(self) -> Iterator[Settings]:
        """Yield every configuration once."""
        for flags, threads, slot_size, workers in itertools.product(
            self.flags, self.threads, self.slot_sizes, self.num_workers
        ):
            for prefetch_factor in self.prefetch_factors if workers else (self.usual_prefetch_factor,):
                yield self.settings(slot_size, workers, prefetch_factor=prefetch_factor, threads=threads, flags=flags)


def default_settings(config: RunConfig, *, ranks: int, cores_per_rank: int, on_gpu: bool) -> Settings:
    """Return what training has without a profile (trainer/launch/choices.py).

    Args:
        config: The configuration.
        ranks: Training processes of all machines.
        cores_per_rank: CPU cores of a rank.
        on_gpu: Whether steps are computed on GPUs, which leaves a rank's other cores to its loader.

    Raises:
        ConfigError: There are more ranks than slots.
    """
    cores = max(1, cores_per_rank)
    layout = choose_batch_layout(
        config, ranks=ranks, profile=None, recorded=None, spare_cores=cores - 1 if on_gpu else 0
    )
    return Settings(
        slot_size=layout.slot_size,
        slots_per_rank=layout.slots_per_rank(config.train.global_batch_size, ranks),
        num_workers=layout.num_workers,
        prefetch_factor=layout.prefetch_factor,
        threads=cores if config.resources.threads == "auto" else config.resources.threads,
        flags=choose_flags(config.train, None),
    )


def make_space(config: RunConfig, *, ranks: int, cores_per_rank: int, device: Device) -> Space:
    """Return what may be tried.

    Args:
        config: The configuration.
        ranks: Training processes of all machines.
        cores_per_rank: CPU cores of a rank, its loader processes included.
        device: What steps are computed on, and the network on it.

    Raises:
        ConfigError: A pinned value is not in its list in `profile`; a list leaves nothing that can be tried; or there
            is no slot for every rank.
    """
    reader = KnobReader(config, device)
    cores, on_gpu = max(1, cores_per_rank), device.kind == "cuda"
    smallest = smallest_slot(config, ranks, device)
    sizes = slot_sizes(reader, ranks, smallest)
    flags, measured = flags_of(reader)
    default = default_settings(config, ranks=ranks, cores_per_rank=cores_per_rank, on_gpu=on_gpu)
    if not device.has_layout:
        flags_of_default = default.flags.model_copy(update={"channels_last": False})
        default = default.model_copy(update={"flags": flags_of_default})
    of_default = {**dict(default), **dict(default.flags)}
    return Space(
        global_batch_size=config.train.global_batch_size,
        ranks=ranks,
        cores_per_rank=cores,
        device=device,
        slot_sizes=tuple(sorted(sizes)),
        num_workers=tuple(sorted(reader.values("num_workers", [0, *doubling(cores)]))),
        prefetch_factors=tuple(sorted(reader.values("prefetch_factor", [2, PREFETCH_FACTOR]))),
        # With a GPU the threads only launch kernels: more or fewer of them change nothing.
        threads=tuple(sorted(reader.values("threads", [cores] if on_gpu else halving(cores)))),
        flags=flags,
        default=default,
        measured_flags=measured,
        finds_slot_sizes="slot_size" not in {*reader.pinned, *reader.listed},
        smallest_slot=smallest,
        tries_default=all(of_default[knob] in values for knob, values in reader.listed.items()),
        ignored=tuple(reader.ignored),
    )
