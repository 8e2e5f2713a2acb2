"""The images of a training's first slot, as the network got them: augmented, mixed, normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from contracts.artifacts import FIRST_SLOT_NAME
from trainer.tasks.optional import Taken
from trainer.tasks.protocol import Batch

MOST_IMAGES = 16
TAG = "images/first_slot"


class FirstSlot:
    """Keeps a copy of some images on the device, until somebody has time to look at them.

    Args:
        mean: Of the channels, that was taken off.
        std: Of the channels, that was divided by.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean, self._std = mean, std
        self._kept: torch.Tensor | None = None

    def keep(self, batch: Batch) -> None:
        """Keep what is to be shown of a slot; nothing waits for the device."""
        self._kept = batch["images"][:MOST_IMAGES].detach().clone()

    def take(self) -> Taken | None:
        """Return what was kept, once; None where there is nothing. It waits for the device."""
        from torch.utils.tensorboard.summary import image

        if self._kept is None:
            return None
        images, self._kept = self._kept.cpu().float(), None
        centre, scale = (torch.tensor(values).view(1, 3, 1, 1) for values in (self._mean, self._std))
        pixels = (images * scale + centre).mul_(255).round_().clamp_(0, 255).byte()
        summary = image(TAG, pixels, dataformats="NCHW")  # type: ignore[no-untyped-call]
        return Taken(summary, FIRST_SLOT_NAME, summary.value[0].image.encoded_image_string)
