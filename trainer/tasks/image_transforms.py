"""Image files to square crops: decode, crop, resize, flip; and normalisation.

Evaluation decodes the whole image, so that the exported program, with only Pillow and numpy, gives the same bits.
Training may decode at a reduced size (DCT scaling), which is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from PIL import Image

from contracts.errors import ConfigError
from records.decode import MAX_PIXELS, REDUCTIONS, Pixels, decode_rgb, reducible_size
from trainer.model.user_code import load_callable
from trainer.tasks.loading import describe_failure
from trainer.tasks.task import RefusedSample

OwnTransform = Callable[[Pixels], Pixels]
Box = tuple[float, float, float, float]
"""Top, left, height and width in pixels."""
Channels = tuple[float, float, float]

# Area and aspect ratio of a random resized crop: Szegedy et al., "Going deeper with convolutions" (2014); drawn as by
# torchvision 0.20 (transforms/transforms.py, RandomResizedCrop.get_params).
CROP_AREA = (0.08, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
CROP_TRIES = 10


@dataclass(frozen=True)
class TrainTransform:
    """Crop, resize and flip a training image."""

    image_size: int
    crop: str
    """center or random_resized."""
    horizontal_flip: bool
    max_pixels: int = MAX_PIXELS

    @property
    def is_random(self) -> bool:
        """Whether the result depends on random numbers."""
        return self.crop == "random_resized" or self.horizontal_flip

    def decode(self, content: bytes, random: np.random.Generator | None) -> Pixels:
        """Map an image file to [image_size, image_size, 3].

        The box is drawn on the full size, so that it is the same at any reduction; the flip is drawn after it.

        Args:
            content: The file.
            random: The sample's generator; needed where `is_random`.

        Raises:
            UndecodableImage: The file is damaged or no image, at any reduction.
        """
        size = reducible_size(content)
        image = decode_rgb(content, max_pixels=self.max_pixels) if size is None else None
        height, width = size or (image.shape[0], image.shape[1])  # type: ignore[union-attr]
        if self.crop == "random_resized":
            assert random is not None
            box = random_box(height, width, random)
        else:
            box = centre_box(height, width)
        flip = False
        if self.horizontal_flip:
            assert random is not None
            flip = random.random() < 0.5
        if image is None:
            reduction = choose_reduction(box, self.image_size)
            image = decode_rgb(content, reduction=reduction, max_pixels=self.max_pixels)
            box = (box[0] / reduction, box[1] / reduction, box[2] / reduction, box[3] / reduction)
        if image.shape[:2] == box[2:] == (self.image_size, self.image_size):
            return image[:, ::-1] if flip else image
        return resize(*_cut_near(image, box, self.image_size), self.image_size, flip=flip)


def choose_reduction(box: Box, size: int) -> int:
    """Return the largest reduction at which neither side of a box is below `size`, or else 1."""
    least = min(box[2], box[3])
    return next((reduction for reduction in REDUCTIONS if least >= size * reduction), 1)


def centre_box(height: int, width: int) -> Box:
    """Return the square in the centre."""
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def random_box(height: int, width: int, random: np.random.Generator) -> Box:
    """Draw a box of random area and aspect ratio."""
    for _ in range(CROP_TRIES):
        area = height * width * random.uniform(*CROP_AREA)
        aspect = np.exp(random.uniform(np.log(CROP_ASPECT[0]), np.log(CROP_ASPECT[1])))
        box_width, box_height = round(float(np.sqrt(area * aspect))), round(float(np.sqrt(area / aspect)))
        if 0 < box_width <= width and 0 < box_height <= height:
            top, left = int(random.integers(height - box_height + 1)), int(random.integers(width - box_width + 1))
            return top, left, box_height, box_width
    # The centre, with the nearest aspect ratio that can be drawn.
    box_width = min(width, round(height * CROP_ASPECT[1]))
    box_height = min(height, round(width / CROP_ASPECT[0]))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def resize(image: Pixels, box: Box, size: int, *, flip: bool = False) -> Pixels:
    """Cut a box out of an image [H, W, 3] and resize it to [size, size, 3] (Pillow, bilinear with antialiasing).

    Pillow also mirrors it: copying an array with a negative stride takes three times as long.
    """
    top, left, height, width = box
    area = (left, top, left + width, top + height)
    resized = Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR, box=area)
    return np.asarray(resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else resized)


def _cut_near(image: Pixels, box: Box, size: int) -> tuple[Pixels, Box]:
    """Return the part of an image that `resize` reads, and the box in it, since Pillow copies the whole array."""
    top, left, height, width = box
    # Reach of the bilinear filter: one output pixel, in input pixels (Pillow, Resample.c, precompute_coeffs).
    reach = math.ceil(max(height / size, width / size, 1)) + 1
    y, x = max(0, int(top) - reach), max(0, int(left) - reach)
    part = image[y : math.ceil(top + height) + reach, x : math.ceil(left + width) + reach]
    return part, (top - y, left - x, height, width)


def normalise(
    images: torch.Tensor, mean: Channels, std: Channels, memory_format: torch.memory_format = torch.contiguous_format
) -> torch.Tensor:
    """Map images [B, S, S, 3] uint8 to [B, 3, S, S] float32: (x / 255 - mean) / std.

    In this order of operations, each rounded to float32, so that other implementations of it give the same bits.
    """
    scaled = images.permute(0, 3, 1, 2).contiguous(memory_format=memory_format).float()
    # A tensor: on a GPU torch divides by a number through its rounded inverse.
    largest = torch.full((), 255.0, device=images.device)
    return scaled.div_(largest).sub_(_on_device(mean, images.device)).div_(_on_device(std, images.device))


@cache
def _on_device(values: Channels, device: torch.device) -> torch.Tensor:
    """Return values by channel [1, 3, 1, 1]; cached, since a copy to the device synchronises with it."""
    return torch.tensor(values, device=device).view(1, 3, 1, 1)


def load_transform(name: str) -> OwnTransform:
    """Import the function that data.transform names.

    Raises:
        ConfigError: It cannot be imported, or is not callable.
    """
    transform = load_callable("data.transform", name, ConfigError)
    if not callable(transform):
        raise ConfigError(
            f"data.transform {name!r} is a {type(transform).__name__}",
            allowed="a callable that maps an image [S, S, 3] uint8 to another",
            todo="name a function",
        )
    typed: OwnTransform = transform
    return typed


def apply_own(transform: OwnTransform, name: str, pixels: Pixels) -> Pixels:
    """Return an image [S, S, 3] after data.transform, which receives a writable array.

    Raises:
        RefusedSample: The function failed, or returned something else than an image of that size.
    """
    # Copied only if Pillow's buffer is read-only.
    writable = np.require(pixels, requirements=["C", "W"])
    try:
        result = transform(writable)
    except MemoryError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise RefusedSample(
            f"data.transform {name} failed: {describe_failure(error)}",
            allowed="a function that maps every image [S, S, 3] uint8 to another",
            todo="correct the function, or shard without this image",
        ) from error
    if not isinstance(result, np.ndarray) or result.shape != pixels.shape or result.dtype != np.uint8:
        returned = f"{result.dtype} {result.shape}" if isinstance(result, np.ndarray) else type(result).__name__
        raise RefusedSample(
            f"data.transform {name} returned {returned} for an image of uint8 {pixels.shape}",
            allowed="an array of the same shape and type",
            todo="return the changed image as uint8; normalisation comes after it",
        )
    return result
