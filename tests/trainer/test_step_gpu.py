"""A step on a GPU. A file of its own: a process is a rank on a CPU or on a GPU."""

import pytest
import torch

from tests.trainer.one_rank import one_rank
from tests.trainer.test_step import make_stepper, slots
from trainer.data.device import DataClock


@pytest.mark.gpu
# Of the watch itself: it does not see all that waits.
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_a_step_on_a_gpu_does_not_wait() -> None:
    """CUDA's own watch; the first step may wait, as libraries set themselves up."""
    with one_rank(gpu=True) as rank:
        stepper = make_stepper(rank, {"precision": "fp16", "clip_grad_norm": 1.0, "ema_decay": 0.9})
        clock = DataClock(rank.device)
        for slot in slots(4):
            torch.cuda.set_sync_debug_mode("error" if slot.request.step else "default")
            try:
                stepper.compute(slot.pin_memory(), clock)
                if slot.request.last_of_step:
                    stepper.update(slot.request.step, 0.01)
            finally:
                torch.cuda.set_sync_debug_mode("default")
