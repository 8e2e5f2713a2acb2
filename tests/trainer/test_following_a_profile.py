"""Slot size, workers and numerics of a training from its first step to its last attempt."""

from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import ProfileChoice
from tests.conftest import small_config
from tests.trainer.one_rank import Crash, logs, newest, train
from tests.trainer.test_task import profile_folder
from trainer.parallel.process_group import Rank

BF16 = {"precision": "bf16", "channels_last": True, "activation_checkpointing": "whole"}
NUMERICS = {
    "precision": "bf16",
    "channels_last": "true",
    "compile": "false",
    "activation_checkpointing": "whole",
}


def config(**train_section: Any) -> dict[str, Any]:
    return small_config(
        train={"epochs": 2, **train_section},
        checkpoint={"every_steps": 3},
        parallel={"slot_size": "auto"},
        data={"num_workers": "auto"},
    )


def profile(folder: Path, **choice: Any) -> str:
    values = {"slot_size": 8, "num_workers": 0, **choice}
    return storage.normalise(profile_folder(folder, config(), choice=ProfileChoice(reason="r", **values)))


def test_what_a_training_began_with_holds_over_attempts(rank: Rank, small_shards: str, tmp_path: Path) -> None:
    """Whatever a later profile or configuration has: the bits are those of an undisturbed training."""
    first, other = profile(tmp_path / "first"), profile(tmp_path / "other", slot_size=4)
    whole = train(rank, tmp_path / "whole", small_shards, config(**BF16), profile=first)
    assert (whole.numerics, whole.profile) == (NUMERICS, "f")
    killed = tmp_path / "killed"
    with pytest.raises(Crash):
        train(rank, killed, small_shards, config(**BF16), crash_at=4, profile=first)
    # The first checkpoint records it.
    assert (newest(killed).step, newest(killed).numerics, newest(killed).slot_size) == (3, NUMERICS, 8)
    changed = config(precision="auto", channels_last="auto", compile="on")
    with pytest.raises(Crash):
        train(rank, killed, small_shards, changed, "b", crash_at=4, profile=other)
    output = logs(killed, "b")
    assert "as recorded in the checkpoint: precision bf16 (not fp32), channels_last true (not false)" in output
    assert "compile false (not true), activation_checkpointing whole (not none)" in output
    assert "slot_size 8: recorded in the checkpoint" in output
    assert newest(killed).numerics == NUMERICS
    ended = train(rank, killed, small_shards, config(), "c")
    assert (ended.numerics, ended.slot_size) == (NUMERICS, 8)
    assert ended.parameters_sha256 == whole.parameters_sha256
