"""From a decoded image to what the model sees: crop, resize, flip, normalise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from trainer.shards import normalisation

Pixels = npt.NDArray[np.uint8]

# Area and aspect ratio of a random resized crop, as in Szegedy et al., "Going deeper with convolutions" (2014).
CROP_AREA = (0.08, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
CROP_TRIES = 10


@dataclass(frozen=True)
class EvaluationTransform:
    """Resize the shorter side to `image_size`, take the centre, scale to [0, 1], normalise."""

    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def pixels(self, image: Pixels) -> Pixels:
        """Map an image [H, W, 3] to [image_size, image_size, 3]."""
        height, width = image.shape[:2]
        side = min(height, width)
        if (height, width) == (self.image_size, self.image_size):
            return image
        top, left = (height - side) // 2, (width - side) // 2
        return resize(image, top, left, side, side, self.image_size)

    def normalise(self, images: npt.NDArray[np.uint8]) -> torch.Tensor:
        """Map images [B, S, S, 3] uint8 to [B, 3, S, S] float32, contiguous."""
        mean = np.asarray(self.mean, dtype=np.float32)
        std = np.asarray(self.std, dtype=np.float32)
        scaled = (images.astype(np.float32) / np.float32(255) - mean) / std
        return torch.from_numpy(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)))


@dataclass(frozen=True)
class TrainTransform:
    """What training images go through before they are normalised."""

    image_size: int
    crop: str
    horizontal_flip: bool
    evaluation: EvaluationTransform

    def pixels(self, image: Pixels, random: np.random.Generator) -> Pixels:
        """Map an image [H, W, 3] to [image_size, image_size, 3]."""
        if self.crop == "random_resized":
            result = resize(image, *_random_box(image.shape[0], image.shape[1], random), self.image_size)
        else:
            result = self.evaluation.pixels(image)
        if self.horizontal_flip and random.random() < 0.5:
            result = result[:, ::-1]
        return result


def make_transforms(data: DataSection, manifest: ShardManifest) -> tuple[TrainTransform, EvaluationTransform]:
    """Return the transforms of training and evaluation; mean and std are the configuration's, else the manifest's."""
    mean, std = normalisation(data, manifest)
    evaluation = EvaluationTransform(data.image_size, (mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))
    return TrainTransform(data.image_size, data.crop, data.horizontal_flip, evaluation), evaluation


def resize(image: Pixels, top: int, left: int, height: int, width: int, size: int) -> Pixels:
    """Cut a box out of an image [H, W, 3] and resize it to [size, size, 3] (Pillow, bilinear with antialiasing)."""
    box = (left, top, left + width, top + height)
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR, box=box))


def _random_box(height: int, width: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    for _ in range(CROP_TRIES):
        area = height * width * random.uniform(*CROP_AREA)
        aspect = np.exp(random.uniform(np.log(CROP_ASPECT[0]), np.log(CROP_ASPECT[1])))
        box_width, box_height = round(float(np.sqrt(area * aspect))), round(float(np.sqrt(area / aspect)))
        if 0 < box_width <= width and 0 < box_height <= height:
            top, left = int(random.integers(height - box_height + 1)), int(random.integers(width - box_width + 1))
            return top, left, box_height, box_width
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side
