"""What a configuration of the tests names as module:callable: a network that takes its time, images that never come."""

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

# A folder: once it holds `sleep`, one process that prepares an image leaves `asleep` there and sleeps on.
FOLDER_VARIABLE = "SLOWLY_FOLDER"
SLEEP_S = 600


class SlowNetwork(nn.Module):
    """A linear layer and BatchNorm behind a sleep."""

    def __init__(self, num_classes: int, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self.seconds)
        logits: torch.Tensor = self.head(self.norm(images).mean(dim=(2, 3)))
        return logits


def sleepy(image: Any) -> Any:
    """Return the image; the first process that finds that it should, sleeps before it does."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    if (folder / "sleep").exists():
        try:
            os.close(os.open(folder / "asleep", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return image
        time.sleep(SLEEP_S)
    return image
