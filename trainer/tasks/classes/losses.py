"""Losses of classifications, summed over a batch: cross-entropy, focal loss, or a function of the user's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch.nn import functional

from contracts.artifacts import ShardManifest
from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.model.user_code import load_callable
from trainer.tasks.load import describe_failure, is_of_machine

PerSample = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps logits [B, classes] float32 and labels [B] int64 to losses [B] float32."""

# Of the original paper (Lin et al., arXiv 1708.02002).
FOCAL_GAMMA = 2.0


def make_loss(name: str, *, smoothing: float, weights: torch.Tensor | None, gamma: float = FOCAL_GAMMA) -> PerSample:
    """Return the loss that task.arguments.loss names.

    Args:
        name: cross_entropy, focal or module:callable.
        smoothing: Share of the target that is spread evenly over all classes (Szegedy et al., arXiv 1512.00567);
            cross_entropy alone knows it.
        weights: [classes] float32 factor of the loss of each class; None: 1.
        gamma: Exponent of the focal loss.

    Raises:
        ConfigError: The name is none of these, or the function cannot be imported.
    """
    if name == "cross_entropy":
        return partial(_cross_entropy, smoothing=smoothing, weights=weights)
    if name == "focal":
        return partial(_focal, gamma=gamma, weights=weights)
    if ":" not in name:
        raise ConfigError(
            f"task.arguments.loss is {name!r}",
            allowed="cross_entropy, focal, or module:callable that maps logits and labels to losses [B]",
            todo="choose one of them",
        )
    own: PerSample = load_callable("task.arguments.loss", name, ConfigError)
    return partial(_own, own=own, name=name, weights=weights)


def class_weights(
    given: str | Mapping[str, float], classes: Sequence[str], shards: ShardManifest
) -> torch.Tensor | None:
    """Return the factor of the loss of each class, [classes] float32; None: all are 1.

    Args:
        given: Empty; `balanced`: samples / (classes * samples of the class), as scikit-learn has it, over the training
            split; or factors by class name, 1 where a class is not named.
        classes: Names of the classes.
        shards: The shards' manifest.

    Raises:
        ConfigError: A name is no class, or a factor is not above 0.
    """
    if given == "balanced":
        counts = torch.tensor(shards.splits["train"].samples_by_class, dtype=torch.float64)
        there = counts > 0
        weights = counts.sum() / (there.sum() * counts)
        # A class without samples has no loss, whatever its weight.
        return torch.where(there, weights, 1.0).float()
    return weights_by_name(given, classes)


def weights_by_name(given: str | Mapping[str, float], classes: Sequence[str]) -> torch.Tensor | None:
    """Return the factor of each class, [classes] float32; None: all are 1.

    Args:
        given: Empty, or factors by class name, 1 where a class is not named.
        classes: Names of the classes.

    Raises:
        ConfigError: It is something else, a name is no class, or a factor is not above 0.
    """
    if not given:
        return None
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"task.arguments.class_weights is {given!r}",
            allowed="balanced, or a factor above 0 by class name",
            todo="choose one of them",
        )
    if unknown := sorted(str(name) for name in given if name not in classes):
        raise ConfigError(
            f"task.arguments.class_weights names {unknown[0]!r}, which is no class",
            allowed=", ".join(list(classes)[:20]),
            todo="correct the name",
        )
    for name, factor in given.items():
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise ConfigError(
                f"task.arguments.class_weights.{name} is {factor!r}", allowed="a number above 0", todo="correct it"
            )
    return torch.tensor([float(given.get(name, 1.0)) for name in classes])


def without_class_names(config: RunConfig) -> RunConfig:
    """Return a configuration without factors by class name: for a task that is made before the classes are known."""
    arguments = config.task.arguments
    if config.task.is_own or not isinstance(arguments.get("class_weights"), Mapping):
        return config
    task = config.task.model_copy(update={"arguments": {**arguments, "class_weights": ""}})
    return config.model_copy(update={"task": task})


def _cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, *, smoothing: float, weights: torch.Tensor | None
) -> torch.Tensor:
    losses = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    return losses if weights is None else losses * weights.to(losses.device, non_blocking=True)[labels]


def _focal(logits: torch.Tensor, labels: torch.Tensor, *, gamma: float, weights: torch.Tensor | None) -> torch.Tensor:
    losses = functional.cross_entropy(logits, labels, reduction="none")
    # exp(-loss) is the probability of the label.
    losses = (1 - torch.exp(-losses)) ** gamma * losses
    return losses if weights is None else losses * weights.to(losses.device, non_blocking=True)[labels]


def call_own(logits: torch.Tensor, labels: torch.Tensor, *, own: PerSample, name: str) -> torch.Tensor:
    """Return what a loss of the user's returned, [B], having seen that it is a loss for each sample.

    Args:
        logits: [B, classes] float32.
        labels: [B, ...].
        own: The loss.
        name: task.arguments.loss.

    Raises:
        ConfigError: It is something else, or the loss fails.
    """
    try:
        losses = own(logits, labels)
    except Exception as error:  # the user's code: whatever it raises is theirs to mend
        if is_of_machine(error):
            raise
        raise ConfigError(
            f"task.arguments.loss {name} failed: {describe_failure(error)}",
            allowed="a loss that takes every batch",
            todo="correct the loss",
        ) from error
    if not isinstance(losses, torch.Tensor) or losses.shape != labels.shape[:1] or not losses.is_floating_point():
        found = f"{losses.dtype} {tuple(losses.shape)}" if isinstance(losses, torch.Tensor) else type(losses).__name__
        raise ConfigError(
            f"task.arguments.loss {name} returned {found} for labels {tuple(labels.shape)}",
            allowed="a loss for each sample: a floating-point tensor [B]",
            todo="return losses before they are averaged (reduction='none')",
        )
    return losses


def _own(
    logits: torch.Tensor, labels: torch.Tensor, *, own: PerSample, name: str, weights: torch.Tensor | None
) -> torch.Tensor:
    losses = call_own(logits, labels, own=own, name=name)
    return losses if weights is None else losses * weights.to(losses.device, non_blocking=True)[labels]
