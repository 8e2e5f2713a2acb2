"""What a profile chose, from the first step to the last attempt."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import Flags, ProfileChoice
from tests.conftest import small_config
from tests.trainer.one_rank import Crash, logs, make_training, newest, one_rank, train
from tests.trainer.test_task import profile_folder
from trainer.data.loader import make_loader
from trainer.parallel.process_group import Rank

AUTO = {"precision": "auto", "channels_last": "auto", "activation_checkpointing": "auto"}
CHOSEN = Flags(precision="bf16", channels_last=True, activation_checkpointing="whole")
NUMERICS = {
    "precision": "bf16",
    "channels_last": "true",
    "compile": "false",
    "activation_checkpointing": "whole",
}


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    with one_rank() as rank:
        yield rank


def config(**train_section: Any) -> dict[str, Any]:
    return small_config(
        train={"epochs": 2, **AUTO, **train_section},
        checkpoint={"every_steps": 3},
        parallel={"slot_size": "auto"},
        data={"num_workers": "auto"},
    )


def profile(folder: Path, flags: Flags, **choice: Any) -> str:
    values = {"slot_size": 8, "num_workers": 0, **choice}
    chosen = ProfileChoice(reason="r", flags=flags, **values)
    return storage.normalise(profile_folder(folder, config(), choice=chosen))


def test_what_the_profile_chose_holds_over_attempts(rank: Rank, small_shards: str, tmp_path: Path) -> None:
    """Whatever a later profile says, and even without one: the bits are those of an undisturbed training."""
    first = profile(tmp_path / "first", CHOSEN)
    # Chosen for a training that begins, it would be refused.
    other = profile(tmp_path / "other", Flags(compile=True), slot_size=4)
    whole = train(rank, tmp_path / "whole", small_shards, config(), profile=first)
    assert (whole.numerics, whole.profile) == (NUMERICS, "f")
    assert "precision bf16, channels_last True, activation_checkpointing whole: chosen by the profile" in (
        logs(tmp_path / "whole")
    )
    killed = tmp_path / "killed"
    with pytest.raises(Crash):
        train(rank, killed, small_shards, config(), crash_at=4, profile=first)
    # The first checkpoint records it.
    assert (newest(killed).step, newest(killed).numerics, newest(killed).slot_size) == (3, NUMERICS, 8)
    with pytest.raises(Crash):
        train(rank, killed, small_shards, config(), "b", crash_at=4, profile=other)
    said = logs(killed, "b")
    assert "as recorded in the checkpoint: precision bf16 (not fp32), channels_last true (not false)" in said
    assert "compile false (not true), activation_checkpointing whole (not none)" in said
    assert "slot_size 8: recorded in the checkpoint" in said
    assert newest(killed).numerics == NUMERICS
    ended = train(rank, killed, small_shards, config(), "c")
    assert (ended.numerics, ended.slot_size) == (NUMERICS, 8)
    assert ended.parameters_sha256 == whole.parameters_sha256


def test_the_loader_works_as_far_ahead_as_was_chosen(
    rank: Rank, small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    def make_and_tell(*arguments: Any, **options: Any) -> Any:
        made.append(options)
        return make_loader(*arguments, **options)

    monkeypatch.setattr("trainer.data.training_data.make_loader", make_and_tell)
    first = profile(tmp_path / "first", Flags(), num_workers=1, prefetch_factor=2)
    training = make_training(rank, tmp_path, small_shards, config(), profile=first)
    ahead = training.data.prefetcher(0)
    slots = training.data.slots(0, ahead)
    assert len(next(slots).batch["label"]) == 8
    del slots
    ahead.close()
    assert [(options["num_workers"], options["prefetch_factor"]) for options in made] == [(1, 2)]
