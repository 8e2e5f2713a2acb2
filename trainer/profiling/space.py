"""What may be tried: the values of every knob, as the configuration pins, lists or excludes them.

A pinned knob has one value. An excluded one has the value that training would have without a profile. Of the flags of
a step only those set to `auto` may be chosen; the others are measured beside it, one changed at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from contracts.artifacts import Flags, Settings
from contracts.config import Knob, RunConfig
from contracts.errors import ConfigError

# With slot_sizes=auto the even share is halved at least this often, and further down to SMALL_SLOT samples: memory may
# force a small slot, and its steps show what a slot costs that does not grow with it.
HALVINGS = 4
SMALL_SLOT = 8
# What training has without a profile (trainer/cut.py, trainer/precision.py).
DEFAULT_PREFETCH_FACTOR = 4
DEFAULT_FLAGS = Flags()

T = TypeVar("T")


@dataclass(frozen=True)
class Device:
    """What steps are computed on."""

    kind: Literal["cpu", "cuda"]
    name: str
    has_bf16: bool
    """Whether it computes in bf16 in hardware."""


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
    measured_flags: tuple[Flags, ...] = ()
    """One knob each away from `flags[0]`, that the configuration does not let be chosen."""
    memory_bytes: int | None = None
    """Most memory of a rank in bytes, by the configuration."""
    finds_slot_sizes: bool = False
    """Whether slot sizes beside `slot_sizes` may be taken: the largest that fits into memory."""
    ignored: tuple[str, ...] = ()
    """What the configuration lists and cannot be tried, with the reason."""

    @property
    def usual_threads(self) -> int:
        """Return the threads that training would have, where they may be chosen, else the most."""
        return self.cores_per_rank if self.cores_per_rank in self.threads else self.threads[-1]

    @property
    def usual_prefetch_factor(self) -> int:
        """Return what stands for it where there are no loader processes."""
        return DEFAULT_PREFETCH_FACTOR if DEFAULT_PREFETCH_FACTOR in self.prefetch_factors else self.prefetch_factors[0]

    def slots_per_rank(self, slot_size: int) -> int:
        """Return the largest number of slots that a rank processes in a full batch."""
        return slots_per_rank(self.global_batch_size, self.ranks, slot_size)

    def fill(self, slot_size: int) -> float:
        """Return a rank's mean share of the global batch over the samples of its slots, were they all full.

        What is measured are full slots. Where they do not add up to the global batch, a step takes as long, for fewer
        samples: 48 of 64 samples in the slot of one of two ranks leave the other one waiting.
        """
        full = self.slots_per_rank(slot_size) * slot_size
        return min(1.0, self.global_batch_size / self.ranks / full)

    def slot_size_of(self, slots: int) -> int:
        """Return the size that cuts a rank's share evenly in a number of slots (of the last, what is left)."""
        even = -(-self.global_batch_size // (self.ranks * slots))
        return even if gives_every_rank_a_slot(self.global_batch_size, self.ranks, even) else max(1, even - 1)

    def settings(
        self, slot_size: int, num_workers: int, *, prefetch_factor: int, threads: int, flags: Flags
    ) -> Settings:
        """Return a configuration; the slots of a rank follow from the slot size."""
        return Settings(
            slot_size=slot_size,
            slots_per_rank=self.slots_per_rank(slot_size),
            num_workers=num_workers,
            # Nobody fetches ahead without loader processes: one value for all, so that equals are equal.
            prefetch_factor=prefetch_factor if num_workers else self.usual_prefetch_factor,
            threads=threads,
            flags=flags,
        )

    def combinations(self) -> Iterator[Settings]:
        """Yield every configuration once."""
        for flags, threads, slot_size, workers in itertools.product(
            self.flags, self.threads, self.slot_sizes, self.num_workers
        ):
            for prefetch_factor in self.prefetch_factors if workers else (self.usual_prefetch_factor,):
                yield self.settings(slot_size, workers, prefetch_factor=prefetch_factor, threads=threads, flags=flags)


def slots_per_rank(global_batch_size: int, ranks: int, slot_size: int) -> int:
    """Return the largest number of slots that a rank processes in a full batch."""
    slots = -(-global_batch_size // slot_size)
    return -(-slots // ranks)


def gives_every_rank_a_slot(global_batch_size: int, ranks: int, slot_size: int) -> bool:
    """Whether a global batch in slots of this size leaves no rank without work."""
    return -(-global_batch_size // slot_size) >= ranks


def make_space(config: RunConfig, *, ranks: int, cores_per_rank: int, device: Device) -> Space:
    """Return what may be tried.

    Args:
        config: The configuration.
        ranks: Training processes of all machines.
        cores_per_rank: CPU cores of a rank, its loader processes included.
        device: What steps are computed on.

    Raises:
        ConfigError: A pinned value is not in its list in `profile`; a list leaves nothing that can be tried; or there
            is no slot for every rank.
    """
    reader = _Reader(config, device)
    cores = max(1, cores_per_rank)
    slot_sizes = _slot_sizes(reader, ranks)
    num_workers = reader.values(
        "num_workers",
        "data.num_workers",
        pinned=_unless_auto(config.data.num_workers),
        listed=_unless_auto(config.profile.num_workers),
        tried=[0, *_doubling(cores)],
        default=0,
    )
    prefetch_factors = reader.values(
        "prefetch_factor",
        "data.prefetch_factor",
        pinned=_unless_auto(config.data.prefetch_factor),
        listed=_unless_auto(config.profile.prefetch_factors),
        tried=[2, DEFAULT_PREFETCH_FACTOR],
        default=DEFAULT_PREFETCH_FACTOR,
    )
    threads = reader.values(
        "threads",
        "resources.threads",
        pinned=_unless_auto(config.resources.threads),
        listed=_unless_auto(config.profile.threads),
        # With a GPU the threads only launch kernels: more or fewer of them change nothing.
        tried=[cores] if device.kind == "cuda" else _halving(cores),
        default=cores,
    )
    flags, measured = _flags(reader)
    return Space(
        global_batch_size=config.train.global_batch_size,
        ranks=ranks,
        cores_per_rank=cores,
        device=device,
        slot_sizes=tuple(sorted(slot_sizes)),
        num_workers=tuple(sorted(num_workers)),
        prefetch_factors=tuple(sorted(prefetch_factors)),
        threads=tuple(sorted(threads)),
        flags=flags,
        measured_flags=measured,
        memory_bytes=config.profile.memory_bytes,
        finds_slot_sizes=config.parallel.slot_size == "auto"
        and config.profile.slot_sizes == "auto"
        and "slot_size" not in config.profile.exclude,
        ignored=tuple(reader.ignored),
    )


class _Reader:
    """Reads knobs out of a configuration, and keeps what of it is ignored."""

    def __init__(self, config: RunConfig, device: Device) -> None:
        self.config, self.device = config, device
        self.ignored: list[str] = []

    def excludes(self, knob: Knob) -> bool:
        return knob in self.config.profile.exclude

    def values(
        self, knob: Knob, setting: str, *, pinned: T | None, listed: Sequence[T] | None, tried: Sequence[T], default: T
    ) -> tuple[T, ...]:
        """Return the values that may be chosen.

        Args:
            knob: Its name in profile.exclude.
            setting: Where it is pinned.
            pinned: The value there; None: auto.
            listed: The list in `profile`; None: auto.
            tried: What `auto` stands for.
            default: What training has without a profile.
        """
        name = f"profile.{LISTS[knob]}"
        if self.excludes(knob):
            if listed is not None:
                self.ignored.append(f"{name} is ignored: {knob} is in profile.exclude")
            return (default if pinned is None else pinned,)
        if pinned is None:
            return tuple(dict.fromkeys(tried if listed is None else listed))
        if listed is not None and pinned not in listed:
            shown = ", ".join(_in_yaml(value) for value in listed)
            # compile is the one knob that has other words where it is set.
            value = ("on" if pinned else "off") if knob == "compile" else _in_yaml(pinned)
            raise ConfigError(
                f"{setting} is {value}, which is not in {name} [{shown}]",
                allowed=f"a value of {name}, or {setting}=auto",
                todo=f"set {setting}=auto to have one of {name} chosen, or add {_in_yaml(pinned)} to {name}",
            )
        return (pinned,)


# Where the values of a knob are listed in `profile`.
LISTS: dict[Knob, str] = {
    "slot_size": "slot_sizes",
    "num_workers": "num_workers",
    "prefetch_factor": "prefetch_factors",
    "threads": "threads",
    "precision": "precisions",
    "channels_last": "channels_last",
    "compile": "compile",
    "activation_checkpointing": "activation_checkpointing",
}


def _unless_auto(value: T | Literal["auto"]) -> T | None:
    return None if isinstance(value, str) and value == "auto" else value


def _in_yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _doubling(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]


def _halving(most: int) -> list[int]:
    return sorted({max(1, most >> power) for power in range(most.bit_length())})


def _slot_sizes(reader: _Reader, ranks: int) -> tuple[int, ...]:
    config, batch = reader.config, reader.config.train.global_batch_size
    if batch < ranks:
        raise ConfigError(
            f"train.global_batch_size {batch} leaves some of {ranks} ranks without a sample",
            allowed="at least one sample per rank",
            todo=f"set train.global_batch_size to {ranks} or more, or resources.ranks to {batch} or less",
        )
    share = -(-batch // ranks)
    if not gives_every_rank_a_slot(batch, ranks, share):
        share = batch // ranks
    tried = [share]
    while len(tried) <= HALVINGS or tried[-1] > SMALL_SLOT:
        if tried[-1] == 1:
            break
        tried.append(-(-share // 2 ** len(tried)))
    sizes = reader.values(
        "slot_size",
        "parallel.slot_size",
        pinned=_unless_auto(config.parallel.slot_size),
        listed=_unless_auto(config.profile.slot_sizes),
        tried=tried,
        default=share,
    )
    usable = tuple(size for size in sizes if gives_every_rank_a_slot(batch, ranks, size))
    if not usable:
        where = "parallel.slot_size" if config.parallel.slot_size != "auto" else "profile.slot_sizes"
        raise ConfigError(
            f"{where} {sizes[0] if len(sizes) == 1 else list(sizes)}: none leaves each of {ranks} ranks a slot "
            f"of a global batch of {batch}",
            allowed=f"at least one size up to {share}",
            todo=f"set {where} to {share} or less" if len(sizes) == 1 else f"add {share} to {where}",
        )
    if len(usable) < len(sizes):
        left_out = [size for size in sizes if size not in usable]
        reader.ignored.append(
            f"profile.slot_sizes {left_out}: not tried, they leave some of {ranks} ranks without a slot "
            f"of a global batch of {batch}"
        )
    return usable


def _flags(reader: _Reader) -> tuple[tuple[Flags, ...], tuple[Flags, ...]]:
    """Return the flags that may be chosen, and those that are only measured."""
    train, profile = reader.config.train, reader.config.profile
    on_gpu = reader.device.kind == "cuda"
    precisions = ["fp32", "bf16"] if reader.device.has_bf16 else ["fp32", "fp16"] if on_gpu else ["fp32"]
    pinned: dict[Knob, object] = {
        "precision": _unless_auto(train.precision),
        "channels_last": _unless_auto(train.channels_last),
        "compile": None if train.compile == "auto" else train.compile == "on",
        "activation_checkpointing": _unless_auto(train.activation_checkpointing),
    }
    listed: dict[Knob, Sequence[object] | None] = {
        "precision": _computable(reader, _unless_auto(profile.precisions)),
        "channels_last": _unless_auto(profile.channels_last),
        "compile": _unless_auto(profile.compile),
        "activation_checkpointing": _unless_auto(profile.activation_checkpointing),
    }
    tried: dict[Knob, Sequence[object]] = {
        "precision": precisions,
        "channels_last": [False, True],
        "compile": [False, True] if on_gpu else [False],
        "activation_checkpointing": ["none", "selective", "whole"],
    }
    choices: dict[Knob, list[object]] = {}
    for knob in tried:
        default = getattr(DEFAULT_FLAGS, knob)
        values = reader.values(
            knob, f"train.{knob}", pinned=pinned[knob], listed=listed[knob], tried=tried[knob], default=default
        )
        # What training would have comes first: the others have to be better than it.
        choices[knob] = sorted(values, key=lambda value, usual=default: value != usual)  # type: ignore[misc]
    combined = [
        Flags.model_validate(dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values())
    ]
    flags = tuple(each for each in combined if _go_together(each))
    if not flags:
        raise ConfigError(
            "profile.compile and profile.activation_checkpointing leave only both together",
            allowed="one of both: torch.compile decides by itself what it computes again",
            todo="add false to profile.compile, or none to profile.activation_checkpointing",
        )
    beside = []
    for knob in tried:
        if pinned[knob] is None or reader.excludes(knob):
            continue
        values = tuple(listed[knob] or tried[knob])
        for value in values:
            changed = flags[0].model_copy(update={knob: value})
            if value != pinned[knob] and _go_together(changed):
                beside.append(changed)
    return flags, tuple(beside)


def _go_together(flags: Flags) -> bool:
    return not (flags.compile and flags.activation_checkpointing != "none")


def _computable(reader: _Reader, precisions: Sequence[str] | None) -> Sequence[str] | None:
    """Return the listed precisions that this device does not emulate, or compute slower than fp32."""
    train, device = reader.config.train, reader.device
    if precisions is None or train.allow_slow_precision:
        return precisions
    slow = {"fp16"} if device.kind == "cpu" else set() if device.has_bf16 else {"bf16"}
    usable = [precision for precision in precisions if precision not in slow]
    left_out = [precision for precision in precisions if precision in slow]
    if left_out and not reader.excludes("precision"):
        if not usable:
            raise ConfigError(
                f"profile.precisions {left_out}: slow on {device.name}",
                allowed="at least one precision that this device computes in",
                todo="add fp32 to profile.precisions, or set train.allow_slow_precision=true",
            )
        reader.ignored.append(f"profile.precisions {left_out}: not tried, slow on {device.name}")
    return usable
