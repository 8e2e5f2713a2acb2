"""Initial weights (model.weights) copied into a network: tensors of equal name and shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from contracts import storage
from contracts.artifacts import InitialWeights
from contracts.artifacts.training import first_names
from contracts.config import RunConfig
from contracts.errors import DataError, ModelError
from trainer.weights.source import WeightSource, find_source
from trainer.weights.tensors import read_tensors

if TYPE_CHECKING:
    from trainer.tasks.task import Task

MIN_MATCHED_FRACTION = 0.5
"""Minimum fraction of the network's elements, without the head, that model.weights must match."""


@dataclass(frozen=True)
class StartWeights:
    """Initial weights of a training."""

    uri: str
    sha256: str
    """Content hash in the training's fingerprint."""
    alive: Callable[[], None] = lambda: None
    """Called while files are read, to reset the watchdog."""

    @classmethod
    def of(cls, config: RunConfig, made_from: Mapping[str, str], alive: Callable[[], None]) -> StartWeights | None:
        """Return the weights that the launcher resolved; None: random weights."""
        return cls(config.model.weights, made_from["weights"], alive) if config.model.weights else None


def start_from(
    network: nn.Module, start: StartWeights, task: Task, alive: Callable[[], object] = lambda: None
) -> InitialWeights:
    """Load initial weights into an unsharded network and return a report.

    Raises:
        ModelError: They cannot be read, belong to other inputs, or too few match.
        DataError: They have changed since training started, or a checkpoint is damaged.
    """
    source = find_source(start.uri)
    if source.sha256(alive) != start.sha256:
        raise DataError(
            f"model.weights {storage.display(start.uri)} has changed since this training was started",
            allowed="the same content for all attempts",
            todo="run the command again: it is another training then",
        )
    task.check_weights(source)
    return take_tensors(network, read_tensors(source, network, alive), task, source, sha256=start.sha256)


@torch.no_grad()
def take_tensors(
    network: nn.Module, tensors: Mapping[str, torch.Tensor], task: Task, source: WeightSource, *, sha256: str
) -> InitialWeights:
    """Copy tensors of equal name and shape (a no-op for networks on the meta device).

    The head stays random unless the source has the same classes in the same order. A task without classes has no head.

    Raises:
        ModelError: Less than half of the elements outside of the head match.
    """
    state = network.state_dict()
    head = head_tensors(state, head_width(task))
    fresh_head = head if source.classes != tuple(task.classes) else []
    copied = [
        name
        for name, tensor in state.items()
        if name in tensors and tensors[name].shape == tensor.shape and name not in fresh_head
    ]
    for name in copied:
        state[name].copy_(tensors[name])
    # Tied tensors are copied if one of their names is.
    named = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    identities = {name: id(tensor) for name, tensor in named}
    copied_identities = {identities[name] for name in copied if name in identities}
    elements = {name: tensor.numel() for name, tensor in state.items() if name not in head}
    random = [name for name in elements if name not in copied and identities.get(name) not in copied_identities]
    report = InitialWeights(
        source=source.uri,
        kind=source.kind,
        sha256=sha256,
        matched_fraction=1 - sum(elements[name] for name in random) / max(1, sum(elements.values())),
        taken=len(copied),
        missing=[name for name in random if name not in tensors],
        unexpected=sorted(name for name in tensors if name not in state),
        other_shape=[name for name in random if name in tensors],
        head=head,
        head_taken=bool(head) and set(head) <= set(copied),
    )
    if report.matched_fraction < MIN_MATCHED_FRACTION:
        raise _mismatch(report, network, source)
    return report


def head_width(task: Task) -> int:
    """Return the width of the head from the first output's shape; 0 without classes or a fixed size."""
    sizes = [size for size in next(iter(task.signature.outputs.values())).shape if isinstance(size, int)]
    num_classes = len(task.classes)
    # The class dimension if there is one, else the first fixed size (1 of a mask [batch, 1, H, W]).
    return num_classes if num_classes in sizes else sizes[0] if num_classes and sizes else 0


def head_tensors(state: Mapping[str, torch.Tensor], width: int) -> list[str]:
    """Return the tensors of the head: those of the last module whose first dimension is `width`."""
    names = [name for name, tensor in state.items() if width and tensor.ndim and len(tensor) == width]
    module = names[-1].rpartition(".")[0] if names else ""
    return [name for name in names if name.rpartition(".")[0] == module]


def _mismatch(report: InitialWeights, network: nn.Module, source: WeightSource) -> ModelError:
    parts = [
        f"{len(names)} {word} ({first_names(names)})"
        for word, names in (
            ("missing", report.missing),
            ("of another shape", report.other_shape),
            ("unexpected", report.unexpected),
        )
        if names
    ]
    return ModelError(
        f"model.weights {storage.display(report.source)} has {report.matched_fraction:.2f} of the network's elements, "
        f"its head left out: {'; '.join(parts)}",
        allowed=f"at least {MIN_MATCHED_FRACTION} of them",
        todo=f"{_advise(network, source)}, or name other weights",
    )


def _advise(network: nn.Module, source: WeightSource) -> str:
    """Return what to set, from comparing the source's network with the configuration."""
    if source.manifest is not None:
        model = source.manifest.model
        return f"set model.architecture={model['architecture']} and model.arguments={model['arguments']}"
    config = getattr(network, "config", None)
    if source.config is None or config is None:
        return "correct model.architecture or model.arguments"
    if (kind := source.config.get("model_type")) != config.model_type:
        return f"set model.architecture={kind}, whose weights they are"
    return "leave model.arguments out: those of the weights' config.json are taken"
