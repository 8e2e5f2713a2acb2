"""What a configuration of the tests names as module:callable: networks and loaders with something wrong with them."""

import ctypes
import os
import time
from typing import Any

import torch
from torch import nn


class PlantedNetwork(nn.Module):
    """A small convolution that dies, hangs, takes memory, is slow on a rank or turns its images, in training."""

    def __init__(
        self,
        num_classes: int,
        crash_at: int = 0,
        hang_at: int = 0,
        seconds: float = 0.0,
        bytes_per_sample: int = 0,
        starved_rank: int = -1,
        starved_at: int = 0,
        slow_rank: int = -1,
        busy_s: float = 0.0,
        turns: int = 0,
    ) -> None:
        super().__init__()
        self.crash_at, self.hang_at, self.seconds = crash_at, hang_at, seconds
        self.bytes_per_sample = bytes_per_sample
        self.starved_at = starved_at if os.environ.get("RANK") == str(starved_rank) else 0
        self.busy_s = busy_s if os.environ.get("RANK") == str(slow_rank) else 0.0
        self.turns = turns
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
        for _ in range(self.turns if self.training else 0):
            images = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).contiguous()
        end_s = time.process_time() + self.busy_s
        while self.training and time.process_time() < end_s:
            pass
        features = self.layer(images).relu().mean(dim=(2, 3))
        if self.training:
            time.sleep(self.seconds)
            features = _Hold.apply(features, torch.ones(number, self.bytes_per_sample, dtype=torch.uint8))
        logits: torch.Tensor = self.head(features)
        return logits


class _Hold(torch.autograd.Function):
    """Passes features on, and holds memory until the backward pass, as activations do."""

    @staticmethod
    def forward(context: Any, features: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(taken)
        return features.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def slow_image(image: Any) -> Any:
    """Return the image after 20 ms in which the processor is free."""
    time.sleep(0.02)
    return image
