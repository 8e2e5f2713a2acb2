"""Networks that `model.architecture: tests.trainer.parallel.networks:NAME` names: hard to build, spread or train."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

SIZE = 16


class Plain(nn.Module):
    """Blocks between a stem and a head; images become 12 numbers each."""

    def __init__(self, num_classes: int, width: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(12, width))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(width, num_classes)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.stem(images)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return hidden

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images))
        return logits


class NotTheSame(nn.Module):
    """Comes out otherwise on each rank, as a callable of the user's may."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(dist.get_rank())
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 8), nn.ReLU(), nn.Linear(8, num_classes))
        for parameter in self.layers.parameters():
            nn.init.normal_(parameter, generator=generator)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)  # type: ignore[no-any-return]


class Various(Plain):
    """A scalar parameter, a tied one, frozen ones, buffers of all kinds, one of them drawn and in no state dict."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.again = nn.Linear(10, 10)
        self.again.weight = self.stem_weight = nn.Parameter(torch.randn(10, 10) / 4)
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.norm = nn.BatchNorm2d(3)
        self.register_buffer("drawn", torch.randn(10), persistent=False)
        self.register_buffer("mask", torch.tensor([True] * 9 + [False]))

    def features(self, images: torch.Tensor) -> torch.Tensor:
        hidden = super().features(self.norm(images)) @ self.stem_weight
        hidden = torch.tanh(self.again(hidden)) + self.frozen.sum() * self.drawn
        return self.scale * torch.where(self.mask, hidden, 0.0)  # type: ignore[call-overload,no-any-return]


class TiedBlocks(nn.Module):
    """Two of its blocks share a weight, which FSDP would untie, and one runs twice."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.AvgPool2d(8), nn.Flatten())
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 12)) for _ in range(3))
        self.blocks[2][0].weight = self.blocks[0][0].weight  # type: ignore[index]
        self.head = nn.Linear(12, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(images)
        for block in (*self.blocks, self.blocks[1]):
            hidden = hidden + block(hidden)
        return self.head(hidden)  # type: ignore[no-any-return]


class Fails(Plain):
    """Cannot take images."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raise ValueError("no images today")


class EvaluationHead(Plain):
    """Its second head is used in evaluation alone."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.second = nn.Linear(10, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.features(images)
        logits: torch.Tensor = self.head(features)
        return logits if self.training else logits + self.second(features)


class DropsLayers(Plain):
    """Leaves out a whole block in half of all passes in training, at random."""

    def features(self, images: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.stem(images)
        for block in self.blocks:
            if not self.training or torch.rand(()) < 0.5:
                hidden = hidden + block(hidden)
        return hidden


def lazy(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(num_classes))


def other_shapes(num_classes: int) -> nn.Module:
    return Plain(num_classes, width=10 + dist.get_rank())
