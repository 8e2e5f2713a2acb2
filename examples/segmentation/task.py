"""Segmentation as a task of one's own: the class of each pixel of an image (docs/tasks.md explains each member)."""

import io

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torchmetrics.classification import MulticlassJaccardIndex

from contracts.artifacts import OutputSpec, Signature, TensorSpec
from trainer.tasks.task import Task


class Segmentation(Task):
    """Images to the class of each pixel."""

    fields = {"image": "image", "mask": "image"}  # noqa: RUF012
    headline = "mean_iou"

    def __init__(self, context, *, classes, side, width):
        self.classes, self.side, self.width = classes, side, width
        image = TensorSpec(dtype="float32", shape=["batch", 3, side, side])
        logits = OutputSpec(dtype="float32", shape=["batch", len(classes), side, side], compare="classes")
        self.signature = Signature(inputs={"image": image}, outputs={"logits": logits})

    def build_model(self):
        """Return the network with random weights."""
        return UNet(len(self.classes), self.width)

    def prepare(self, sample, mode):
        """Decode one sample: image [S, S, 3] and mask [S, S], uint8; in training half of them mirrored."""
        prepared = {"image": np.array(Image.open(io.BytesIO(sample["image"])).convert("RGB"))}
        # An answer is asked for without a mask.
        if "mask" in sample:
            prepared["mask"] = np.array(Image.open(io.BytesIO(sample["mask"])))
        if mode.training and mode.random.random() < 0.5:
            prepared = {name: pixels[:, ::-1] for name, pixels in prepared.items()}
        return prepared

    def collate(self, samples, mode):
        """Return image [B, S, S, 3] and mask [B, S, S], uint8."""
        return {name: torch.from_numpy(np.stack([sample[name] for sample in samples])) for name in samples[0]}

    def example(self, size):
        """Return a batch of black images, as `to_model` returns one."""
        image = torch.zeros(size, 3, self.side, self.side)
        return {"image": image, "mask": torch.zeros(size, self.side, self.side, dtype=torch.int64)}

    def to_model(self, batch, mode):
        """Return image [B, 3, S, S] float32 in [-1, 1] and mask [B, S, S] int64: bytes travel to the device."""
        masks = {"mask": batch["mask"].long()} if "mask" in batch else {}
        return {"image": batch["image"].permute(0, 3, 1, 2).float() / 127.5 - 1, **masks}

    def loss(self, outputs, batch, mode):
        """Return cross-entropy and Dice of each sample, summed, and the number of samples."""
        logits, mask = outputs.float(), batch["mask"]
        entropy = functional.cross_entropy(logits, mask, reduction="none").mean(dim=(1, 2))
        # Dice of each sample over its classes (Milletari et al., arXiv 1606.04797).
        probability = logits.softmax(dim=1)
        truth = functional.one_hot(mask, len(self.classes)).permute(0, 3, 1, 2)
        both, all_ = (probability * truth).sum(dim=(2, 3)), (probability + truth).sum(dim=(2, 3))
        dice = 1 - ((2 * both + 1) / (all_ + 1)).mean(dim=1)
        return (entropy + dice).sum(), len(mask)

    def metrics(self):
        """Return new metrics by name."""
        return {"mean_iou": MulticlassJaccardIndex(len(self.classes), validate_args=False)}

    def update(self, metrics, outputs, batch):
        """Take a batch of an evaluation in."""
        metrics["mean_iou"].update(outputs.argmax(dim=1), batch["mask"])

    def answer(self, outputs):
        """Return the share of each class in each picture."""
        shares = functional.one_hot(outputs.argmax(dim=1), len(self.classes)).float().mean(dim=(1, 2))
        return [dict(zip(self.classes, map(float, row), strict=True)) for row in shares]


class UNet(nn.Module):
    """Two steps down, two up, with the layers of each size joined (Ronneberger et al., arXiv 1505.04597)."""

    def __init__(self, classes, width):
        super().__init__()
        self.one, self.two, self.four = block(3, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.up_two, self.up_one = block(6 * width, 2 * width), block(3 * width, width)
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, image):
        """Map images [B, 3, S, S] to logits [B, classes, S, S]."""
        one = self.one(image)
        two = self.two(functional.max_pool2d(one, 2))
        four = self.four(functional.max_pool2d(two, 2))
        two = self.up_two(torch.cat([two, double(four)], dim=1))
        return self.last(self.up_one(torch.cat([one, double(two)], dim=1)))


def block(inside, outside):
    """Return two convolutions of one size."""
    layers = (nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())
    return nn.Sequential(*layers, nn.Conv2d(outside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())


def double(images):
    """Return images of twice the side."""
    return functional.interpolate(images, scale_factor=2.0, mode="nearest")
