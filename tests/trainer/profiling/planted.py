"""What a configuration of the tests names as module:callable: a network and a loader with something wrong with them."""

import ctypes
import os
import time
from typing import Any

import torch
from torch import nn


class PlantedNetwork(nn.Module):
    """A small convolution that in training dies, hangs or lacks memory at a slot size, or is slow on one rank."""

    def __init__(
        self,
        num_classes: int,
        crash_at: int = 0,
        hang_at: int = 0,
        starved_rank: int = -1,
        starved_at: int = 0,
        slow_rank: int = -1,
        busy_s: float = 0.0,
    ) -> None:
        super().__init__()
        self.crash_at, self.hang_at = crash_at, hang_at
        self.starved_at = starved_at if os.environ.get("RANK") == str(starved_rank) else 0
        self.busy_s = busy_s if os.environ.get("RANK") == str(slow_rank) else 0.0
        self.layer = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # An exported graph must not know its batch.
        number = len(images) if self.training else -1
        if number == self.crash_at:
            ctypes.string_at(0)
        if number == self.starved_at:
            raise MemoryError("planted")
        if number == self.hang_at:
            time.sleep(600)
        end_s = time.process_time() + self.busy_s
        while self.training and time.process_time() < end_s:
            pass
        logits: torch.Tensor = self.head(self.layer(images).relu().mean(dim=(2, 3)))
        return logits


def slow_image(image: Any) -> Any:
    """Return the image after 20 ms in which the processor is free."""
    time.sleep(0.02)
    return image
