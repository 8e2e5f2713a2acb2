"""What is drawn for augmentation: operations on single images, and the mixing of the images of a slot.

RandAugment (Cubuk et al., arXiv 1909.13719) and colour jitter have torchvision's definitions (transforms/autoaugment.py
and transforms/transforms.py, version 0.20: operations, magnitudes of 31 bins, signs), mixup (arXiv 1710.09412) and
CutMix (arXiv 1905.04899) timm's (data/mixup.py, mode "elem": a share for each sample, the partner is the slot in
reverse order). The pixels are computed in pixel_ops.py. Drawing is cheap and always done on the CPU, by the loader.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from contracts.config import DataSection

MAGNITUDE_BINS = 30
# RandAugment draws from these, each with the same probability.
RAND_AUGMENT = (
    "identity",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "brightness",
    "saturation",
    "contrast",
    "sharpness",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
)
# Numbers of operations in a plan are places in this.
OPERATIONS = (*RAND_AUGMENT, "hue")
_SIGNED = frozenset(RAND_AUGMENT[1:10])
_JITTER = ("brightness", "contrast", "saturation", "hue")


@dataclass(frozen=True)
class AugmentationPlan:
    """What is done to each image of a slot, step by step."""

    operations: npt.NDArray[np.int64]
    """[B, N] places in OPERATIONS."""
    strengths: npt.NDArray[np.float64]
    """[B, N] what each operation takes."""


@dataclass(frozen=True)
class Augmentation:
    """RandAugment and colour jitter as configured."""

    rand_augment_ops: int = 0
    magnitude: int = 0
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Brightness, contrast, saturation, hue."""
    image_size: int = 0

    @classmethod
    def of(cls, data: DataSection) -> Augmentation:
        """Return what a configuration asks for."""
        wanted = data.augment
        jitter = (wanted.brightness, wanted.contrast, wanted.saturation, wanted.hue)
        return cls(wanted.rand_augment_ops, wanted.rand_augment_magnitude, jitter, data.image_size)

    @property
    def num_steps(self) -> int:
        """Operations on each image."""
        return self.rand_augment_ops + sum(value > 0 for value in self.jitter)

    @property
    def is_on(self) -> bool:
        """Whether anything is done."""
        return self.num_steps > 0

    def draw(self, random: np.random.Generator) -> tuple[list[int], list[float]]:
        """Draw operations and strengths for one image."""
        operations, strengths = [], []
        for _ in range(self.rand_augment_ops):
            name = RAND_AUGMENT[int(random.integers(len(RAND_AUGMENT)))]
            strength = self._strength(name)
            negative = name in _SIGNED and random.random() < 0.5
            operations.append(OPERATIONS.index(name))
            strengths.append(-strength if negative else strength)
        used = [place for place, value in enumerate(self.jitter) if value > 0]
        for place in random.permutation(used) if used else ():
            operations.append(OPERATIONS.index(_JITTER[place]))
            # A factor of at least 0, as a difference to 1; of hue a share of the circle, of at most a half.
            lowest = -self.jitter[place] if _JITTER[place] == "hue" else -min(1.0, self.jitter[place])
            strengths.append(float(random.uniform(lowest, self.jitter[place])))
        return operations, strengths

    def _strength(self, name: str) -> float:
        share = self.magnitude / MAGNITUDE_BINS
        if name in ("shear_x", "shear_y"):
            return 0.3 * share
        if name in ("translate_x", "translate_y"):
            # torchvision's affine moves by whole pixels.
            return float(int(150 / 331 * self.image_size * share))
        if name == "rotate":
            return 30.0 * share
        if name in ("brightness", "saturation", "contrast", "sharpness"):
            return 0.9 * share
        if name == "posterize":
            return 8.0 - round(4 * share)
        return 255.0 * (1 - share) if name == "solarize" else 0.0


@dataclass(frozen=True)
class Mix:
    """How the images of a slot are mixed with those of the slot in reverse order."""

    shares: npt.NDArray[np.float32]
    """[B] what an image keeps of itself, and its label's share in the loss."""
    boxes: npt.NDArray[np.int64]
    """[B, 4] top, left, bottom, right of what the partner covers; empty boxes where images are blended."""
    cut: npt.NDArray[np.bool_]
    """[B] whether an image is cut, not blended."""


@dataclass(frozen=True)
class Mixing:
    """Mixup and CutMix as configured."""

    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0

    @property
    def is_on(self) -> bool:
        """Whether anything is done."""
        return self.mixup_alpha > 0 or self.cutmix_alpha > 0

    def draw(self, batch_size: int, image_size: int, random: np.random.Generator) -> Mix:
        """Draw the mixing of a slot."""
        cut = np.full(batch_size, self.cutmix_alpha > 0)
        if self.mixup_alpha > 0 and self.cutmix_alpha > 0:
            cut = random.random(batch_size) < 0.5
        shares = np.ones(batch_size)
        if self.mixup_alpha > 0:
            shares = random.beta(self.mixup_alpha, self.mixup_alpha, batch_size)
        if self.cutmix_alpha > 0:
            shares = np.where(cut, random.beta(self.cutmix_alpha, self.cutmix_alpha, batch_size), shares)
        side = (image_size * np.sqrt(1 - shares)).astype(np.int64)
        middle = random.integers(image_size, size=(batch_size, 2))
        low = np.clip(middle - side[:, None] // 2, 0, image_size)
        high = np.clip(middle + side[:, None] // 2, 0, image_size)
        boxes = np.concatenate([low, high], axis=1)
        boxes[~cut] = 0
        # A box that leaves the image covers less than was drawn: the share is that of the pixels.
        covered = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / image_size**2
        return Mix(np.where(cut, 1 - covered, shares).astype(np.float32), boxes, cut)
