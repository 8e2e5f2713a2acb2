"""Networks that `model.architecture: models_for_tests:NAME` names."""

from __future__ import annotations

import torch
from torch import nn


class Explodes(nn.Module):
    """Logits that are not finite in about one slot of five: which ones, torch's generator says, as it is seeded."""

    def __init__(self, num_classes: int, share: float) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.LazyLinear(16), nn.ReLU())
        self.head = nn.Linear(16, num_classes)
        self._share = share

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.body(images))
        if self.training and torch.is_grad_enabled():
            logits = logits * torch.where(torch.rand(1, device=images.device) < self._share, torch.inf, 1.0)
        return logits


def exploding(num_classes: int, share: float = 0.2) -> nn.Module:
    return Explodes(num_classes, share)


def without_batchnorm(num_classes: int, dropout: float = 0.0) -> nn.Module:
    """A network in which no sample sees another."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.LazyLinear(16),
        nn.GELU(),
        nn.Linear(16, num_classes),
    )


class Hungry(nn.Module):
    """Takes 64 TiB in the first forward pass of training that is no dummy (those are of zeros)."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = without_batchnorm(num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training and bool((images != 0).any()):
            torch.empty(1 << 46, dtype=torch.uint8)
        logits: torch.Tensor = self.body(images)
        return logits


def hungry(num_classes: int) -> nn.Module:
    return Hungry(num_classes)


class FailsOnSlots(nn.Module):
    """Raises an error of torch's own in a training pass of four images."""

    def __init__(self, num_classes: int, error: str) -> None:
        super().__init__()
        self.body, self.error = without_batchnorm(num_classes), error

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training and len(images) == 4:
            raise {"memory": torch.OutOfMemoryError, "peer": torch.distributed.DistBackendError}[self.error](self.error)
        logits: torch.Tensor = self.body(images)
        return logits


def fails_on_slots(num_classes: int, error: str) -> nn.Module:
    return FailsOnSlots(num_classes, error)


class Counts(nn.Module):
    """Counts passes in a buffer that it replaces, beside one that never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen = self.seen + 1
        return values * self.scale


class Centred(nn.Module):
    """Subtracts running means, kept in a buffer that no checkpoint holds, beside one that stays as it is."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.register_buffer("centre", torch.zeros(3, 1, 1), persistent=False)
        self.register_buffer("offset", torch.ones(3, 1, 1), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training and self.way != "stays":
            with torch.no_grad():
                mean = images.mean((0, 2, 3)).view(3, 1, 1)
                if self.way == "in place":
                    self.centre.mul_(0.9).add_(0.1 * mean)
                else:
                    self.centre = 0.9 * self.centre + 0.1 * mean
        return images - self.centre + self.offset


def with_temporary_buffers(num_classes: int, way: str) -> nn.Module:
    return nn.Sequential(Centred(way), nn.BatchNorm2d(3), nn.Flatten(), nn.LazyLinear(num_classes))


def with_buffers(num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), Counts(), nn.LazyLinear(num_classes)
    )


class _Remembers(nn.Module):
    """Passes on what it is given, and has state that is no tensor."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images

    def get_extra_state(self) -> object:
        return {"calls": 3}

    def set_extra_state(self, state: object) -> None:
        pass


def with_state(num_classes: int, state: str) -> nn.Module:
    """A network with state of some kind: the name of a type of torch for a buffer, or `extra` for none."""
    model = without_batchnorm(num_classes)
    if state == "extra":
        model.append(_Remembers())
    else:
        model.register_buffer("table", torch.zeros(4).to(getattr(torch, state.removeprefix("temporary "))),
                              persistent=not state.startswith("temporary "))  # fmt: skip
    return model
