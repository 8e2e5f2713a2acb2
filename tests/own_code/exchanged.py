"""A network whose steps are short and whose gradients are large: what machines exchange of it takes longer."""

import time

import torch
from torch import nn


class ManyIdle(nn.Module):
    """Takes `seconds` for a slot; `idle_parameters` take part in nothing but the exchange of gradients."""

    def __init__(self, num_classes: int, seconds: float, idle_parameters: int) -> None:
        super().__init__()
        self.seconds = seconds
        self.layer = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, num_classes)
        self.idle = nn.Parameter(torch.zeros(idle_parameters))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self.seconds)
        logits: torch.Tensor = self.head(self.layer(images).relu().mean(dim=(2, 3))) + 0 * self.idle.sum()
        return logits
