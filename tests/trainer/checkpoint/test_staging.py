"""State that a checkpoint can hold, its layout in files, and the host memory that it is copied to."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import deserialize

from contracts.errors import EXIT_USER_ERROR, ModelError
from tests.own_code.models_for_tests import with_state
from trainer.checkpoint.loading import DTYPES
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


names = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple) | st.just((4, 16))


@given(st.dictionaries(names, st.tuples(st.sampled_from(sorted(DTYPES)), shapes), max_size=6))
def test_the_library_reads_what_is_laid_out(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """And tensors begin at their item size, those that fill cache lines at a line."""
    state = {name: torch.ones(shape).to(DTYPES[kind]) for name, (kind, shape) in tensors.items()}
    (file,) = HostBuffer(ON_CPU).stage({"model": state})
    library = dict(deserialize(file.content.numpy().tobytes()))
    assert {name: (value["dtype"], tuple(value["shape"])) for name, value in library.items()} == tensors
    for name, tensor in file.tensors.items():
        assert torch.equal(tensor, state[name])
        offset = tensor.data_ptr() - file.content.data_ptr()
        assert offset % tensor.itemsize == 0
        assert offset % 64 == 0 or tensor.numel() * tensor.itemsize % 64


def test_memory_whose_pages_cannot_be_locked_is_used_all_the_same() -> None:
    """Without a GPU torch has no page-locked memory; that is said once, not at every save."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    messages: list[str] = []
    buffer = HostBuffer(Rank(0, 0, 1, torch.device("cuda")), messages.append)
    for shape in ((3,), (4,)):
        (file,) = buffer.stage({"model": {"w": torch.full(shape, 2.0)}})
        assert torch.equal(file.tensors["w"], torch.full(shape, 2.0))
    assert len(messages) == 1 and "not page-locked" in messages[0]


@pytest.mark.gpu
def test_pages_are_locked_and_let_go() -> None:
    messages: list[str] = []
    buffer = HostBuffer(Rank(0, 0, 1, torch.device("cuda", 0)), messages.append)
    for shape in ((1 << 20,), (3 << 20,)):
        (file,) = buffer.stage({"model": {"w": torch.ones(shape, device="cuda")}})
        assert file.content.is_pinned() and float(file.tensors["w"].sum()) == shape[0]
    assert messages == []
