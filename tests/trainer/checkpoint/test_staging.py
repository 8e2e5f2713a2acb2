"""What a checkpoint may be made of, and the host memory that it is copied to."""

from pathlib import Path

import pytest
import torch

from contracts.errors import EXIT_USER_ERROR, ModelError
from tests.conftest import small_config
from tests.own_code.models_for_tests import with_state
from tests.trainer.one_rank import make_training, one_rank
from trainer.checkpoint.staging import HostBuffer, require_storable


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("complex64", "table is of type complex64"),
        ("extra", "8._extra_state is state of its own"),
    ],
)
def test_state_that_no_checkpoint_can_hold_ends_training_before_its_first_step(
    small_shards: str, tmp_path: Path, state: str, words: str
) -> None:
    model = {"architecture": "models_for_tests:with_state", "arguments": {"state": state}}
    with one_rank() as rank, pytest.raises(ModelError) as error:
        make_training(rank, tmp_path, small_shards, small_config(model=model))
    assert words in str(error.value) and error.value.exit_code == EXIT_USER_ERROR


@pytest.mark.parametrize("state", ["temporary complex64", "bfloat16"])
def test_what_a_checkpoint_can_hold_is_taken(state: str) -> None:
    model = with_state(3, state)
    model(torch.zeros(2, 3, 16, 16))
    require_storable(model, "it")


def test_memory_whose_pages_cannot_be_locked_is_used_all_the_same() -> None:
    """Without a GPU torch has no page-locked memory; that is said once, not at every save."""
    said: list[str] = []
    buffer = HostBuffer(0, 1, pinned=True, log=said.append)
    for shape in ((3,), (4,)):
        (file,) = buffer.stage({"model": {"w": torch.full(shape, 2.0)}})
        assert torch.equal(file.tensors["w"], torch.full(shape, 2.0))
    if not torch.cuda.is_available():
        assert len(said) == 1 and "not page-locked" in said[0]


@pytest.mark.gpu
def test_pages_are_locked_and_let_go() -> None:
    said: list[str] = []
    buffer = HostBuffer(0, 1, pinned=True, log=said.append)
    for shape in ((1 << 20,), (3 << 20,)):
        (file,) = buffer.stage({"model": {"w": torch.ones(shape, device="cuda")}})
        assert file.data.is_pinned() and float(file.tensors["w"].sum()) == shape[0]
    assert said == []
