"""Image files to square crops: decode, crop, resize, flip; normalisation.

Evaluation decodes the whole image, so that exported preprocessing, which has Pillow and numpy and no scaled decoder,
gives the same bits. Training may decode at a reduction: its pixels are random anyway, and only it is short of time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from contracts.errors import ConfigError
from records.decode import MAX_PIXELS, REDUCTIONS, Pixels, decode_rgb, reducible_size
from trainer.model.user_code import load_callable
from trainer.tasks.images.augment.draw import Augmentation, Mixing
from trainer.tasks.images.pixels import normalisation

PixelTransform = Callable[[Pixels], Pixels]
Box = tuple[float, float, float, float]
"""Top, left, height and width in pixels."""

# Area and aspect ratio of a random resized crop: Szegedy et al., "Going deeper with convolutions" (2014); drawn as
# torchvision 0.20 does (transforms/transforms.py, RandomResizedCrop.get_params).
CROP_AREA = (0.08, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
CROP_TRIES = 10


def normalise(
    images: torch.Tensor,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    memory_format: torch.memory_format = torch.contiguous_format,
) -> torch.Tensor:
    """Map images [B, S, S, 3] uint8 to [B, 3, S, S] float32: (x / 255 - mean) / std.

    In this order of operations, each rounded to float32, so that other implementations of it give the same bits.

    Args:
        images: As they are decoded: their memory has the channels last already.
        mean: Of the channels.
        std: Of the channels.
        memory_format: Of the result.
    """
    scaled = images.permute(0, 3, 1, 2).contiguous(memory_format=memory_format).float()
    # Tensors, not numbers: on a GPU torch would multiply by the rounded inverse of a number.
    top = torch.full((), 255.0, device=images.device)
    centre, scale = _channels(mean, images.device), _channels(std, images.device)
    return scaled.div_(top).sub_(centre).div_(scale)


@cache
def _channels(values: tuple[float, float, float], device: torch.device) -> torch.Tensor:
    """Return values by channel [1, 3, 1, 1] on a device; kept, since to copy them there waits for the device."""
    return torch.tensor(values, device=device).view(1, 3, 1, 1)


@dataclass(frozen=True)
class EvaluationTransform:
    """Resize the shorter side to `image_size`, take the centre, scale to [0, 1], normalise."""

    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    max_pixels: int = MAX_PIXELS
    """Most pixels of an image file."""

    def document(self) -> dict[str, object]:
        """Return what a checkpoint says of it."""
        return {"image_size": self.image_size, "mean": list(self.mean), "std": list(self.std)}

    def decode(self, content: bytes) -> Pixels:
        """Map an image file to [image_size, image_size, 3].

        Raises:
            UndecodableImage: It is no image that can be used.
        """
        return self.pixels(decode_rgb(content, max_pixels=self.max_pixels))

    def pixels(self, image: Pixels) -> Pixels:
        """Map an image [H, W, 3] to [image_size, image_size, 3]."""
        height, width = image.shape[:2]
        if (height, width) == (self.image_size, self.image_size):
            return image
        return resize(image, centre_box(height, width), self.image_size)

    def normalise(self, images: npt.NDArray[np.uint8]) -> torch.Tensor:
        """Map images [B, S, S, 3] uint8 to [B, 3, S, S] float32, contiguous."""
        # torch warns about an array that may not be written to, as Pillow's are.
        writable = images if images.flags.writeable else images.copy()
        return normalise(torch.from_numpy(writable), self.mean, self.std)


@dataclass(frozen=True)
class TrainTransform:
    """What training images go through before they are normalised."""

    image_size: int
    crop: str
    horizontal_flip: bool
    evaluation: EvaluationTransform
    scaled_decode: bool = True
    own: PixelTransform | None = None
    """The user's, on the cropped and flipped image; it may draw from the global generators."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    mixing: Mixing = field(default_factory=Mixing)

    @property
    def draws(self) -> bool:
        """Whether pixels depend on random numbers of ours."""
        return self.crop == "random_resized" or self.horizontal_flip or self.augmentation.is_on

    def pixels(self, content: bytes, random: np.random.Generator | None) -> Pixels:
        """Map an image file to [image_size, image_size, 3], cropped and flipped.

        The box is drawn on the full size, so that it is the same however the image is decoded.

        Args:
            content: The file.
            random: The sample's own generator; needed where `draws`.

        Raises:
            UndecodableImage: It is no image that can be used, at any reduction.
        """
        size = reducible_size(content) if self.scaled_decode else None
        most = self.evaluation.max_pixels
        image = decode_rgb(content, max_pixels=most) if size is None else None
        height, width = size or (image.shape[0], image.shape[1])  # type: ignore[union-attr]
        box = self._choose_box(height, width, random)
        flip = self.horizontal_flip and _given(random).random() < 0.5
        if image is None:
            reduction = choose_reduction(box, self.image_size)
            image = decode_rgb(content, reduction=reduction, max_pixels=most)
            box = (box[0] / reduction, box[1] / reduction, box[2] / reduction, box[3] / reduction)
        if image.shape[:2] == box[2:] == (self.image_size, self.image_size):
            return image[:, ::-1] if flip else image
        return resize(*_cut_near(image, box, self.image_size), self.image_size, flip=flip)

    def _choose_box(self, height: int, width: int, random: np.random.Generator | None) -> Box:
        if self.crop == "random_resized":
            return _random_box(height, width, _given(random))
        return centre_box(height, width)


def make_transforms(data: DataSection, manifest: ShardManifest) -> tuple[TrainTransform, EvaluationTransform]:
    """Return the transforms of training and evaluation; mean and std are the configuration's, else the manifest's.

    Raises:
        ConfigError: There is no mean and std, or data.transform cannot be loaded.
    """
    mean, std = normalisation(data, manifest)
    # Shards that were adopted, or whose images nobody has looked at, may hold any.
    most = manifest.prepared.max_pixels if manifest.prepared is not None else MAX_PIXELS
    evaluation = EvaluationTransform(data.image_size, (mean[0], mean[1], mean[2]), (std[0], std[1], std[2]), most)
    training = TrainTransform(
        data.image_size,
        data.crop,
        data.horizontal_flip,
        evaluation,
        own=load_transform(data.transform) if data.transform else None,
        augmentation=Augmentation.of(data),
        mixing=Mixing(data.augment.mixup_alpha, data.augment.cutmix_alpha),
    )
    return training, evaluation


def choose_reduction(box: Box, size: int) -> int:
    """Return the largest reduction at which neither side of a box is below `size`; 1 where there is none."""
    least = min(box[2], box[3])
    return next((reduction for reduction in REDUCTIONS if least >= size * reduction), 1)


def centre_box(height: int, width: int) -> Box:
    """Return the square in the centre."""
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def resize(image: Pixels, box: Box, size: int, *, flip: bool = False) -> Pixels:
    """Cut a box out of an image [H, W, 3] and resize it to [size, size, 3] (Pillow, bilinear with antialiasing).

    Pillow also mirrors it: copying an array with a negative stride takes three times as long.
    """
    top, left, height, width = box
    area = (left, top, left + width, top + height)
    resized = Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR, box=area)
    return np.asarray(resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else resized)


def _cut_near(image: Pixels, box: Box, size: int) -> tuple[Pixels, Box]:
    """Return the part of an image that `resize` looks at, and the box in it: Pillow copies all it is given."""
    top, left, height, width = box
    # Reach of the bilinear filter: one output pixel, in input pixels (Pillow, Resample.c, precompute_coeffs).
    reach = math.ceil(max(height / size, width / size, 1)) + 1
    y, x = max(0, int(top) - reach), max(0, int(left) - reach)
    part = image[y : math.ceil(top + height) + reach, x : math.ceil(left + width) + reach]
    return part, (top - y, left - x, height, width)


def _random_box(height: int, width: int, random: np.random.Generator) -> Box:
    for _ in range(CROP_TRIES):
        area = height * width * random.uniform(*CROP_AREA)
        aspect = np.exp(random.uniform(np.log(CROP_ASPECT[0]), np.log(CROP_ASPECT[1])))
        box_width, box_height = round(float(np.sqrt(area * aspect))), round(float(np.sqrt(area / aspect)))
        if 0 < box_width <= width and 0 < box_height <= height:
            top, left = int(random.integers(height - box_height + 1)), int(random.integers(width - box_width + 1))
            return top, left, box_height, box_width
    # As much of the centre as has an aspect ratio that can be drawn.
    box_width = min(width, round(height * CROP_ASPECT[1]))
    box_height = min(height, round(width / CROP_ASPECT[0]))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def _given(random: np.random.Generator | None) -> np.random.Generator:
    assert random is not None, "a transform that draws needs the sample's generator"
    return random


def load_transform(name: str) -> PixelTransform:
    """Import the function that data.transform names.

    Raises:
        ConfigError: It cannot be imported, or is no function.
    """
    found = load_callable("data.transform", name, ConfigError)
    if not callable(found):
        raise ConfigError(
            f"data.transform {name!r} is a {type(found).__name__}",
            allowed="a callable that maps an image [S, S, 3] uint8 to another",
            todo="name a function",
        )
    transform: PixelTransform = found
    return transform
