"""Section `data`: how samples are read and turned into model input."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidatorFunctionWrapHandler, field_validator

from contracts.config.base import Auto, Fraction, NotBool, Section, refusal


class AugmentSection(Section):
    """Changes of training images beyond crop and flip; all off by default. All are keyed by sample."""

    rand_augment_ops: Annotated[int, Field(strict=True, ge=0, le=14)] = 0
    """RandAugment: operations drawn for each image; 0: none."""
    rand_augment_magnitude: Annotated[int, Field(strict=True, ge=0, le=30)] = 9
    """RandAugment: strength of the operations, of 30."""
    color_jitter: Annotated[list[Annotated[float, Field(ge=0, le=10), NotBool]], Field(min_length=4, max_length=4)] = [
        0.0
    ] * 4
    """Colour jitter: brightness, contrast, saturation and hue. Each of the first three is multiplied by a factor from
    [max(0, 1 - value), 1 + value]; hue is turned by a share of the circle from [-value, value], at most 0.5."""
    mixup_alpha: Annotated[float, Field(ge=0, le=100), NotBool] = 0.0
    """Mixup: both parameters of the Beta distribution that shares are drawn from; 0: off."""
    cutmix_alpha: Annotated[float, Field(ge=0, le=100), NotBool] = 0.0
    """CutMix: likewise. With mixup on as well, a coin decides for each image which of the two is done."""

    @field_validator("color_jitter", mode="wrap")
    @classmethod
    def _check_jitter(cls, given: object, handler: ValidatorFunctionWrapHandler) -> list[float]:
        has_other_length = isinstance(given, list) and len(given) != 4
        jitter: list[float] = [] if has_other_length else handler(given)
        if has_other_length or jitter[3] > 0.5:
            raise refusal(
                f"data.augment.color_jitter = {given}",
                allowed="four numbers: brightness, contrast and saturation from 0 to 10, hue from 0 to 0.5",
                todo="give all four, 0 for one that stays as it is: [0.4, 0.4, 0.4, 0.1]",
            )
        return jitter


class DataSection(Section):
    """How samples are read and turned into model input."""

    image_size: Annotated[int, Field(strict=True, ge=8, le=4096)] = 224
    """Side of the square model input, in pixels."""
    mean: Annotated[list[Fraction], Field(min_length=3, max_length=3)] | None = None
    """Mean of the red, green and blue channel in [0, 1]; unset: that of the training split."""
    std: Annotated[list[Annotated[float, Field(gt=0, le=1), NotBool]], Field(min_length=3, max_length=3)] | None = None
    """Standard deviation of the channels in (0, 1]; unset: that of the training split."""
    crop: Literal["center", "random_resized"] = "center"
    """Crop of training images; evaluation always takes the centre."""
    horizontal_flip: bool = False
    """Whether training images are mirrored with probability 1/2."""
    transform: Annotated[str, Field(pattern=r"^([\w.]+:\w+)?$")] = ""
    """`module:callable` that maps a training image [S, S, 3] uint8, cropped and flipped, to another; it may draw from
    python's, numpy's and torch's global generators, which are seeded for each sample. Unset: none."""
    augment: AugmentSection = AugmentSection()
    """Augmentation, in this order: RandAugment, colour jitter, mixup or CutMix."""
    on_bad_sample: Literal["fail", "replace"] = "fail"
    """What a damaged or undecodable training sample does: ends training, or is replaced by the next of its class."""
    order: Literal["auto", "full", "blocks"] = "auto"
    """Order of an epoch: `full`, a permutation of all samples; `blocks`, shards permuted, and samples within windows of
    16 shards; `auto`: full for local files, blocks for a bucket. What a training began with holds to its end."""
    num_workers: Annotated[int, Field(strict=True, ge=0, le=256)] | Auto = "auto"
    """Loader processes per rank; `auto` takes the profile's choice."""
    prefetch_factor: Annotated[int, Field(strict=True, ge=1, le=64)] | Auto = "auto"
    """Slots that each loader process prepares ahead; `auto`: 4."""
    cache_dir: str = ""
    """Folder on a disk of this machine that keeps shards of a bucket, from epoch to epoch and run to run; all processes
    of the machine share it. Relative to where the stage runs. Unset: `shards` in the user's cache
    (SHARDLINE_CACHE_DIR, else ~/.cache/shardline)."""
    cache_bytes: Annotated[int, Field(strict=True, ge=0)] = 0
    """Most bytes of shards and indices in the cache; the least recently used go first. 0: half of what is free on its
    disk when a process begins. It changes no result."""
