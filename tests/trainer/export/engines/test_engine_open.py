"""How a loaded engine is called, with a double of TensorRT's context whose memory is the CPU's."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from contracts.errors import CheckFailed
from trainer.export.engines.engine_open import BatchRefused, Engine


class Context:
    """Adds one to each number of x, at most four samples at a time."""

    def __init__(self) -> None:
        self.addresses: dict[str, int] = {}
        self.runs = True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shape = shape
        return shape[0] <= 4

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shape

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        number = int(np.prod(self.shape))
        x, y = ((ctypes.c_float * number).from_address(self.addresses[name]) for name in ("x", "y"))
        y[:] = [value + 1 for value in x]
        return self.runs


class Loaded:
    """The engine that makes such contexts."""

    def __init__(self) -> None:
        self.contexts: list[Context] = []

    def create_execution_context(self) -> Context:
        self.contexts.append(Context())
        return self.contexts[-1]


class Stream:
    cuda_stream = 0
    waits = 0

    def wait_stream(self, other: Stream) -> None:
        Stream.waits += 1

    def synchronize(self) -> None:
        pass


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    empty = torch.empty

    def on_cpu(*size: Any, dtype: Any, device: str) -> torch.Tensor:
        assert device == "cuda"
        return empty(*size, dtype=dtype)

    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    monkeypatch.setattr(torch, "empty", on_cpu)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    return Loaded()


def open_double(loaded: Loaded) -> Engine:
    return Engine("model.engine", object(), loaded, {"y": torch.float32}, ["WARNING: said"])


def batch(samples: int, value: float = 0.0) -> dict[str, np.ndarray]:
    return {"x": np.full((samples, 3), value, np.float32)}


def test_batches_of_any_size_of_the_profile_run_one_after_the_other(loaded: Loaded) -> None:
    engine = open_double(loaded)
    for samples in (1, 4, 2):
        (found,) = engine(batch(samples, samples)).values()
        assert found.tolist() == [[samples + 1.0] * 3] * samples
    assert len(loaded.contexts) == 1
    assert Stream.waits >= 3


def test_a_batch_outside_of_the_profile_is_refused(loaded: Loaded) -> None:
    with pytest.raises(BatchRefused, match=r"model\.engine refuses .*5, 3.*WARNING: said"):
        open_double(loaded)(batch(5))


def test_a_run_that_fails_is_no_answer(loaded: Loaded) -> None:
    engine = open_double(loaded)
    loaded.contexts[0].runs = False
    with pytest.raises(CheckFailed, match=r"model\.engine does not run: WARNING: said"):
        engine(batch(1))


def test_batches_with_contexts_of_their_own_stay_computable(loaded: Loaded) -> None:
    engine = open_double(loaded)
    placed = [engine.place(batch(samples, 7.0), own_context=True) for samples in (1, 3)]
    for one, samples in zip(placed, (1, 3), strict=True):
        one.execute()
        assert one.outputs["y"].tolist() == [[8.0] * 3] * samples
    assert len(loaded.contexts) == 3
