"""The images of a training's first slot, as the network got them: augmented, mixed, normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from contracts.artifacts import FIRST_SLOT_NAME
from trainer.report.drawing import draw_sheet
from trainer.report.summaries import listed, picture
from trainer.tasks.optional import Taken
from trainer.tasks.protocol import Batch

MOST_IMAGES = 16
TAG = "images/first_slot"


class FirstSlot:
    """Keeps a copy of some images on the device, until somebody has time to look at them.

    Args:
        classes: Names of the classes.
        mean: Of the channels, that was taken off.
        std: Of the channels, that was divided by.
    """

    def __init__(self, classes: Sequence[str], mean: Sequence[float], std: Sequence[float]) -> None:
        self._classes, self._mean, self._std = classes, mean, std
        self._kept: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None = None

    def keep(self, batch: Batch) -> None:
        """Keep what is to be shown of a slot; nothing waits for the device."""
        shares, label = batch.get("shares"), batch["label"]
        shares = None if shares is None else shares[:MOST_IMAGES].clone()
        # The label that an image is mixed with is that of the slot's last, the last but one, ...
        labels = torch.stack([label, label.flip(0)])[:, :MOST_IMAGES].clone()
        self._kept = batch["images"][:MOST_IMAGES].detach().clone(), labels, shares

    def take(self) -> Taken | None:
        """Return what was kept, once; None where there is nothing. It waits for the device."""
        if self._kept is None:
            return None
        images, labels, shares = self._kept
        self._kept = None
        centre, scale = (torch.tensor(values).view(1, 3, 1, 1) for values in (self._mean, self._std))
        pixels = (images.cpu().float() * scale + centre).mul_(255).round_().clamp_(0, 255).byte()
        captions = [
            [self._describe(own, other, share)]
            for own, other, share in zip(
                *labels.tolist(), [1.0] * labels.shape[1] if shares is None else shares.tolist(), strict=True
            )
        ]
        sheet = draw_sheet(list(pixels.permute(0, 2, 3, 1).contiguous().numpy()), captions)
        said = "The first images of step 1 as the network got them, with their labels:\n\n"
        summary = picture(TAG, sheet, said + listed(caption for (caption,) in captions))
        return Taken(summary, FIRST_SLOT_NAME, summary.value[0].image.encoded_image_string)

    def _describe(self, own: int | list[float], other: int | list[float], share: float) -> str:
        if share > 0.995 or own == other:
            return self._name(own)
        return f"{100 * share:.0f} % {self._name(own)}, {100 - 100 * share:.0f} % {self._name(other)}"

    def _name(self, label: int | list[float]) -> str:
        if isinstance(label, int):
            return self._classes[label]
        return " + ".join(name for name, value in zip(self._classes, label, strict=True) if value) or "none"
