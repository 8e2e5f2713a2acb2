"""A model that was trained on scikit-learn's digits, and one that computes the same but that int8 destroys."""

from __future__ import annotations

import copy
import fcntl
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from contracts.config import ModelSection
from tests.trainer.export.conftest import CLASSES, IMAGE_SIZE, MODEL
from trainer.tasks.image import build_network

# 1,797 images in all; the rest are training images.
VALIDATION, TEST = 120, 539
MEAN, STD = 0.5, 0.25
EPOCHS, BATCH_SIZE = 4, 32


def read_digits() -> dict[str, list[tuple[bytes, int]]]:
    """Return PNG files of 32 px and labels by split, shuffled by a fixed seed."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pictures = []
    for place in order.tolist():
        grey = Image.fromarray(np.rint(digits.images[place] * (255 / 16)).astype(np.uint8))
        stream = io.BytesIO()
        grey.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC).save(stream, "PNG", compress_level=1)
        pictures.append((stream.getvalue(), int(digits.target[place])))
    train = len(pictures) - VALIDATION - TEST
    return {"train": pictures[:train], "validation": pictures[train:-TEST], "test": pictures[-TEST:]}


def to_input(pictures: list[tuple[bytes, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the evaluation transform makes of images of this size, [N, 3, S, S], and labels [N]."""
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(content)).convert("RGB")) for content, _ in pictures])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float()
    return images.div_(255).sub_(MEAN).div_(STD), torch.tensor([label for _, label in pictures])


def new_model() -> nn.Module:
    return build_network(ModelSection.model_validate(MODEL), num_classes=len(CLASSES), image_size=IMAGE_SIZE)


def train_digits() -> nn.Module:
    """Return the digits model after a few epochs over the training images: some seconds on one core."""
    images, labels = to_input(read_digits()["train"])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = new_model().train()
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(images)).split(BATCH_SIZE):
                loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model.eval()


def damage_for_int8(model: nn.Module) -> nn.Module:
    """Return a copy that computes the same in fp32 and fp16, and in which int8 cannot hold the activations of blocks.

    One channel between the two convolutions of each block is 2,048 times as large, and the second convolution's weights
    for it as much smaller. One scale for the whole tensor then has no step left for the other channels.
    """
    damaged, factor = copy.deepcopy(model), 2.0**11
    for block in [module for name, module in damaged.named_modules() if name.endswith("layers.0")]:
        first, second = block.layer[0], block.layer[1]
        with torch.no_grad():
            # The one that matters least: what it loses to fp16's small numbers is not seen.
            channel = int(second.convolution.weight.abs().sum(dim=(0, 2, 3)).argmin())
            first.normalization.weight[channel] *= factor
            first.normalization.bias[channel] *= factor
            second.convolution.weight[:, channel] /= factor
    return damaged.eval()


@contextmanager
def once_for_all_workers(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """Give a path that the processes of one test run share, to one at a time."""
    base = factory.getbasetemp()
    # With xdist, a worker's folder lies in that of the run.
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / name
