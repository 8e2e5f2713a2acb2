"""Augmentation: definitions against torchvision's, what is drawn, and pixels that hang on the sample alone."""

import random
import re

import google_crc32c
import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from contracts.errors import ConfigError
from tests.trainer.data.conftest import dataset, photograph, request
from trainer.data.loader import make_loader, read_slots
from trainer.data.randomness import generator_of
from trainer.tasks.images.augment.draw import (
    OPERATIONS,
    RAND_AUGMENT,
    Augmentation,
    AugmentationPlan,
    Mixing,
)
from trainer.tasks.images.augment.pixel_ops import apply_plan, mix_images
from trainer.tasks.protocol import Mode

Pixels = npt.NDArray[np.uint8]
ALL = {
    "rand_augment_ops": 2,
    "rand_augment_magnitude": 15,
    "brightness": 0.4,
    "contrast": 0.4,
    "saturation": 0.4,
    "hue": 0.1,
}


def apply(name: str, strength: float, *images: Image.Image) -> Pixels:
    batch = torch.from_numpy(np.stack([np.array(image) for image in images])).permute(0, 3, 1, 2)
    count = len(images)
    plan = AugmentationPlan(np.full((count, 1), OPERATIONS.index(name)), np.full((count, 1), strength))
    return apply_plan(batch, plan).permute(0, 2, 3, 1).numpy()


# crc32c of what `_apply_op` of torchvision 0.20.1 (transforms/autoaugment.py) makes of PATTERN as a uint8 tensor.
TORCHVISION = [
    ("shear_x", 0.217, "d386273d"),
    ("shear_y", -0.133, "2d797c98"),
    ("translate_x", 7.0, "be363c8e"),
    ("translate_y", -5.0, "11c56f52"),
    ("rotate", 17.0, "4c3da35f"),
    ("rotate", -29.0, "0f0b8615"),
    ("brightness", 0.45, "90ea21a6"),
    ("brightness", -0.63, "7d2a1254"),
    ("saturation", 0.9, "4c43a1c5"),
    ("saturation", -0.27, "5621bbbb"),
    ("contrast", 0.54, "114a39a2"),
    ("contrast", -0.81, "f4dbc3f2"),
    ("sharpness", 0.72, "04dc9409"),
    ("sharpness", -0.9, "019e8ae5"),
    ("posterize", 4.0, "514e7312"),
    ("posterize", 7.0, "3f346295"),
    ("solarize", 170.0, "a6028277"),
    ("solarize", 195.5, "07aa5f12"),
    ("autocontrast", 0.0, "4e14b285"),
    ("equalize", 0.0, "6cd4b288"),
]
_Y, _X = np.mgrid[0:40, 0:40]
PATTERN = np.stack(
    [
        (_X * 7 + _Y * 3 + 20) % 200 + (_X * _Y) % 41,
        (_X * _X // 5 + _Y * 11) % 180 + 30,
        (_Y * _Y // 7 + _X * 13 + (_X ^ _Y)) % 230 + 10,
    ]
).astype(np.uint8)


@pytest.mark.parametrize(("name", "strength", "crc32c"), TORCHVISION)
def test_operations_are_those_of_torchvision_bit_by_bit(name: str, strength: float, crc32c: str) -> None:
    plan = AugmentationPlan(np.array([[OPERATIONS.index(name)]]), np.array([[strength]]))
    found = apply_plan(torch.from_numpy(PATTERN)[None], plan)[0]
    assert f"{google_crc32c.value(found.numpy().tobytes()):08x}" == crc32c


def test_hue_turns_colours_and_comes_back() -> None:
    image = photograph(32, 32)
    turned = apply("hue", 1 / 3, image)[0]
    # A third of the circle exchanges the channels.
    assert np.abs(turned.astype(int) - np.roll(np.asarray(image), 1, axis=2)).max() <= 1
    assert np.abs(apply("hue", 0.0, image)[0].astype(int) - np.asarray(image)).max() <= 1


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_image_does_not_depend_on_its_batch(name: str) -> None:
    images = [photograph(37, 37, seed=seed) for seed in range(5)]
    together = apply(name, 0.3 if name != "posterize" else 5.0, *images)
    for number, image in enumerate(images):
        assert np.array_equal(together[number], apply(name, 0.3 if name != "posterize" else 5.0, image)[0])


def test_operations_are_drawn_evenly_with_both_signs() -> None:
    augmentation = Augmentation(rand_augment_ops=2, magnitude=10, jitter=(0.5, 0.0, 2.0, 0.1), image_size=224)
    drawn = [augmentation.draw(generator_of(7, number)) for number in range(4000)]
    counts = np.bincount([place for places, _ in drawn for place in places[:2]], minlength=len(RAND_AUGMENT))
    assert len(counts) == len(RAND_AUGMENT)
    expected = 8000 / len(RAND_AUGMENT)
    # Chi-square with 13 degrees of freedom: above 34.5 once in a thousand; the draws are fixed.
    assert ((counts - expected) ** 2 / expected).sum() < 34.5
    rotations = [s[0] for places, s in drawn if places[0] == OPERATIONS.index("rotate")]
    assert set(rotations) == {10.0, -10.0}
    assert 0.4 < np.mean(np.array(rotations) > 0) < 0.6
    assert {tuple(sorted(places[2:])) for places, _ in drawn} == {
        tuple(sorted(OPERATIONS.index(name) for name in ("brightness", "saturation", "hue")))
    }
    firsts = np.array([places[2] for places, _ in drawn])
    assert all(0.28 < np.mean(firsts == place) < 0.39 for place in set(firsts))
    by_name: dict[str, list[float]] = {"brightness": [], "saturation": [], "hue": []}
    for places, strengths in drawn:
        for place, strength in zip(places[2:], strengths[2:], strict=True):
            by_name[OPERATIONS[place]].append(strength)
    for name, (low, high) in {"brightness": (-0.5, 0.5), "saturation": (-1, 2), "hue": (-0.1, 0.1)}.items():
        values = np.array(by_name[name])
        assert low <= values.min() < low + 0.05 * (high - low) and high - 0.05 * (high - low) < values.max() <= high


def test_mixing_shares_fit_the_pixels() -> None:
    images = torch.arange(8 * 3 * 20 * 20, dtype=torch.float32).view(8, 3, 20, 20) % 97
    shares = []
    for number in range(200):
        drawn = Mixing(0.4, 1.0).draw(8, 20, generator_of(number))
        mixed = mix_images(images, drawn)
        for row in range(8):
            share, partner = float(drawn.shares[row]), images[7 - row]
            shares.append(share)
            if drawn.cut[row]:
                inside = torch.zeros(20, 20, dtype=torch.bool)
                top, left, bottom, right = drawn.boxes[row]
                inside[top:bottom, left:right] = True
                assert torch.equal(mixed[row], torch.where(inside, partner, images[row]))
                assert share == pytest.approx(1 - float(inside.float().mean()))
            else:
                assert torch.allclose(mixed[row], share * images[row] + (1 - share) * partner, atol=1e-4)
        assert min(shares) >= 0 and max(shares) <= 1
    cuts = [Mixing(0.4, 1.0).draw(8, 20, generator_of(number)).cut.mean() for number in range(200)]
    assert 0.45 < np.mean(cuts) < 0.55
    blended = np.concatenate([Mixing(0.4).draw(8, 20, generator_of(number)).shares for number in range(400)])
    # Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)).
    assert abs(blended.mean() - 0.5) < 0.02
    assert abs(blended.var() - 1 / (4 * 1.8)) < 0.01


def test_all_of_it_hangs_on_the_sample_alone(small_shards: str) -> None:
    data = dataset(small_shards, crop="random_resized", horizontal_flip=True, augment=ALL)
    alone = {sample: data.read(request(sample)).batch["images"][0] for sample in range(12)}
    requests = [request(*range(start, start + 4)) for start in (8, 0, 4)]
    for num_workers in (0, 2):
        loader = make_loader(data, requests, num_workers=num_workers, prefetch_factor=2, pin_memory=False)
        for batch in read_slots(loader):
            for row, sample in enumerate(batch.request.samples):
                assert torch.equal(batch.batch["images"][row], alone[sample])
    assert not torch.equal(alone[3], data.read(request(3, epoch=1)).batch["images"][0])


def test_the_mix_of_a_slot_hangs_on_its_place(small_shards: str) -> None:
    data = dataset(small_shards, augment={"mixup_alpha": 0.5, "cutmix_alpha": 1.0})
    first, again, later = (data.read(request(*range(8), step=step)).batch["mix"] for step in (5, 5, 6))
    assert np.array_equal(first.shares, again.shares) and not np.array_equal(first.shares, later.shares)
    mode = Mode(training=True)
    batch = data.task.to_model(data.read(request(*range(8), step=5)).batch, mode)
    logits = torch.randn(8, 3)
    targets = torch.nn.functional.one_hot(batch["label"], 3).float()
    weights = torch.from_numpy(first.shares)[:, None]
    soft = weights * targets + (1 - weights) * targets.flip(0)
    expected = torch.nn.functional.cross_entropy(logits, soft, reduction="sum")
    loss, count = data.task.loss(logits, batch, mode)
    assert torch.allclose(loss, expected) and count == 8


def draw_from_everything(image: Pixels) -> Pixels:
    """A user's transform that knows nothing of samples."""
    noise = random.randrange(50) + np.random.randint(50) + int(torch.randint(50, ()))
    return (image // 2 + noise).astype(np.uint8)


def return_nonsense(image: Pixels) -> Pixels:
    return image[:2]


def test_a_transform_of_the_user_is_exact_too(small_shards: str) -> None:
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
    noises = {int((alone[sample] - plain[sample]).unique()) for sample in range(8)}
    assert len(noises) > 3
    assert not torch.equal(alone[0], data.read(request(0, epoch=1)).batch["images"][0])
    with pytest.raises(ConfigError, match=r"\(2, 16, 3\)"):
        dataset(small_shards, transform=f"{__name__}:return_nonsense").read(request(0))


def darken_in_place(image: Pixels) -> Pixels:
    """A transform as users write it: it changes what it is given."""
    image //= 2
    return image


def refuse(image: Pixels) -> Pixels:
    raise KeyError("no such colour")


def crop_half(image: Pixels) -> Pixels:
    return image[:4]


@pytest.mark.parametrize("image_size", [16, 12])
@pytest.mark.parametrize("flip", [False, True])
def test_a_transform_may_change_the_image_it_is_given(small_shards: str, image_size: int, flip: bool) -> None:
    """Whether the image had the right size (16) or was resized by Pillow, whose bytes cannot be written to."""
    fields = {"image_size": image_size, "horizontal_flip": flip}
    plain = dataset(small_shards, **fields).read(request(*range(6))).batch["images"]
    own = (
        dataset(small_shards, transform=f"{__name__}:darken_in_place", **fields)
        .read(request(*range(6)))
        .batch["images"]
    )
    assert torch.equal(own, plain // 2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("refuse", r"failed: KeyError: 'no such colour' \(.*test_draw.py, line \d+\): {}"),
        ("crop_half", "returned .*: {}"),
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
