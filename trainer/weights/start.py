"""Initial weights copied into a network: tensors by name and shape, rows of a head by their meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from contracts import storage
from contracts.artifacts import InitialWeights
from contracts.artifacts.training import first_names
from contracts.config import RunConfig
from contracts.errors import DataError, ModelError
from trainer.tasks.protocol import Task
from trainer.weights.source import WeightSource, find_source
from trainer.weights.tensors import other_names, plain_name, read_tensors

MIN_MATCHED_FRACTION = 0.5
"""Least share of the network's elements, its classifier's head left out, that weights to start from must have."""


@dataclass(frozen=True)
class StartWeights:
    """Weights that a training was told to start from."""

    uri: str
    sha256: str
    """Hash of the content that the training is named by."""
    min_matched_fraction: float
    alive: Callable[[], None] = lambda: None
    """Called while files are read: large ones take longer than any limit."""

    @classmethod
    def of(cls, config: RunConfig, made_from: Mapping[str, str], alive: Callable[[], None]) -> StartWeights | None:
        """Return the weights of a training whose launcher has found them; None: they are random.

        Args:
            config: Its configuration.
            made_from: The hashes that it is named by.
            alive: As above.
        """
        model = config.model
        if not model.weights:
            return None
        return cls(model.weights, made_from["weights"], MIN_MATCHED_FRACTION, alive)


class Head(Protocol):
    """The part of a network whose rows have a meaning, so that equal shape does not say that weights fit."""

    @property
    def tensors(self) -> Mapping[str, int]:
        """Names of its tensors, with the dimension of the rows."""

    def take_rows(self, name: str, target: torch.Tensor, given: torch.Tensor, theirs: Sequence[str]) -> list[str]:
        """Copy the rows that mean the same in both; return their names.

        Args:
            name: Of the tensor.
            target: A tensor of the network's head; other rows stay as they were drawn.
            given: The tensor of that name in the source.
            theirs: Meaning of the source's rows.
        """


def find_head(task: Task) -> Head | None:
    """Return the head of a task's network; None: it has none, and all that fits by name and shape is taken."""
    head: Callable[[], Head] | None = getattr(task, "head", None)
    return None if head is None else head()


def check_inputs(task: Task, source: WeightSource) -> None:
    """Have a task refuse weights that were trained with other inputs, such as another tokenizer.

    Raises:
        ModelError: The weights are those of other inputs.
    """
    check: Callable[[WeightSource], None] | None = getattr(task, "check_inputs", None)
    if check is not None:
        check(source)


def start_from(
    network: nn.Module,
    wanted: StartWeights,
    head: Head | None,
    alive: Callable[[], object] = lambda: None,
    check: Callable[[WeightSource], None] = lambda source: None,
) -> InitialWeights:
    """Give a network the weights that it starts from, and return what was taken.

    Args:
        network: With random weights, whole, on any device.
        wanted: Where they are.
        head: Its head, whose rows are taken by their meaning.
        alive: Called while files are read.
        check: Refuses weights of other inputs.

    Raises:
        ModelError: They cannot be read, are those of other inputs, or too few of them fit.
        DataError: They have changed since training was planned, or a checkpoint is damaged.
    """
    source = find_source(wanted.uri)
    sha256 = source.sha256(alive)
    if sha256 != wanted.sha256:
        raise DataError(
            f"model.weights {storage.display(wanted.uri)} has changed since this training was started",
            allowed="the same content for all attempts",
            todo="run the command again: it is another training then",
        )
    check(source)
    given = read_tensors(source, network, alive)
    found = take_tensors(network, given, head, theirs=source.classes)
    report = InitialWeights(source=source.uri, kind=source.kind, sha256=sha256, **found)  # type: ignore[arg-type]
    require_match(report, wanted.min_matched_fraction, network, source)
    return report


@torch.no_grad()
def take_tensors(
    network: nn.Module,
    given: Mapping[str, torch.Tensor],
    head: Head | None,
    *,
    theirs: Sequence[str] | None,
    looks: bool = False,
) -> dict[str, object]:
    """Copy the tensors that fit by name and shape; return the fields of InitialWeights that tell of it.

    Args:
        network: The network.
        given: Tensors by name.
        head: The network's head.
        theirs: Meaning of the source's rows of the head; None: unknown, and the head is drawn anew.
        looks: Only tell: nothing is copied.
    """
    find = _name_finder(given, network)
    head_tensors = () if head is None else head.tensors
    state = network.state_dict()
    used: set[str] = set()
    taken: list[str] = []
    missing: list[str] = []
    other_shape: list[str] = []
    classes_taken: list[str] = []
    for name, tensor in state.items():
        found = find(name)
        if found is not None:
            used.add(found)
        if head is not None and name in head_tensors:
            if found is not None and theirs is not None:
                rows = head.take_rows(name, tensor, given[found], theirs)
                classes_taken = rows or classes_taken
        elif found is None:
            missing.append(name)
        elif given[found].shape != tensor.shape:
            other_shape.append(name)
        else:
            if not looks:
                tensor.copy_(given[found])
            taken.append(name)
    # A tensor under two names has come when it came under one.
    holders = {name: id(tensor) for name, tensor in _named_tensors(network)}
    came = {holders.get(name) for name in taken}
    missing = [name for name in missing if holders.get(name) not in came]
    elements = {name: state[name].numel() for name in state if name not in head_tensors}
    total = sum(elements.values())
    random = {name: elements[name] for name in [*missing, *other_shape]}
    return {
        "matched_fraction": 1.0 if not total else 1.0 - sum(random.values()) / total,
        "taken": len(taken),
        "missing": missing,
        "unexpected": sorted(name for name in given if name not in used),
        "other_shape": other_shape,
        "head": sorted(head_tensors),
        "classes_taken": classes_taken,
    }


def _name_finder(given: Mapping[str, object], network: nn.Module) -> Callable[[str], str | None]:
    """Return what finds the name under which a source has a tensor of the network; None: under none.

    The network's own name comes first, then those that files of transformers have, then names without what wrappers put
    before them, where that leaves no doubt.
    """
    plain: dict[str, list[str]] = {}
    for name in given:
        plain.setdefault(plain_name(name), []).append(name)
    others = other_names(network)
    own = set(network.state_dict())

    def find(name: str) -> str | None:
        if name in given:
            return name
        for key in (*others.get(name, ()), plain_name(name)):
            found = [one for one in plain.get(key, ()) if one == key or one not in own]
            if len(found) == 1:
                return found[0]
        return None

    return find


def _named_tensors(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from network.named_parameters(remove_duplicate=False)
    yield from network.named_buffers(remove_duplicate=False)


def require_match(report: InitialWeights, least: float, network: nn.Module, source: WeightSource) -> None:
    """Refuse weights that are those of another network.

    Raises:
        ModelError: Fewer elements than `least` match.
    """
    if report.matched_fraction >= least and (report.taken or not least):
        return
    parts = [
        f"{len(names)} {word} ({first_names(names)})"
        for word, names in (
            ("missing", report.missing),
            ("of another shape", report.other_shape),
            ("unexpected", report.unexpected),
        )
        if names
    ]
    raise ModelError(
        f"model.weights {storage.display(report.source)} has {report.matched_fraction:.2f} of the network's elements, "
        f"its head left out: {'; '.join(parts)}",
        allowed=f"at least {least} of them",
        todo=advise(network, source),
    )


def advise(network: nn.Module, source: WeightSource) -> str:
    """Return what may be wrong with the configuration, by what the source says of its network."""
    if source.manifest is not None:
        model = source.manifest.model
        return (
            f"set model.architecture={model['architecture']} and model.arguments={model['arguments']}, or other weights"
        )
    config = getattr(network, "config", None)
    if source.config is None or config is None:
        return "correct model.architecture or model.arguments, or name other weights"
    kind = source.config.get("model_type")
    if kind != config.model_type:
        return f"set model.architecture={kind}, whose weights they are, or name other weights"
    ours = config.to_dict()
    skipped = ("transformers_version", "architectures", "id2label", "label2id", "dtype", "torch_dtype", "_name_or_path")
    different = {
        name: value
        for name, value in source.config.items()
        if name in ours and name not in skipped and ours[name] != value
    }
    return f"set model.arguments={different}" if different else "name other weights"
