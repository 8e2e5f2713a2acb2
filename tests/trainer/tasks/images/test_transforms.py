"""Pixels of training images: scaled decoding, its strictness, and the formats beside JPEG."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from contracts.artifacts import Prepared
from contracts.config import DataSection
from contracts.errors import ConfigError
from records.decode import MAX_PIXELS, REDUCTIONS, UndecodableImage, decode_rgb, reducible_size
from tests.trainer.data.conftest import photograph
from tests.trainer.tasks.for_tests import planned_manifest
from trainer.data.randomness import generator_of
from trainer.tasks.images.transforms import (
    Box,
    EvaluationTransform,
    TrainTransform,
    _random_box,
    choose_reduction,
    make_transforms,
    normalise,
)

EVALUATION = EvaluationTransform(32, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def encode(image: Image.Image, form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def transforms(crop: str, size: int = 32) -> tuple[TrainTransform, TrainTransform]:
    """Scaled and full decoding."""
    return (
        TrainTransform(size, crop, False, EVALUATION, scaled_decode=True),
        TrainTransform(size, crop, False, EVALUATION, scaled_decode=False),
    )


@pytest.mark.parametrize(("height", "width"), [(400, 300), (255, 129), (64, 65), (33, 40)])
def test_a_reduction_divides_the_sides_and_rounds_up(height: int, width: int) -> None:
    content = encode(photograph(height, width), "JPEG")
    assert reducible_size(content) == (height, width)
    whole = decode_rgb(content)
    for reduction in REDUCTIONS:
        small = decode_rgb(content, reduction=reduction)
        assert small.shape == (-(-height // reduction), -(-width // reduction), 3)
        # Each pixel is about the mean of the block that it stands for.
        rows, columns = height // reduction, width // reduction
        blocks = whole[: rows * reduction, : columns * reduction].reshape(rows, reduction, columns, reduction, 3)
        assert np.abs(small[:rows, :columns] - blocks.mean((1, 3))).mean() < 6


def test_the_smallest_scale_that_is_big_enough_is_taken() -> None:
    assert [choose_reduction((0, 0, side, 2 * side), 32) for side in (31, 32, 63, 64, 127, 128, 255, 256, 5000)] == [
        *(1, 1, 1, 2, 2, 4, 4, 8, 8)
    ]
    assert choose_reduction((0, 0, 5000, 63), 32) == 1


@pytest.mark.parametrize("crop", ["center", "random_resized"])
def test_scaled_decoding_gives_nearly_the_pixels_of_the_whole_image(crop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import trainer.tasks.images.transforms as module

    used: list[int] = []

    def decode(content: bytes, *, reduction: int = 1, max_pixels: int | None) -> Any:
        used.append(reduction)
        return decode_rgb(content, reduction=reduction, max_pixels=max_pixels)

    monkeypatch.setattr(module, "decode_rgb", decode)
    scaled, full = transforms(crop)
    differences = []
    for number in range(40):
        content = encode(photograph(300, 420, seed=number), "JPEG", quality=90)
        used.clear()
        one = scaled.pixels(content, generator_of(number))
        reduction = used[0]
        other = full.pixels(content, generator_of(number))
        assert used[1] == 1
        difference = np.abs(one.astype(int) - other).mean()
        differences.append(difference)
        if reduction == 1:
            assert difference == 0
    assert max(differences) < 4
    assert np.mean(differences) > 0  # some were reduced


@pytest.mark.parametrize(("size", "box"), [((10, 1000), (0, 493, 10, 13)), ((1000, 10), (493, 0, 13, 10))])
def test_an_image_too_long_for_any_box_gives_its_centre(size: tuple[int, int], box: Box) -> None:
    """As torchvision's: with the aspect ratio that is nearest."""
    assert _random_box(*size, generator_of(1)) == box


def test_damage_is_refused_the_same_way_at_every_scale() -> None:
    content = encode(photograph(400, 400), "JPEG", quality=90)
    random = np.random.default_rng(0)
    scaled, full = transforms("center", 32)
    refused = 0
    for number in range(120):
        damaged = bytearray(content)
        if number % 4 == 0:
            damaged = damaged[: int(random.integers(20, len(damaged) - 2))]
        else:
            damaged[int(random.integers(2, len(damaged)))] ^= 1 << int(random.integers(8))
        outcomes = []
        for transform in (scaled, full):
            try:
                transform.pixels(bytes(damaged), None)
                outcomes.append("")
            except UndecodableImage as error:
                outcomes.append(str(error))
        assert bool(outcomes[0]) == bool(outcomes[1]), outcomes
        refused += bool(outcomes[0])
    assert refused >= 30


def test_other_formats_and_modes_are_decoded_whole() -> None:
    picture = photograph(200, 260)
    values = np.asarray(picture.convert("L")).astype(np.uint16) * 257
    exif = Image.Exif()
    exif[0x0112] = 6
    files = {
        "grey": encode(picture.convert("L"), "JPEG"),
        "cmyk": encode(picture.convert("CMYK"), "JPEG"),
        "sixteen bits": encode(Image.fromarray(values), "PNG"),
        "palette": encode(picture.quantize(64), "PNG"),
        "turned": encode(picture, "JPEG", exif=exif),
        "webp": encode(picture, "WEBP"),
    }
    scaled, full = transforms("center", 48)
    for name, content in files.items():
        one, other = scaled.pixels(content, None), full.pixels(content, None)
        assert one.shape == (48, 48, 3)
        if name in ("grey", "turned"):
            assert reducible_size(content) == (200, 260)
            assert 0 < np.abs(one.astype(int) - other).mean() < 4, name
        else:
            assert reducible_size(content) is None
            assert np.array_equal(one, other), name
        if name in ("grey", "sixteen bits"):
            assert (one[..., 0] == one[..., 1]).all()


def test_the_centre_of_training_is_that_of_evaluation() -> None:
    for height, width in ((32, 32), (50, 40), (33, 400)):
        content = encode(photograph(height, width), "PNG")
        assert np.array_equal(transforms("center")[0].pixels(content, None), EVALUATION.pixels(decode_rgb(content)))


def test_normalisation_gives_the_bits_of_numpy() -> None:
    mean, std = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
    images = np.repeat(np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1), 3, axis=3)
    expected = (images.astype(np.float32) / np.float32(255) - np.float32(mean)) / np.float32(std)
    found = normalise(torch.from_numpy(images), mean, std)
    assert found.is_contiguous()
    assert np.array_equal(found.numpy(), expected.transpose(0, 3, 1, 2))


def test_a_transform_that_cannot_be_loaded_is_a_mistake_of_the_user() -> None:
    for name, words in (("no_such_module:x", "no_such_module"), ("math:nothing", "nothing"), ("math:pi", "float")):
        with pytest.raises(ConfigError, match=words):
            make_transforms(DataSection(transform=name), planned_manifest(2))


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_images_above_the_limit_of_their_shards_are_refused(form: str) -> None:
    content = encode(photograph(40, 30), form)
    for most in (1199, 1200):
        prepared = Prepared(background=None, convert=[], resize=None, jpeg_quality=90, max_pixels=most, changed={})
        training, evaluation = make_transforms(DataSection(crop="center"), planned_manifest(2, prepared=prepared))
        for decode in (lambda content, of=training: of.pixels(content, generator_of(0, 0, 0)), evaluation.decode):
            if most == 1200:
                assert decode(content).shape[2] == 3
                continue
            with pytest.raises(UndecodableImage, match="more than the limit of 1199"):
                decode(content)
    # Nobody knows of adopted shards.
    training, evaluation = make_transforms(DataSection(), planned_manifest(2))
    assert training.evaluation.max_pixels == evaluation.max_pixels == MAX_PIXELS
