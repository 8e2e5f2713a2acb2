"""State that a checkpoint can hold, and the host memory that it is copied to."""

import pytest
import torch

from contracts.errors import EXIT_USER_ERROR, ModelError
from tests.own_code.models_for_tests import with_state
from trainer.checkpoint.staging import HostBuffer, require_storable
from trainer.parallel.process_group import Rank

ON_CPU = Rank(0, 0, 1, torch.device("cpu"))


def test_state_that_no_checkpoint_can_hold_is_refused() -> None:
    for state, words in (("complex64", "table is of type complex64"), ("extra", "8._extra_state is state of its own")):
        with pytest.raises(ModelError, match=words) as error:
            require_storable(with_state(3, state), "it")
        assert error.value.exit_code == EXIT_USER_ERROR
    require_storable(with_state(3, "temporary complex64"), "it")
    with pytest.raises(ModelError, match="optimizer: w/phase is of type complex64"):
        HostBuffer(ON_CPU).stage({"optimizer": {"w/phase": torch.zeros(1, dtype=torch.complex64)}})


@pytest.mark.gpu
def test_pages_are_locked_and_let_go() -> None:
    messages: list[str] = []
    buffer = HostBuffer(Rank(0, 0, 1, torch.device("cuda", 0)), messages.append)
    for shape in ((1 << 20,), (3 << 20,)):
        (file,) = buffer.stage({"model": {"w": torch.ones(shape, device="cuda")}})
        assert file.content.is_pinned() and float(file.tensors["w"].sum()) == shape[0]
    assert messages == []
