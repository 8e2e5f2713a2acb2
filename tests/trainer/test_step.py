"""One optimizer step: slots add up to the batch, and nothing in it waits for the device."""

import copy
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from contracts.config import RunConfig
from contracts.errors import ModelError
from tests.conftest import small_config
from tests.trainer.tasks.for_tests import image_task, task_of
from trainer.data.cursor import slot_requests
from trainer.data.device import DataClock
from trainer.data.loader import SlotBatch
from trainer.data.order import FullOrder
from trainer.model.numerics import Numerics
from trainer.parallel.process_group import Rank
from trainer.step import Stepper
from trainer.tasks.augmentation import Mixing
from trainer.tasks.task import Batch, Mode

CPU = torch.device("cpu")
SAMPLES = 45
PLAIN = {"architecture": "models_for_tests:without_batchnorm", "arguments": {}}


def make_stepper(rank: Rank, train: dict[str, Any], model: dict[str, Any] = PLAIN) -> Stepper:
    values = small_config(train={"global_batch_size": 16, "epochs": 1, **train}, model=model)
    config = RunConfig.model_validate(values)
    stepper = Stepper(config, task_of(config, 3), rank, Numerics.of(config.train), lambda message: None)
    stepper.warm_up(4)
    stepper.model.train()
    return stepper


def slots(slot_size: int, *, mixing: Mixing | None = None) -> Iterator[SlotBatch]:
    """Yield an epoch of 45 samples in batches of 16: the last batch has 13, its last slot is smaller again."""
    random = np.random.default_rng(0)
    images = torch.from_numpy(random.integers(0, 256, (SAMPLES, 16, 16, 3), dtype=np.uint8))
    labels = torch.from_numpy(random.integers(0, 3, SAMPLES))
    order = FullOrder(SAMPLES, seed=0)
    for request in slot_requests(0, order=order, epochs=1, global_batch_size=16, slot_size=slot_size, rank=0, ranks=1):
        places = list(request.samples)
        batch: Batch = {"images": images[places], "label": labels[places]}
        if mixing is not None:
            batch["mix"] = mixing.draw(len(places), 16, random)
        yield SlotBatch(request, batch)


def take_epoch(stepper: Stepper, slot_size: int) -> tuple[list[float], list[dict[str, torch.Tensor]]]:
    """Return the mean loss and the gradients of every step."""
    clock = DataClock(CPU)
    losses, gradients, total = [], [], 0.0
    for slot in slots(slot_size):
        total += float(stepper.compute(slot, clock))
        if slot.request.last_of_step:
            losses.append(total / slot.request.batch_samples)
            named = stepper.model.named_parameters()
            gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})
            stepper.update(slot.request.step, 0.01)
            total = 0.0
    return losses, gradients


@pytest.mark.parametrize("slot_size", [8, 5, 3, 1])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_slots_add_up_to_the_batch(rank: Rank, slot_size: int, optimizer: str) -> None:
    """16 samples in one pass, or in slots of which the last is smaller; and the 13 samples at the end of the epoch."""
    whole, cut = (make_stepper(rank, {"optimizer": optimizer, "clip_grad_norm": 5.0}) for _ in range(2))
    expected, gradients = take_epoch(whole, 16)
    found, sums = take_epoch(cut, slot_size)
    assert len(expected) == 3
    assert found == pytest.approx(expected, abs=1e-6)
    for one, other in zip(gradients, sums, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert torch.allclose(one[name], other[name], rtol=0, atol=1e-6), name
    for one_p, other_p in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        # AdamW divides by what is as small as the difference itself where a gradient is next to zero.
        assert torch.allclose(one_p, other_p, rtol=0, atol=1e-6 if optimizer == "sgd" else 1e-4)


def test_the_gradient_is_that_of_the_mean_over_the_whole_batch(rank: Rank) -> None:
    """Against plain torch: also where the last batch of an epoch is smaller, and its last slot smaller again."""
    stepper = make_stepper(rank, {"optimizer": "sgd", "label_smoothing": 0.1})
    task, clock = image_task(3), DataClock(CPU)
    pixels: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    sizes = []
    for slot in slots(5):
        given = task.to_model(slot.batch, Mode(training=True))
        pixels.append(given["images"])
        labels.append(given["label"])
        stepper.compute(slot, clock)
        if not slot.request.last_of_step:
            continue
        twin = copy.deepcopy(stepper.model)
        twin.zero_grad()
        mean = torch.nn.functional.cross_entropy(twin(torch.cat(pixels)), torch.cat(labels), label_smoothing=0.1)
        mean.backward()
        for found, expected in zip(stepper.model.parameters(), twin.parameters(), strict=True):
            assert found.grad is not None
            assert expected.grad is not None
            assert torch.allclose(found.grad, expected.grad, rtol=0, atol=1e-6)
        sizes.append(sum(map(len, labels)))
        pixels, labels = [], []
        stepper.update(slot.request.step, 0.01)
    assert sizes == [16, 16, 13]


class Waits(TorchDispatchMode):
    """Records what would wait for a device: values that become Python's, and shapes that depend on values."""

    WAITING = frozenset(
        {"_local_scalar_dense", "item", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "_unique2"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in self.WAITING:
            self.found.append("".join(traceback.format_list(traceback.extract_stack(sys._getframe(1))[-12:])))
        return func(*args, **(kwargs or {}))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"optimizer": "sgd", "clip_grad_norm": 1.0, "ema_decay": 0.9, "label_smoothing": 0.1},
    {"precision": "bf16", "clip_grad_norm": 1.0},
    {"precision": "fp16", "ema_decay": 0.9},
    {"channels_last": True},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_nothing_in_a_step_waits_for_the_device(
    rank: Rank, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the operations that ways from a tensor to a Python value end in, whoever takes them, and by their names."""
    stepper = make_stepper(rank, options, model=small_config()["model"])
    clock = DataClock(CPU)
    called: list[str] = []
    for name in ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__"):
        original = getattr(torch.Tensor, name)

        def watched(self: torch.Tensor, *args: Any, _name: str = name, _original: Any = original, **more: Any) -> Any:
            called.append(_name)
            return _original(self, *args, **more)

        monkeypatch.setattr(torch.Tensor, name, watched)
    mixing = Mixing(mixup_alpha=0.2, cutmix_alpha=1.0)
    with Waits() as waits:
        for slot in slots(4, mixing=mixing):
            stepper.compute(slot, clock)
            if slot.request.last_of_step:
                stepper.update(slot.request.step, 0.01)
    assert waits.found == []
    assert called == []


def test_the_watch_sees_what_waits() -> None:
    for wait in (float, bool, int, torch.Tensor.item, lambda tensor: tensor.nonzero()):
        with Waits() as waits:
            wait(torch.ones(()))
        assert len(waits.found) == 1


# torch's own, of its import of the compiler.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("error", ["memory", "peer"])
def test_only_a_failure_of_the_compiler_is_the_users_mistake(rank: Rank, error: str) -> None:
    """The compiler is switched off: what the network raises passes as it does where compiled code runs."""
    model = {"architecture": "models_for_tests:fails_on_slots", "arguments": {"error": error}}
    expected = (torch.OutOfMemoryError, torch.distributed.DistBackendError)
    with torch.compiler.set_stance("force_eager"), pytest.raises(expected, match=error):
        make_stepper(rank, {"compile": "on"}, model)


def test_the_buffers_that_are_shared_in_each_step_are_those_that_a_pass_writes_to(rank: Rank) -> None:
    """Also where their values stay: BatchNorm's mean of zeros is zero."""
    stepper = make_stepper(rank, {}, {"architecture": "models_for_tests:with_buffers", "arguments": {}})
    changing = {id(buffer) for buffer in stepper._buffers_that_change()}
    names = {name for name, buffer in stepper.model.named_buffers() if id(buffer) in changing}
    assert names == {"1.running_mean", "1.running_var", "1.num_batches_tracked", "4.seen"}


@pytest.mark.parametrize("way", ["in place", "replaced", "stays"])
def test_a_buffer_that_changes_and_that_no_checkpoint_holds_is_refused_by_name(rank: Rank, way: str) -> None:
    """A resume would begin with its first value, and so would an export."""
    model = {"architecture": "models_for_tests:with_temporary_buffers", "arguments": {"way": way}}
    if way == "stays":
        make_stepper(rank, {}, model)
        return
    with pytest.raises(ModelError, match=r"training writes to 0\.centre, registered with persistent=False") as refused:
        make_stepper(rank, {}, model)
    assert refused.value.exit_code == 2
