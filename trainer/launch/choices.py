"""Choose slot size, loader workers, threads and precision: from the configuration, the profile, or defaults.

The profile chooses slot size and workers only. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from contracts.artifacts import ProfileChoice, ProfileReport
from contracts.config import ParallelSection, RunConfig
from contracts.config.base import Auto
from contracts.errors import ConfigError, DataError
from contracts.fingerprint import model_fingerprint
from contracts.process import available_cores, threads_per_rank
from trainer.launch.machine import num_gpus, visible_gpus

PREFETCH_FACTOR = 4
"""Slots that each loader worker prepares ahead with data.prefetch_factor=auto."""
FIRST_BF16 = 80
"""Compute capability (times ten) of the first GPUs with bf16; torch.cuda.is_bf16_supported has the same number."""


@dataclass(frozen=True)
class BatchLayout:
    """Slot size and loader settings, with the reason for them."""

    slot_size: int
    num_workers: int
    reason: str
    prefetch_factor: int = PREFETCH_FACTOR

    def idle_ranks(self, global_batch_size: int, ranks: int) -> int:
        """Return the number of ranks without a slot of a full batch."""
        return max(0, ranks - -(-global_batch_size // self.slot_size))

    def slots_per_rank(self, global_batch_size: int, ranks: int) -> int:
        """Return the maximum number of slots per rank in a full batch."""
        num_slots = -(-global_batch_size // self.slot_size)
        return -(-num_slots // ranks)


def choose_batch_layout(
    config: RunConfig,
    *,
    ranks: int,
    profile: ProfileReport | None,
    recorded: int | None,
    spare_cores: int = 0,
) -> BatchLayout:
    """Choose slot size and loader from the configuration, else the profile, else an even share and `spare_cores`.

    A slot size `recorded` in the checkpoint has precedence: it must not change.

    Raises:
        DataError: The report is of another model.
        ConfigError: A new training has more ranks than slots. In a resumed one, ranks idle.
    """
    if profile is not None and profile.model_fingerprint != model_fingerprint(config):
        raise DataError(
            f"the profile report measured another model ({profile.model_fingerprint})",
            allowed=f"a report of this configuration's model ({model_fingerprint(config)})",
            todo="run `shardline profile` for this configuration, or set parallel.slot_size and data.num_workers",
        )
    batch, choice, default_reason = config.train.global_batch_size, _measured_choice(profile), _default_reason(profile)
    share = even_share(batch, ranks)
    slot_size, slot_reason = _take(
        config, "parallel.slot_size", choice, share, f"an even share of the global batch ({default_reason})"
    )
    if recorded is not None:
        slot_size, slot_reason = recorded, "recorded in the checkpoint"
    num_workers, workers_reason = _take(config, "data.num_workers", choice, spare_cores, default_reason)
    ahead = config.data.prefetch_factor
    num_slots = -(-batch // slot_size)
    if num_slots < ranks and recorded is None:
        raise ConfigError(
            f"train.global_batch_size {batch} in slots of {slot_size} ({slot_reason}) makes {num_slots} slots "
            f"for {ranks} ranks",
            allowed="at least one slot per rank",
            todo=f"set parallel.slot_size to {batch // ranks} or less, or resources.ranks to {num_slots} or less"
            if batch >= ranks
            else f"set train.global_batch_size to {ranks} or more, or resources.ranks to {batch} or less",
        )
    reasons = [f"slot_size {slot_size}: {slot_reason}", f"num_workers {num_workers}: {workers_reason}"]
    return BatchLayout(slot_size, num_workers, "; ".join(reasons), PREFETCH_FACTOR if ahead == "auto" else ahead)


def even_share(global_batch_size: int, ranks: int) -> int:
    """Return the slot size that gives each rank one slot of a global batch; at least one sample."""
    share = -(-global_batch_size // ranks)
    # Rounding up may leave ranks idle: 9 samples for 4 ranks would be three slots of 3.
    return share if -(-global_batch_size // share) >= ranks else max(1, global_batch_size // ranks)


def find_spare_cores(ranks: int) -> int:
    """Return the cores per rank for loader workers; 0 without a GPU, where a rank computes on all cores."""
    return max(0, available_cores() // ranks - 1) if num_gpus() else 0


def default_precision() -> Literal["bf16", "fp32"]:
    """Return the precision for `auto`: bf16 if all GPUs support it, else fp32."""
    gpus = visible_gpus()
    return "bf16" if gpus and min(gpu.capability for gpu in gpus) >= FIRST_BF16 else "fp32"


def default_channels_last() -> bool:
    """Return channels_last for `auto`: true on a GPU, for its tensor cores."""
    return bool(visible_gpus())


def choose_threads(config: RunConfig, *, ranks: int) -> tuple[int, str]:
    """Return the intra-op threads per rank, and a warning if they exceed its cores."""
    threads, cores = config.resources.threads, threads_per_rank(ranks)
    if threads == "auto":
        return cores, ""
    return threads, f"resources.threads {threads} is more than the {cores} cores of a rank" if threads > cores else ""


def find_differences(profile: ProfileReport, hardware: Mapping[str, str], global_batch_size: int) -> list[str]:
    """Return warnings about differences from the profiled machine and global batch."""
    if _measured_choice(profile) is None:
        return []
    measured = {**profile.hardware, "train.global_batch_size": str(profile.global_batch_size)}
    here = {**hardware, "train.global_batch_size": str(global_batch_size)}
    return [
        f"the profile was measured with {name} {measured.get(name, 'unknown')}, not {value}: its choice may not be the "
        "best here"
        for name, value in here.items()
        if measured.get(name) != value
    ]


def _measured_choice(profile: ProfileReport | None) -> ProfileChoice | None:
    return profile.choice if profile is not None and profile.choice.measured else None


def _default_reason(profile: ProfileReport | None) -> str:
    if profile is None:
        return "no profile"
    return "default, profile: off" if profile.method == "off" else "default, the profile compared nothing"


def _take(config: RunConfig, setting: str, choice: ProfileChoice | None, default: int, reason: str) -> tuple[int, str]:
    """Return a value and its origin: configuration, profile or default."""
    section, _, name = setting.partition(".")
    explicit: int | Auto = getattr(getattr(config, section), name)
    if explicit != "auto":
        return explicit, f"set by {setting}"
    return (default, reason) if choice is None else (getattr(choice, name), "chosen by the profile")


def slot_sizes(num_samples: int, *, global_batch_size: int, slot_size: int) -> list[int]:
    """Return the distinct slot sizes of an epoch, largest first: full slots, and the last ones of batches."""
    batches = {min(num_samples, global_batch_size), num_samples % global_batch_size} - {0}
    sizes = {size for batch in batches for size in (min(batch, slot_size), batch % slot_size)} - {0}
    return sorted(sizes, reverse=True)


def find_slow_precision(precision: str, capability: int | None) -> str:
    """Return a warning if another precision is faster on a GPU of this capability (None: a CPU); empty otherwise."""
    if precision == "fp16" and capability is None:
        return "train.precision is fp16, and there is no GPU: a CPU is slower in fp16 than in fp32"
    if precision == "bf16" and capability is not None and capability < FIRST_BF16:
        return "train.precision is bf16, which the GPU can only emulate: fp16 is faster there"
    return ""


def check_spread(section: ParallelSection, *, has_gpu: bool, where: str = "here") -> None:
    """Raise a ConfigError where parallel.sync_batch_norm is on without a GPU."""
    if section.sync_batch_norm and not has_gpu:
        raise ConfigError(
            f"parallel.sync_batch_norm is on, but there is no GPU {where}: SyncBatchNorm has no implementation for the "
            "CPU",
            allowed="parallel.sync_batch_norm=false on a machine without a GPU",
            todo="set parallel.sync_batch_norm=false, or train on machines with GPUs",
        )
