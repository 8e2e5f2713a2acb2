"""Regression as a task of one's own: the reading of a gauge in an image (docs/tasks.md explains each member)."""

import io

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchmetrics import MeanAbsoluteError

from contracts.artifacts import OutputSpec, Signature, TensorSpec
from trainer.tasks.task import Baseline, Task


class Gauge(Task):
    """Images to a reading from 0 to 100."""

    fields = {"image": "image", "reading": "number"}  # noqa: RUF012
    headline = "absolute_error"

    def __init__(self, context, *, side, width):
        self.side, self.width = side, width
        image = TensorSpec(dtype="float32", shape=["batch", 3, side, side])
        self.signature = Signature(
            inputs={"image": image}, outputs={"reading": OutputSpec(dtype="float32", shape=["batch", 1])}
        )

    def prepare(self, sample, mode):
        """Decode one sample: image [S, S, 3] uint8, and its reading where that is known."""
        image = np.array(Image.open(io.BytesIO(sample["image"])).convert("RGB"))
        return {"image": image, "label": np.float32(sample.get("reading", 0))}

    def collate(self, samples, mode):
        """Return image [B, S, S, 3] uint8 and label [B] float32."""
        return {name: torch.from_numpy(np.stack([sample[name] for sample in samples])) for name in samples[0]}

    def to_model(self, batch, mode):
        """Return image [B, 3, S, S] float32 in [-1, 1] and label [B]."""
        return {**batch, "image": batch["image"].permute(0, 3, 1, 2).float() / 127.5 - 1}

    def example(self, size):
        """Return a batch of black images."""
        return {"image": torch.zeros(size, 3, self.side, self.side), "label": torch.zeros(size)}

    def build_model(self):
        """Return convolutions that halve the side three times, and a layer that sees where the hand is."""
        layers, inside = [], 3
        for outside in (self.width, 2 * self.width, 2 * self.width):
            layers += [nn.Conv2d(inside, outside, 3, stride=2, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
            inside = outside
        last = nn.Linear(inside * (self.side // 8) ** 2, 1)
        nn.init.constant_(last.bias, 50.0)
        return nn.Sequential(*layers, nn.Flatten(), last)

    def loss(self, outputs, batch, mode):
        """Return the squared errors in halves of the scale, summed, and the number of samples."""
        return ((outputs.float()[:, 0] - batch["label"]) / 50).square().sum(), len(batch["label"])

    def metrics(self):
        """Return new metrics by name."""
        return {"absolute_error": MeanAbsoluteError()}

    def update(self, metrics, outputs, batch):
        """Take a batch of an evaluation in."""
        metrics["absolute_error"].update(outputs[:, 0], batch["label"])

    def answer(self, outputs):
        """Return the reading of each gauge."""
        return [round(float(value), 2) for value in outputs[:, 0]]

    def outcomes(self, outputs, batch):
        """Return label and answer of each sample."""
        return {"label": batch["label"].tolist(), "answer": self.answer(outputs)}

    def baseline(self, outcomes):
        """Return the error of a model that always says the mean."""
        labels = np.asarray(outcomes["label"])
        return Baseline(f"always {labels.mean():.1f}", float(np.abs(labels - labels.mean()).mean()))
