"""Losses of several labels: the mean over classes of binary losses, for each sample; or a function of the user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch.nn import functional

from contracts.artifacts import ShardManifest
from contracts.errors import ConfigError
from trainer.model.user_code import load_callable
from trainer.tasks.classes.losses import FOCAL_GAMMA, PerSample, call_own, weights_by_name


def make_loss(name: str, *, smoothing: float, weights: torch.Tensor | None) -> PerSample:
    """Return the loss that task.arguments.loss names: logits and labels, both [B, classes] float32, to losses [B].

    Args:
        name: bce, focal or module:callable.
        smoothing: Share of each target that is split between yes and no; bce alone knows it.
        weights: [classes] float32 factor of the loss of what is of a class; None: 1.

    Raises:
        ConfigError: The name is none of these, the function cannot be imported, or it is given weights.
    """
    if name == "bce":
        return partial(_bce, smoothing=smoothing, weights=weights)
    if name == "focal":
        return partial(_focal, weights=weights)
    if ":" not in name:
        raise ConfigError(
            f"task.arguments.loss is {name!r}",
            allowed="bce, focal, or module:callable that maps logits and labels [B, classes] to losses [B]",
            todo="choose one of them",
        )
    if weights is not None:
        raise ConfigError(
            f"task.arguments.class_weights is set, and task.arguments.loss is {name}",
            allowed="class_weights of the losses bce and focal: another one weighs classes itself",
            todo="unset task.arguments.class_weights",
        )
    own: PerSample = load_callable("task.arguments.loss", name, ConfigError)
    return partial(call_own, own=own, name=name)


def positive_weights(
    given: str | Mapping[str, float], classes: Sequence[str], shards: ShardManifest
) -> torch.Tensor | None:
    """Return the factor of the loss of what is of each class, [classes] float32; None: all are 1.

    Args:
        given: Empty; `balanced`: samples outside of the class over samples of it, in the training split; or factors by
            class name, 1 where a class is not named.
        classes: Names of the classes.
        shards: The shards' manifest.

    Raises:
        ConfigError: A name is no class, or a factor is not above 0.
    """
    if given != "balanced":
        return weights_by_name(given, classes)
    train = shards.splits["train"]
    positives = torch.tensor(train.samples_by_class, dtype=torch.float64)
    others = train.samples - positives
    # A class that all samples have, or none, has nothing to be balanced with.
    return torch.where((positives > 0) & (others > 0), others / positives, 1.0).float()


def _bce(logits: torch.Tensor, labels: torch.Tensor, *, smoothing: float, weights: torch.Tensor | None) -> torch.Tensor:
    # Two classes for each label, yes and no (Szegedy et al., arXiv 1512.00567).
    targets = labels * (1 - smoothing) + smoothing / 2 if smoothing else labels
    on_device = None if weights is None else weights.to(logits.device, non_blocking=True)
    losses = functional.binary_cross_entropy_with_logits(logits, targets, pos_weight=on_device, reduction="none")
    return losses.mean(dim=1)


def _focal(logits: torch.Tensor, labels: torch.Tensor, *, weights: torch.Tensor | None) -> torch.Tensor:
    losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    # exp(-loss) is the probability of what is right.
    losses = (1 - torch.exp(-losses)) ** FOCAL_GAMMA * losses
    if weights is not None:
        losses = torch.where(labels > 0.5, weights.to(logits.device, non_blocking=True), 1.0) * losses
    return losses.mean(dim=1)
