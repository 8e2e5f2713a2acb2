"""How a global batch is cut and loaded: the one place that decides slot size and loader processes.

It imports no torch, so that the launcher finds a cut that cannot work before it starts anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from contracts.artifacts import ProfileReport
from contracts.config import RunConfig
from contracts.errors import ConfigError, DataError
from contracts.fingerprint import model_fingerprint


@dataclass(frozen=True)
class Cut:
    """How the global batch is cut and loaded, and why."""

    slot_size: int
    num_workers: int
    reason: str

    def slots_per_rank(self, global_batch_size: int, ranks: int) -> int:
        """Return the largest number of slots that a rank processes in a full batch."""
        num_slots = -(-global_batch_size // self.slot_size)
        return -(-num_slots // ranks)


def choose_cut(config: RunConfig, *, ranks: int, profile: ProfileReport | None, recorded: int | None) -> Cut:
    """Decide slot size and loader processes.

    An explicit value in the configuration wins over the profile's choice; a slot size recorded in a checkpoint wins
    over both, since it must not change while training goes on.

    Args:
        config: The configuration.
        ranks: Number of training processes.
        profile: The report of the profiling run, if there is one.
        recorded: Slot size of the checkpoint that training resumes from.

    Raises:
        DataError: The report is of another model.
        ConfigError: There are more ranks than slots.
    """
    if profile is not None and profile.model_fingerprint != model_fingerprint(config):
        raise DataError(
            f"the profile report measured another model ({profile.model_fingerprint})",
            allowed=f"a report of this configuration's model ({model_fingerprint(config)})",
            todo="run `shardline profile` for this configuration, or set parallel.slot_size and data.num_workers",
        )
    batch = config.train.global_batch_size
    explicit_slot, explicit_workers = config.parallel.slot_size, config.data.num_workers
    if recorded is not None:
        slot_size, slot_reason = recorded, "recorded in the checkpoint"
    elif explicit_slot != "auto":
        slot_size, slot_reason = explicit_slot, "set by parallel.slot_size"
    elif profile is not None:
        slot_size, slot_reason = profile.choice.slot_size, "chosen by the profile"
    else:
        slot_size, slot_reason = -(-batch // ranks), "an even share of the global batch (no profile)"
    if explicit_workers != "auto":
        num_workers, workers_reason = explicit_workers, "set by data.num_workers"
    elif profile is not None:
        num_workers, workers_reason = profile.choice.num_workers, "chosen by the profile"
    else:
        num_workers, workers_reason = 0, "no profile"
    num_slots = -(-batch // slot_size)
    if num_slots < ranks:
        raise ConfigError(
            f"train.global_batch_size {batch} in slots of {slot_size} ({slot_reason}) makes {num_slots} slots "
            f"for {ranks} ranks",
            allowed="at least one slot per rank",
            todo=f"set parallel.slot_size to {batch // ranks} or less, or resources.ranks to {num_slots} or less"
            if batch >= ranks
            else f"set train.global_batch_size to {ranks} or more, or resources.ranks to {batch} or less",
        )
    reason = f"slot_size {slot_size}: {slot_reason}; num_workers {num_workers}: {workers_reason}"
    return Cut(slot_size, num_workers, reason)


def has_single_sample_slot(num_samples: int, *, global_batch_size: int, slot_size: int) -> bool:
    """Whether a slot of an epoch holds one sample only: the last of a full batch, or of the epoch's short one."""
    batches = {min(num_samples, global_batch_size), num_samples % global_batch_size} - {0}
    return any(1 in (min(batch, slot_size), batch % slot_size) for batch in batches)
