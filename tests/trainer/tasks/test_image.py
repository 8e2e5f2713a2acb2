"""Images to batches: scaled decoding and its strictness, evaluation's bits, normalisation, transforms of the user."""

import io
import random
import re
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from contracts.artifacts import Prepared
from contracts.config import DataSection
from contracts.errors import ConfigError
from records.decode import MAX_PIXELS, REDUCTIONS, UndecodableImage, decode_rgb, reducible_size
from records.pixels import centre_square
from tests.trainer.data.conftest import dataset, photograph, request
from tests.trainer.tasks.for_tests import image_task, planned_manifest
from trainer.data.loader import make_loader, read_slots
from trainer.data.randomness import generator_of
from trainer.tasks.image_transforms import (
    TrainTransform,
    load_transform,
    normalise,
)
from trainer.tasks.task import Mode


def encode(image: Image.Image, form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def transform_of(crop: str, size: int = 32) -> TrainTransform:
    return TrainTransform(size, crop, horizontal_flip=False)


def decode_whole(transform: TrainTransform, content: bytes, random: np.random.Generator | None = None) -> Any:
    """Decode as if no reduction were possible."""
    with patch("trainer.tasks.image_transforms.reducible_size", return_value=None):
        return transform.decode(content, random)


def test_a_reduction_divides_the_sides_and_rounds_up() -> None:
    height, width = 33, 40
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


@pytest.mark.parametrize("crop", ["center", "random_resized"])
def test_scaled_decoding_gives_nearly_the_pixels_of_the_whole_image(crop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import trainer.tasks.image_transforms as module

    used: list[int] = []

    def decode(content: bytes, *, reduction: int = 1, max_pixels: int | None) -> Any:
        used.append(reduction)
        return decode_rgb(content, reduction=reduction, max_pixels=max_pixels)

    monkeypatch.setattr(module, "decode_rgb", decode)
    transform = transform_of(crop)
    differences = []
    for number in range(6):
        content = encode(photograph(300, 420, seed=number), "JPEG", quality=90)
        used.clear()
        one = transform.decode(content, generator_of(number))
        reduction = used[0]
        other = decode_whole(transform, content, generator_of(number))
        assert used[1] == 1
        difference = np.abs(one.astype(int) - other).mean()
        differences.append(difference)
        if reduction == 1:
            assert difference == 0
    assert max(differences) < 4
    assert np.mean(differences) > 0  # some were reduced


def test_damage_is_refused_the_same_way_at_every_scale() -> None:
    content = encode(photograph(400, 400), "JPEG", quality=90)
    random = np.random.default_rng(0)
    transform = transform_of("center")
    refused = 0
    for number in range(32):
        damaged = bytearray(content)
        if number % 4 == 0:
            damaged = damaged[: int(random.integers(20, len(damaged) - 2))]
        else:
            damaged[int(random.integers(2, len(damaged)))] ^= 1 << int(random.integers(8))
        outcomes = []
        for decode in (transform.decode, partial(decode_whole, transform)):
            try:
                decode(bytes(damaged), None)
                outcomes.append("")
            except UndecodableImage as error:
                outcomes.append(str(error))
        assert bool(outcomes[0]) == bool(outcomes[1]), outcomes
        refused += bool(outcomes[0])
    assert refused >= 8


def test_normalisation_gives_the_bits_of_numpy() -> None:
    mean, std = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
    images = np.repeat(np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1), 3, axis=3)
    expected = (images.astype(np.float32) / np.float32(255) - np.float32(mean)) / np.float32(std)
    found = normalise(torch.from_numpy(images), mean, std)
    assert found.is_contiguous()
    assert np.array_equal(found.numpy(), expected.transpose(0, 3, 1, 2))


def test_images_above_the_limit_of_their_shards_are_refused() -> None:
    sample, most = {"image": encode(photograph(40, 30), "JPEG"), "label": 0}, 1199
    for limit in (most, most + 1):
        prepared = Prepared(background=None, convert=[], resize=None, jpeg_quality=90, max_pixels=limit, changed={})
        task = image_task(planned_manifest(2, prepared=prepared), DataSection(image_size=16))
        for mode in (Mode(training=True, key=(0, 0)), Mode(training=False)):
            if limit > most:
                assert task.prepare(sample, mode)["images"].shape == (16, 16, 3)
                continue
            with pytest.raises(UndecodableImage, match="more than the limit of 1199"):
                task.prepare(sample, mode)
    # Nobody knows of adopted shards.
    assert image_task(2).train_transform.max_pixels == MAX_PIXELS


def test_evaluation_and_prediction_decode_alike_and_predict_needs_no_label() -> None:
    task, mode = image_task(2, DataSection(image_size=32)), Mode(training=False)
    content = encode(photograph(60, 45), "JPEG")
    batch = task.to_model(task.collate([task.prepare({"image": content}, mode)], mode), mode)
    expected = normalise(torch.from_numpy(centre_square(decode_rgb(content), 32).copy())[None], (0.5,) * 3, (0.25,) * 3)
    assert list(batch) == ["images"] and torch.equal(batch["images"], expected)
    # The first samples of TensorBoard: normalisation is undone.
    assert np.array_equal(task.first_samples(batch)[0].permute(1, 2, 0), centre_square(decode_rgb(content), 32))


# --- data.transform ---------------------------------------------------------------------------------------------------


def draw_from_everything(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A user's transform that knows nothing of samples."""
    noise = random.randrange(50) + np.random.randint(50) + int(torch.randint(50, ()))
    return (image // 2 + noise).astype(np.uint8)


def darken_in_place(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A transform as users write it: it changes what it is given."""
    image //= 2
    return image


def refuse(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    raise KeyError("no such colour")


def crop_half(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return image[:4]


def test_a_transform_that_draws_from_global_generators_is_keyed_by_sample_too(small_shards: str) -> None:
    data = dataset(small_shards, transform=f"{__name__}:draw_from_everything")
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    alone = {sample: data.read(request(sample)).batch["images"][0] for sample in range(8)}
    assert random.getstate() == before[0] and np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    random.random(), np.random.random(), torch.rand(3)
    requests = [request(*range(start, start + 4)) for start in (4, 0)]
    for num_workers in (0, 2):
        loader = make_loader(data, requests, num_workers=num_workers, prefetch_factor=2, pin_memory=False)
        for batch in read_slots(loader):
            for row, sample in enumerate(batch.request.samples):
                assert torch.equal(batch.batch["images"][row], alone[sample])
    plain = dataset(small_shards).read(request(*range(8))).batch["images"] // 2
    assert len({int((alone[sample] - plain[sample]).unique()) for sample in range(8)}) > 3
    assert not torch.equal(alone[0], data.read(request(0, epoch=1)).batch["images"][0])


@pytest.mark.parametrize("image_size", [16, 12])
def test_a_transform_may_change_the_image_it_is_given(small_shards: str, image_size: int) -> None:
    """Whether the image had the right size (16) or was resized by Pillow, whose bytes cannot be written to."""
    fields = {"image_size": image_size, "horizontal_flip": True}
    own, plain = (
        dataset(small_shards, **fields, **more).read(request(*range(6))).batch["images"]
        for more in ({"transform": f"{__name__}:darken_in_place"}, {})
    )
    assert torch.equal(own, plain // 2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("refuse", r"failed: KeyError: 'no such colour' \(.*test_image.py, line \d+\): {}"),
        ("crop_half", r"returned uint8 \(4, 16, 3\) .*: {}"),
    ],
)
def test_a_transform_that_fails_is_named_with_shard_and_sample(small_shards: str, name: str, words: str) -> None:
    data = dataset(small_shards, transform=f"{__name__}:{name}")
    place = data.reader.describe(5)
    assert re.fullmatch(r"shard train-\S+, sample [0-9a-f]{32} \(\w+/\d+\.png\)", place)
    with pytest.raises(ConfigError, match=f"data.transform {__name__}:{name} {words.format(re.escape(place))}"):
        data.read(request(5))
    # What a loader process gives back.
    assert isinstance(data[request(5)], ConfigError)


def test_a_transform_that_cannot_be_loaded_is_a_mistake_of_the_user() -> None:
    for name, words in (("no_such_module:x", "no_such_module"), ("math:nothing", "nothing"), ("math:pi", "float")):
        with pytest.raises(ConfigError, match=words):
            load_transform(name)
