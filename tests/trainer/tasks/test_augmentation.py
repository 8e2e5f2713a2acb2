"""Augmentation: definitions against torchvision's, what is drawn, and pixels that hang on the sample alone."""

import google_crc32c
import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from contracts.config.load import parse_config
from contracts.errors import ConfigError
from tests.trainer.data.conftest import dataset, photograph, request
from trainer.data.loader import make_loader, read_slots
from trainer.data.randomness import generator_of
from trainer.tasks.augmentation import RAND_AUGMENT, Augmentation, Mixing, apply_operations, mix_images
from trainer.tasks.task import Mode

ALL = {
    "rand_augment_ops": 2,
    "rand_augment_magnitude": 15,
    "color_jitter": [0.4, 0.4, 0.4, 0.1],
}
_Y, _X = np.mgrid[0:40, 0:40]
PATTERN = np.stack(
    [
        (_X * 7 + _Y * 3 + 20) % 200 + (_X * _Y) % 41,
        (_X * _X // 5 + _Y * 11) % 180 + 30,
        (_Y * _Y // 7 + _X * 13 + (_X ^ _Y)) % 230 + 10,
    ],
    axis=2,
).astype(np.uint8)
# crc32c of what `_apply_op` of torchvision 0.20.1 (transforms/autoaugment.py) makes of PATTERN as a uint8 tensor.
TORCHVISION = [
    ("shear_x", 0.217, "d386273d"),
    ("rotate", 17.0, "4c3da35f"),
    ("posterize", 4.0, "514e7312"),
    ("equalize", 0.0, "6cd4b288"),
]


def apply(name: str, strength: float, image: npt.NDArray[np.uint8] = PATTERN) -> npt.NDArray[np.uint8]:
    return np.asarray(apply_operations(Image.fromarray(image), [(name, strength)]))


@pytest.mark.parametrize(("name", "strength", "crc32c"), TORCHVISION)
def test_operations_without_blending_have_torchvisions_bits(name: str, strength: float, crc32c: str) -> None:
    pixels = np.ascontiguousarray(apply(name, strength).transpose(2, 0, 1))
    assert f"{google_crc32c.value(pixels.tobytes()):08x}" == crc32c


@pytest.mark.parametrize("change", [-0.9, 0.45])
@pytest.mark.parametrize("name", ["saturation", "contrast", "sharpness"])
def test_blends_are_those_that_torchvision_defines(name: str, change: float) -> None:
    """(1 + change) of the image and -change of another one: its grey, the mean of its grey, or the image smoothed."""
    image = PATTERN.astype(np.float64)
    grey = (image @ [0.2989, 0.587, 0.114]).astype(np.uint8).astype(np.float64)
    smooth = image.copy()
    total = sum(image[y : y + 38, x : x + 38] for y in range(3) for x in range(3))
    # Pillow's SMOOTH: ones around a 5, over 13; the edge stays as it is.
    smooth[1:-1, 1:-1] = np.round((total + 4 * image[1:-1, 1:-1]) / 13)
    other = {"saturation": grey[..., None], "contrast": grey.mean(), "sharpness": smooth}[name]
    expected = np.clip((1 + change) * image - change * other, 0, 255)
    # Both are cut to whole numbers, of greys that differ by rounding.
    assert np.abs(apply(name, change) - expected).max() < 2


def test_hue_turns_colours_and_comes_back() -> None:
    image = np.asarray(photograph(32, 32))
    # A third of the circle exchanges the channels. Pillow has hues in 256 steps.
    for turns, expected in ((1 / 3, np.roll(image, 1, axis=2)), (-1 / 3, np.roll(image, -1, axis=2)), (0.0, image)):
        difference = np.abs(apply("hue", turns, image).astype(int) - expected)
        assert difference.mean() < 1 and difference.max() <= 10


def test_operations_are_drawn_evenly_with_both_signs() -> None:
    augmentation = Augmentation(rand_augment_ops=2, magnitude=10, jitter=(0.5, 0.0, 2.0, 0.1), image_size=224)
    drawn = [augmentation.draw(generator_of(7, number)) for number in range(4000)]
    names = [name for operations in drawn for name, _ in operations[:2]]
    counts, expected = np.array([names.count(name) for name in RAND_AUGMENT]), 8000 / len(RAND_AUGMENT)
    # Chi-square with 13 degrees of freedom: above 34.5 once in a thousand; the draws are fixed.
    assert ((counts - expected) ** 2 / expected).sum() < 34.5
    rotations = [strength for operations in drawn for name, strength in operations[:2] if name == "rotate"]
    assert set(rotations) == {10.0, -10.0} and 0.4 < np.mean(np.array(rotations) > 0) < 0.6
    jitter = {"brightness": (-0.5, 0.5), "saturation": (-1, 2), "hue": (-0.1, 0.1)}
    assert all({name for name, _ in operations[2:]} == set(jitter) for operations in drawn)
    for name, (low, high) in jitter.items():
        values = [strength for operations in drawn for each, strength in operations[2:] if each == name]
        assert low <= min(values) < low + 0.05 * (high - low) and high - 0.05 * (high - low) < max(values) <= high


def test_mixing_shares_fit_the_pixels() -> None:
    images = torch.arange(8 * 3 * 20 * 20, dtype=torch.float32).view(8, 3, 20, 20) % 97
    cuts = 0
    for number in range(200):
        drawn = Mixing(0.4, 1.0).draw(8, 20, generator_of(number))
        mixed = mix_images(images, drawn["shares"], drawn["boxes"])
        for row in range(8):
            share, partner = float(drawn["shares"][row]), images[7 - row]
            assert 0 <= share <= 1
            top, left, bottom, right = drawn["boxes"][row].tolist()
            if right > left:
                cuts += 1
                inside = torch.zeros(20, 20, dtype=torch.bool)
                inside[top:bottom, left:right] = True
                assert torch.equal(mixed[row], torch.where(inside, partner, images[row]))
                assert share == pytest.approx(1 - float(inside.float().mean()))
            else:
                assert torch.allclose(mixed[row], share * images[row] + (1 - share) * partner, atol=1e-4)
    # Half of the images, but for boxes without a pixel.
    assert 0.4 < cuts / 1600 < 0.52


def test_the_mix_of_a_slot_hangs_on_its_place(small_shards: str) -> None:
    data = dataset(small_shards, augment={"mixup_alpha": 0.5, "cutmix_alpha": 1.0})
    first, again, later = (data.read(request(*range(8), step=step)).batch["mix"]["shares"] for step in (5, 5, 6))
    assert torch.equal(first, again) and not torch.equal(first, later)
    mode = Mode(training=True)
    batch = data.task.to_model(data.read(request(*range(8), step=5)).batch, mode)
    logits = torch.randn(8, 3)
    targets, weights = torch.nn.functional.one_hot(batch["label"], 3).float(), first[:, None]
    soft = weights * targets + (1 - weights) * targets.flip(0)
    loss, count = data.task.loss(logits, batch, mode)
    expected = torch.nn.functional.cross_entropy(logits, soft, reduction="sum")
    assert torch.allclose(torch.as_tensor(loss), expected) and count == 8


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


@pytest.mark.parametrize("jitter", [[0.4, 0.4, 0.4], [0.4, 0.4, 0.4, 0.6]])
def test_a_jitter_of_another_length_or_beyond_half_of_the_circle_is_refused(jitter: list[float]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"data": {"augment": {"color_jitter": jitter}}}, where="test")
    assert str(jitter) in caught.value.given and "hue from 0 to 0.5" in caught.value.allowed and caught.value.todo
