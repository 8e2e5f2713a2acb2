"""A task without classes: how red an image is; with a headline of which less is better."""

import io
from typing import ClassVar

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchmetrics import MeanAbsoluteError, MeanSquaredError

from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from trainer.tasks.task import Baseline, Task

SIDE = 16


class FailsOnColour(nn.Module):
    def __init__(self, *, in_training):
        super().__init__()
        self.in_training = in_training

    def forward(self, pixels):
        # Batches that are not the example.
        assert self.training != self.in_training or not pixels.any(), "a colour"
        return pixels


class Redness(Task):
    """Images to their mean redness."""

    fields: ClassVar = {"image": "image"}
    headline = "distance"
    signature = Signature(
        inputs={"pixels": TensorSpec(dtype="float32", shape=["batch", 3, SIDE, SIDE])},
        outputs={"redness": OutputSpec(dtype="float32", shape=["batch", 1])},
    )

    def __init__(self, context, *, broken=""):
        self.broken = broken

    def build_model(self):
        fails = {"forward": True, "evaluation": False}
        first = [FailsOnColour(in_training=fails[self.broken])] if self.broken in fails else []
        return nn.Sequential(*first, nn.Conv2d(3, 4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 12 * 12, 1))

    def prepare(self, sample, mode):
        image = Image.open(io.BytesIO(sample["image"])).convert("RGB").resize((SIDE, SIDE))
        return np.asarray(image).astype(np.float32) / 255

    def collate(self, samples, mode):
        return {"pixels": torch.from_numpy(np.stack(samples)).permute(0, 3, 1, 2).contiguous()}

    def example(self, size):
        return {"pixels": torch.zeros(size, 3, SIDE, SIDE)}

    def to_model(self, batch, mode):
        return {"pixels": batch["pixels"].double()} if self.broken == "to_model" else batch

    def loss(self, outputs, batch, mode):
        return ((outputs - self._truth(batch)) ** 2).sum(), len(outputs)

    def metrics(self):
        quiet = {"sync_on_compute": False}
        return {"distance": MeanAbsoluteError(**quiet), "squares": MeanSquaredError(**quiet)}

    def update(self, metrics, outputs, batch):
        if self.broken == "update":
            raise RuntimeError("no update")
        for metric in metrics.values():
            metric.update(outputs, self._truth(batch))

    def answer(self, outputs):
        return outputs[:, 0].tolist()

    def outcomes(self, outputs, batch):
        return {"label": self._truth(batch)[:, 0], "answer": outputs[:, 0]}

    def baseline(self, outcomes):
        label = outcomes["label"]
        return Baseline("the mean redness", float(np.abs(label - label.mean()).mean()))

    @staticmethod
    def _truth(batch):
        return batch["pixels"][:, 0].mean(dim=(1, 2))[:, None]
