"""One knob after the other, as the configuration has it: pinned, listed, or left to us."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

from contracts.artifacts import Flags
from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.launch.choices import default_flags, even_share
from trainer.profiling.measure import Device

# With slot_sizes=auto the even share is halved at least this often, and further down to SMALL_SLOT samples: memory may
# force a small slot, and its steps show what a slot costs that does not grow with it.
HALVINGS = 4
SMALL_SLOT = 8
# Smallest slot size that is chosen for a network with BatchNorm, whose statistics are those of a slot.
MIN_BATCH_NORM_SLOT = 16
Knob = Literal[
    "slot_size",
    "num_workers",
    "prefetch_factor",
    "threads",
    "precision",
    "channels_last",
    "compile",
    "activation_checkpointing",
]
# Where a knob is set.
KNOBS: dict[Knob, str] = {
    "slot_size": "parallel.slot_size",
    "num_workers": "data.num_workers",
    "prefetch_factor": "data.prefetch_factor",
    "threads": "resources.threads",
    "precision": "train.precision",
    "channels_last": "train.channels_last",
    "compile": "train.compile",
    "activation_checkpointing": "train.activation_checkpointing",
}
# Where values to try are listed.
LISTS: dict[Knob, str] = {"slot_size": "slot_sizes", "num_workers": "num_workers"}


class KnobReader:
    """Reads knobs out of a configuration, and keeps what of it is ignored.

    Attributes:
        pinned: The value of each knob that is set.
        listed: Its values in `profile`.
    """

    def __init__(self, config: RunConfig, device: Device) -> None:
        self.config, self.device = config, device
        self.ignored: list[str] = []
        self.pinned: dict[Knob, Any] = {}
        self.listed: dict[Knob, Sequence[Any]] = {}
        for knob, setting in KNOBS.items():
            section, _, field = setting.partition(".")
            if (value := getattr(getattr(config, section), field)) != "auto":
                # The one knob that has other words where it is set.
                self.pinned[knob] = value == "on" if knob == "compile" else value
        for knob, name in LISTS.items():
            if (values := getattr(config.profile, name)) != "auto":
                self.listed[knob] = values

    def values(self, knob: Knob, tried: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values that may be chosen.

        Args:
            knob: Its name.
            tried: What `auto` stands for.

        Raises:
            ConfigError: What is set is not listed.
        """
        listed, pinned = self.listed.get(knob), self.pinned.get(knob)
        if pinned is None:
            return tuple(dict.fromkeys(tried if listed is None else listed))
        if listed is not None and pinned not in listed:
            setting, name = KNOBS[knob], f"profile.{LISTS[knob]}"
            raise ConfigError(
                f"{setting} is {pinned}, which is not in {name} [{', '.join(map(str, listed))}]",
                allowed=f"a value of {name}, or {setting}=auto",
                todo=f"set {setting}=auto to have one of {name} chosen, or add {pinned} to {name}",
            )
        return (pinned,)


def doubling(most: int) -> list[int]:
    """Return 1, 2, 4, ... below `most`, and `most` itself."""
    return sorted({min(1 << power, most) for power in range(most.bit_length() + 1)})


def halving(most: int) -> list[int]:
    """Return `most`, half of it, a quarter, ... down to 1."""
    return sorted({max(1, most >> power) for power in range(most.bit_length())})


def smallest_slot(config: RunConfig, ranks: int, device: Device) -> int:
    """Return the smallest slot size that may be chosen without being named by the configuration.

    BatchNorm's statistics are those of a slot, with parallel.sync_batch_norm those of one slot of every rank. Where an
    even share of the global batch is smaller still, it is that share.

    Args:
        config: The configuration.
        ranks: Training processes of all machines.
        device: And the network on it.
    """
    if not device.has_batch_norm:
        return 1
    least = MIN_BATCH_NORM_SLOT
    if config.parallel.sync_batch_norm:
        least = -(-least // ranks)
    return min(least, even_share(config.train.global_batch_size, ranks))


def slot_sizes(reader: KnobReader, ranks: int, smallest: int) -> tuple[int, ...]:
    """Return the slot sizes that leave every rank a slot.

    Args:
        reader: Reads the configuration.
        ranks: Training processes of all machines.
        smallest: Smallest size that is tried where the configuration names none (`smallest_slot`).

    Raises:
        ConfigError: None of them does.
    """
    batch = reader.config.train.global_batch_size
    if batch < ranks:
        raise ConfigError(
            f"train.global_batch_size {batch} leaves some of {ranks} ranks without a sample",
            allowed="at least one sample per rank",
            todo=f"set train.global_batch_size to {ranks} or more, or resources.ranks to {batch} or less",
        )
    share = even_share(batch, ranks)
    tried = [share]
    while len(tried) <= HALVINGS or tried[-1] > SMALL_SLOT:
        if tried[-1] == 1:
            break
        tried.append(-(-share // 2 ** len(tried)))
    sizes = reader.values("slot_size", [size for size in tried if size >= smallest])
    where = "parallel.slot_size" if "slot_size" in reader.pinned else "profile.slot_sizes"
    usable = tuple(size for size in sizes if gives_every_rank_a_slot(batch, ranks, size))
    if not usable:
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
    if small := [size for size in usable if size < smallest]:
        reader.ignored.append(
            f"{where} {small[0] if len(small) == 1 else small}: below {smallest} "
            "samples, and named by the configuration: BatchNorm's statistics of few samples cost accuracy"
        )
    return usable


def flags_of(reader: KnobReader) -> tuple[tuple[Flags, ...], tuple[Flags, ...]]:
    """Return the flags that may be chosen, and those that are only measured.

    Raises:
        ConfigError: torch.compile and activation checkpointing are both set.
    """
    device, on_gpu = reader.device, reader.device.kind == "cuda"
    tried: dict[Knob, Sequence[object]] = {
        "precision": ["fp32", "bf16"] if device.has_bf16 else ["fp32", "fp16"] if on_gpu else ["fp32"],
        "channels_last": [False, True] if device.has_layout else [False],
        "compile": [False, True] if on_gpu and device.compiles else [False],
        "activation_checkpointing": ["none", "whole"],
    }
    choices: dict[Knob, list[object]] = {}
    usual_flags = default_flags()
    for knob, usual in tried.items():
        # What training has without a profile comes first: the others have to be better than it.
        default = getattr(usual_flags, knob)
        choices[knob] = sorted(reader.values(knob, usual), key=lambda value, first=default: value != first)  # type: ignore[misc]
    combined = [
        Flags.model_validate(dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values())
    ]
    flags = tuple(each for each in combined if _go_together(each))
    if not flags:
        raise ConfigError(
            "train.compile and train.activation_checkpointing leave only both together",
            allowed="one of both: torch.compile decides by itself what it computes again",
            todo="set train.compile=off, or train.activation_checkpointing=none",
        )
    beside = []
    for knob, usual in tried.items():
        for value in usual if knob in reader.pinned else ():
            changed = flags[0].model_copy(update={knob: value})
            if value != reader.pinned[knob] and _go_together(changed):
                beside.append(changed)
    return flags, tuple(beside)


def _go_together(flags: Flags) -> bool:
    return not (flags.compile and flags.activation_checkpointing != "none")


def gives_every_rank_a_slot(global_batch_size: int, ranks: int, slot_size: int) -> bool:
    """Whether a global batch in slots of this size leaves no rank without work, and fills a slot."""
    return slot_size <= global_batch_size and -(-global_batch_size // slot_size) >= ranks
