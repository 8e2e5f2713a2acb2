"""Initial weights copied into a network: tensors by name and shape, rows of a head by their meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from contracts import storage
from contracts.artifacts import InitialWeights
from contracts.artifacts.training import first_names
from contracts.config import RunConfig
from contracts.errors import DataError, ModelError
from trainer.tasks.protocol import Task
from trainer.weights.source import WeightSource, find_source
from trainer.weights.tensors import read_tensors

if TYPE_CHECKING:
    from trainer.tasks.classes.head import Head

MIN_MATCHED_FRACTION = 0.5
"""Least share of the network's elements, its classifier's head left out, that weights to start from must have."""


@dataclass(frozen=True)
class StartWeights:
    """Weights that a training was told to start from."""

    uri: str
    sha256: str
    """Hash of the content that the training is named by."""
    alive: Callable[[], None] = lambda: None
    """Called while files are read: large ones take longer than any limit."""

    @classmethod
    def of(cls, config: RunConfig, made_from: Mapping[str, str], alive: Callable[[], None]) -> StartWeights | None:
        """Return the weights of a training whose launcher has found them; None: they are random."""
        return cls(config.model.weights, made_from["weights"], alive) if config.model.weights else None


def find_head(task: Task) -> Head | None:
    """Return the head of a task's network; None: it has none, and all that fits by name and shape is taken."""
    head: Callable[[], Head] | None = getattr(task, "head", None)
    return None if head is None else head()


def check_inputs(task: Task, source: WeightSource) -> None:
    """Have a task refuse weights that were trained with other inputs, such as another tokenizer.

    Raises:
        ModelError: They were.
    """
    check: Callable[[WeightSource], None] | None = getattr(task, "check_inputs", None)
    if check is not None:
        check(source)


def start_from(
    network: nn.Module,
    start: StartWeights,
    head: Head | None,
    alive: Callable[[], object] = lambda: None,
    check: Callable[[WeightSource], None] = lambda source: None,
) -> InitialWeights:
    """Give a network the weights that it starts from, and return what was taken.

    Args:
        network: With random weights, whole, on any device.
        start: The weights.
        head: Of the network; its rows are taken by their meaning.
        alive: Called while files are read.
        check: Refuses weights of other inputs.

    Raises:
        ModelError: They cannot be read, are those of other inputs, or too few of them fit.
        DataError: They have changed since training was planned, or a checkpoint is damaged.
    """
    source = find_source(start.uri)
    if source.sha256(alive) != start.sha256:
        raise DataError(
            f"model.weights {storage.display(start.uri)} has changed since this training was started",
            allowed="the same content for all attempts",
            todo="run the command again: it is another training then",
        )
    check(source)
    return take_tensors(network, read_tensors(source, network, alive), head, source, sha256=start.sha256)


@torch.no_grad()
def take_tensors(
    network: nn.Module, tensors: Mapping[str, torch.Tensor], head: Head | None, source: WeightSource, *, sha256: str
) -> InitialWeights:
    """Copy the tensors that fit by name and shape; on the meta device nothing is copied.

    The head stays as it was drawn where the classes of the source are not known.

    Raises:
        ModelError: Less than half of the network's elements match.
    """
    head_tensors = {} if head is None else head.tensors
    state = network.state_dict()
    taken: list[str] = []
    classes_taken: list[str] = []
    for name, tensor in state.items():
        given = tensors.get(name)
        if given is None:
            continue
        if head is not None and name in head_tensors:
            if source.classes is not None:
                classes_taken = head.take_rows(name, tensor, given, source.classes) or classes_taken
        elif given.shape == tensor.shape:
            tensor.copy_(given)
            taken.append(name)
    # A tensor under two names has come when it came under one.
    named = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    identities = {name: id(tensor) for name, tensor in named}
    came_by_name, came = set(taken), {identities[name] for name in taken if name in identities}
    elements = {name: tensor.numel() for name, tensor in state.items() if name not in head_tensors}
    random = [name for name in elements if name not in came_by_name and identities.get(name) not in came]
    report = InitialWeights(
        source=source.uri,
        kind=source.kind,
        sha256=sha256,
        matched_fraction=1 - sum(elements[name] for name in random) / max(1, sum(elements.values())),
        taken=len(taken),
        missing=[name for name in random if name not in tensors],
        unexpected=sorted(name for name in tensors if name not in state),
        other_shape=[name for name in random if name in tensors],
        head=sorted(head_tensors),
        classes_taken=classes_taken,
    )
    if report.matched_fraction < MIN_MATCHED_FRACTION:
        raise _misfit(report, network, source)
    return report


def _misfit(report: InitialWeights, network: nn.Module, source: WeightSource) -> ModelError:
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
        todo=_advise(network, source),
    )


def _advise(network: nn.Module, source: WeightSource) -> str:
    """Return what may be wrong with the configuration, by what the source says of its network."""
    if source.manifest is not None:
        model = source.manifest.model
        return (
            f"set model.architecture={model['architecture']} and model.arguments={model['arguments']}, or other weights"
        )
    config = getattr(network, "config", None)
    if source.config is None or config is None:
        return "correct model.architecture or model.arguments, or name other weights"
    if (kind := source.config.get("model_type")) != config.model_type:
        return f"set model.architecture={kind}, whose weights they are, or name other weights"
    ours: Mapping[str, object] = config.to_dict()
    skipped: Sequence[str] = ("transformers_version", "architectures", "id2label", "label2id", "dtype", "torch_dtype")
    different = {
        name: value
        for name, value in source.config.items()
        if name in ours and name not in skipped and ours[name] != value
    }
    return f"set model.arguments={different}" if different else "name other weights"
