"""From a slot as the loader yields it to what model and loss take, on the model's device.

What is cheap there is done there: bytes travel, float32 is made at the end.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch.nn import functional

from contracts.errors import ConfigError
from trainer.data.augment.pixel_ops import apply_plan, mix_images
from trainer.data.clock import DataClock
from trainer.data.loader import SlotBatch
from trainer.data.transforms import TrainTransform, normalise


@dataclass(frozen=True)
class ModelInput:
    """A slot as the model takes it."""

    images: torch.Tensor
    """[B, 3, S, S] float32, normalised."""
    labels: torch.Tensor
    """[B] int64."""
    shares: torch.Tensor | None = None
    """[B] float32 share of a label in the loss; the rest is that of the label in reverse order. None: not mixed."""

    def loss_sum(self, logits: torch.Tensor, *, smoothing: float = 0.0) -> torch.Tensor:
        """Return the cross-entropy in nats of logits [B, classes], summed over the slot.

        Args:
            logits: Of the images; taken as float32.
            smoothing: Share of the target that is spread evenly over all classes (Szegedy et al., arXiv 1512.00567).
        """
        logits = logits.float()
        if self.shares is None:
            return functional.cross_entropy(logits, self.labels, reduction="sum", label_smoothing=smoothing)
        own = functional.cross_entropy(logits, self.labels, reduction="none", label_smoothing=smoothing)
        partner = functional.cross_entropy(logits, self.labels.flip(0), reduction="none", label_smoothing=smoothing)
        return (self.shares * own + (1 - self.shares) * partner).sum()


def prepare(
    slot: SlotBatch, transform: TrainTransform, device: torch.device, clock: DataClock | None = None
) -> ModelInput:
    """Copy a slot to the device, and finish there what the loader left: augmentation, normalisation, mixing.

    Args:
        slot: From the loader; pinned where the device is a GPU.
        transform: That of the loader.
        device: Where the model is.
        clock: Measures the copy.
    """
    # Where a prefetcher has copied the slot already, only what is drawn for mixing is left.
    with clock.copying() if clock and slot.images.device != device else nullcontext():
        images = slot.images.to(device, non_blocking=True)
        labels = slot.labels.to(device, non_blocking=True)
        shares = None if slot.mix is None else torch.from_numpy(slot.mix.shares).to(device, non_blocking=True)
    if slot.plan is not None:
        images = apply_plan(images.permute(0, 3, 1, 2), slot.plan).permute(0, 2, 3, 1)
    pixels = normalise(images, transform.evaluation.mean, transform.evaluation.std)
    if slot.mix is not None:
        pixels = mix_images(pixels, slot.mix)
    return ModelInput(pixels, labels, shares)


def check_device(transform: TrainTransform, device: torch.device) -> None:
    """Refuse augmentation on a GPU that is not there.

    Raises:
        ConfigError: data.augment_device is gpu, and the model is on the CPU.
    """
    if transform.augmentation.on_gpu and device.type != "cuda":
        raise ConfigError(
            "data.augment_device is gpu, but there is no GPU here",
            allowed="data.augment_device=cpu on a machine without a GPU",
            todo="set data.augment_device=cpu, or train on a machine with a GPU",
        )
