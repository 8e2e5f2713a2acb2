"""Augmentation of training images: RandAugment, colour jitter, mixup and CutMix.

RandAugment (Cubuk et al., arXiv 1909.13719) and colour jitter have the definitions of torchvision 0.20
(transforms/autoaugment.py and transforms/transforms.py: operations, magnitudes of 31 bins, signs), as torchvision
applies them to Pillow images. Bits differ from its version for tensors (measured on 11 images): saturation, contrast,
sharpness and autocontrast by at most 1 of 255, hue by up to 15 since Pillow rounds it to 256 steps, and `rotate` takes
single pixels from a neighbour; the others are equal. Mixup (arXiv 1710.09412) and CutMix (arXiv 1905.04899) have timm's
definitions (data/mixup.py, mode "elem": one share per sample, the partner is the batch in reverse order).

Operations run in loader processes, one image at a time, by random numbers keyed by sample; mixing is drawn by the
loader, keyed by slot, and computed on the model's device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from contracts.config import DataSection

MAGNITUDE_BINS = 30
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
"""Operations that RandAugment draws from, with equal probability."""
_SIGNED = frozenset(RAND_AUGMENT[1:10])
_JITTER = ("brightness", "contrast", "saturation", "hue")

Operation = tuple[str, float]
"""Name and strength: degrees of `rotate`, pixels of `translate`, bits of `posterize`, threshold of `solarize`, turns of
`hue`; for the others a factor less 1, or a slope."""


@dataclass(frozen=True)
class Augmentation:
    """RandAugment and colour jitter of a configuration."""

    rand_augment_ops: int
    magnitude: int
    jitter: Sequence[float]
    """Brightness, contrast, saturation, hue."""
    image_size: int

    @classmethod
    def of(cls, data: DataSection) -> Augmentation | None:
        """Return the augmentation of section data; None: none is configured."""
        section = data.augment
        if not section.rand_augment_ops and not any(section.color_jitter):
            return None
        return cls(section.rand_augment_ops, section.rand_augment_magnitude, section.color_jitter, data.image_size)

    def draw(self, random: np.random.Generator) -> list[Operation]:
        """Return the operations for one image, in their order."""
        operations = []
        for _ in range(self.rand_augment_ops):
            name = RAND_AUGMENT[int(random.integers(len(RAND_AUGMENT)))]
            negative = name in _SIGNED and random.random() < 0.5
            strength = self._strength(name)
            operations.append((name, -strength if negative else strength))
        used = [(name, value) for name, value in zip(_JITTER, self.jitter, strict=True) if value > 0]
        for place in random.permutation(len(used)):
            name, value = used[place]
            # Relative to a factor of 1, which stays at least 0; hue is a share of the circle.
            lowest = -value if name == "hue" else -min(1.0, value)
            operations.append((name, float(random.uniform(lowest, value))))
        return operations

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


def apply_operations(image: Image.Image, operations: list[Operation]) -> Image.Image:
    """Return an RGB image after operations, one after the other."""
    for name, strength in operations:
        image = _APPLY[name](image, strength)
    return image


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    """Apply the affine map [2, 3] from output to input pixels: nearest neighbour, black outside."""
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


def _rotate(image: Image.Image, degrees: float) -> Image.Image:
    """Turn counter-clockwise about the centre."""
    cosine, sine, half = math.cos(math.radians(degrees)), math.sin(math.radians(degrees)), image.width / 2
    shift_x, shift_y = half - cosine * half + sine * half, half - sine * half - cosine * half
    return _affine(image, cosine, -sine, shift_x, sine, cosine, shift_y)


def _turn_hue(image: Image.Image, turns: float) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    turned = hue.point([(level + int(turns * 255)) % 256 for level in range(256)])
    return Image.merge("HSV", (turned, saturation, value)).convert("RGB")


_APPLY: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "identity": lambda image, _: image,
    "shear_x": lambda image, slope: _affine(image, 1, slope, 0, 0, 1, 0),
    "shear_y": lambda image, slope: _affine(image, 1, 0, 0, slope, 1, 0),
    "translate_x": lambda image, pixels: _affine(image, 1, 0, -pixels, 0, 1, 0),
    "translate_y": lambda image, pixels: _affine(image, 1, 0, 0, 0, 1, -pixels),
    "rotate": _rotate,
    "brightness": lambda image, change: ImageEnhance.Brightness(image).enhance(1 + change),
    "saturation": lambda image, change: ImageEnhance.Color(image).enhance(1 + change),
    "contrast": lambda image, change: ImageEnhance.Contrast(image).enhance(1 + change),
    "sharpness": lambda image, change: ImageEnhance.Sharpness(image).enhance(1 + change),
    "posterize": lambda image, bits: ImageOps.posterize(image, int(bits)),
    "solarize": lambda image, threshold: ImageOps.solarize(image, threshold),  # type: ignore[arg-type]
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "equalize": lambda image, _: ImageOps.equalize(image),
    "hue": _turn_hue,
}


@dataclass(frozen=True)
class Mixing:
    """Mixup and CutMix of a configuration."""

    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0

    @property
    def is_on(self) -> bool:
        """Whether images are mixed."""
        return self.mixup_alpha > 0 or self.cutmix_alpha > 0

    def draw(self, batch_size: int, image_size: int, random: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return how the images of a batch are mixed with those of the batch in reverse order.

        `shares` [B] float32: share of an image's own pixels, and of its label in the loss. `boxes` [B, 4] int64: top,
        left, bottom and right of the partner's pixels; empty for mixup.
        """
        is_cut = np.full(batch_size, self.cutmix_alpha > 0)
        if self.mixup_alpha > 0 and self.cutmix_alpha > 0:
            is_cut = random.random(batch_size) < 0.5
        shares = np.ones(batch_size)
        if self.mixup_alpha > 0:
            shares = random.beta(self.mixup_alpha, self.mixup_alpha, batch_size)
        if self.cutmix_alpha > 0:
            shares = np.where(is_cut, random.beta(self.cutmix_alpha, self.cutmix_alpha, batch_size), shares)
        side = (image_size * np.sqrt(1 - shares)).astype(np.int64)
        middle = random.integers(image_size, size=(batch_size, 2))
        low = np.clip(middle - side[:, None] // 2, 0, image_size)
        high = np.clip(middle + side[:, None] // 2, 0, image_size)
        boxes = np.concatenate([low, high], axis=1)
        boxes[~is_cut] = 0
        # Boxes are clipped to the image, so the share is computed from the covered pixels.
        covered = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / image_size**2
        shares = np.where(is_cut, 1 - covered, shares).astype(np.float32)
        return {"shares": torch.from_numpy(shares), "boxes": torch.from_numpy(boxes)}


def mix_images(images: torch.Tensor, shares: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Return images [B, 3, S, S] float32 mixed by the result of `Mixing.draw`, on their device."""
    along = torch.arange(images.shape[-1], device=images.device)
    edges = boxes[..., None]
    rows = (along >= edges[:, 0]) & (along < edges[:, 2])
    columns = (along >= edges[:, 1]) & (along < edges[:, 3])
    inside = rows[:, :, None] & columns[:, None, :]
    is_cut = boxes[:, 2] > boxes[:, 0]
    weights = torch.where(is_cut, 1.0, shares).view(-1, 1, 1, 1).masked_fill(inside[:, None], 0.0)
    return images * weights + images.flip(0) * (1 - weights)
