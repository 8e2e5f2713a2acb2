"""Networks that `model.architecture: networks:NAME` names."""

import torch
from torch import nn


class _NeedsValues(nn.Module):
    """Cannot be built on the meta device, where tensors have no values."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.width = int(torch.full((), 4.0).item())
        self.head = nn.Linear(3, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(images.mean((2, 3)))
        return logits


def needs_values(num_classes: int) -> nn.Module:
    return _NeedsValues(num_classes)


def of_ten(num_classes: int) -> nn.Module:
    """Its width is its own."""
    return _NeedsValues(10)


def of_a_gpu(num_classes: int) -> nn.Module:
    """Can be built on a machine with a GPU only."""
    return nn.Linear(3, num_classes, device="cuda")


def breaks(num_classes: int) -> nn.Module:
    """Fails by what no network is expected to fail by."""
    raise OSError("no such device")
