"""The task that the configuration names, made and held against the interface (trainer/tasks/protocol.py)."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import torch

from contracts.artifacts import ShardManifest
from contracts.artifacts.signature import Signature
from contracts.config import FieldKind, RunConfig
from contracts.errors import ConfigError, ModelError, UserError
from contracts.own_code import code_folder
from trainer.model.user_code import load_callable
from trainer.report.gauges import is_allocation_error
from trainer.tasks.needs import check_fields
from trainer.tasks.protocol import Task, TaskContext

_METHODS = ("build_model", "prepare", "collate", "example", "to_model", "loss", "metrics", "update")
_ATTRIBUTES = ("fields", "signature", "headline")
_MISSING = object()
_OF_MACHINE = (UserError, MemoryError, torch.OutOfMemoryError, torch.distributed.DistBackendError)
# Module and class of the tool's tasks (contracts/config/task.py, TASKS).
_CLASSES = {
    "image_classification": ("image_classification.task", "ImageClassification"),
    "image_multilabel": ("image_multilabel.task", "ImageMultilabel"),
    "text_classification": ("text_classification.task", "TextClassification"),
}


def load_task(config: RunConfig, shards: ShardManifest, shards_uri: str = "") -> Task:
    """Return the task of a configuration, made for the shards.

    Args:
        config: The configuration.
        shards: Their manifest.
        shards_uri: Their folder; empty: they are not written yet.

    Raises:
        ConfigError: Its class cannot be imported or made, or lacks a member.
        DataError: The shards lack a field that it needs, or have it in another kind.
    """
    task = _make(_find_class(config), TaskContext(config, shards, shards_uri))
    check_fields(task.fields, shards, name=config.task.name)
    return task


def check_members(found: object, name: str) -> None:
    """Refuse what lacks a member of a task that can be seen before it is made.

    Args:
        found: What task.name names.
        name: task.name.

    Raises:
        ConfigError: It is no class, or lacks a method.
    """
    if not inspect.isclass(found):
        raise ConfigError(
            f"task.name {name!r} is a {type(found).__name__}",
            allowed="a class with the members of a task (docs/tasks.md)",
            todo="name a class",
        )
    if missing := [method for method in _METHODS if not callable(getattr(found, method, None))]:
        raise ConfigError(
            f"task.name {name!r}: class {found.__name__} lacks {', '.join(missing)}",
            allowed=f"a class with the methods {', '.join(_METHODS)} (docs/tasks.md)",
            todo=f"write {missing[0]}",
        )


def network_name(config: RunConfig, *, arguments: bool = False) -> str:
    """Return how messages call the network, with model.arguments where they have to do with it."""
    if config.task.is_own:
        return f"the network of task {config.task.name}"
    given = f" with model.arguments {config.model.arguments}" if arguments else ""
    return f"{config.model.architecture}{given}"


def is_own_network(config: RunConfig) -> bool:
    """Whether the network is made by own code, which may keep tensors outside of it."""
    return config.task.is_own or ":" in config.model.architecture


def task_error(config: RunConfig, member: str, found: str, *, allowed: str) -> ConfigError:
    """Return the error of a member of the task that does not what it should.

    Args:
        config: The configuration.
        member: The member.
        found: What it did, in words that follow its name.
        allowed: What it may do.
    """
    return ConfigError(
        f"task {config.task.name}: {member} {found}", allowed=allowed, todo=f"correct {member} (docs/tasks.md)"
    )


def describe_failure(error: Exception) -> str:
    """Return what a user's code raised, and the line of it that did, or that called what did."""
    frames = traceback.extract_tb(error.__traceback__)
    raised = (_own_frames(error) or frames)[-1]
    return f"{type(error).__name__}: {error} ({_own_path(raised.filename)}, line {raised.lineno})"


def is_of_machine(error: Exception) -> bool:
    """Whether an error is one of the machine or a peer, or is told already, and not a fault of own code."""
    return isinstance(error, _OF_MACHINE) or is_allocation_error(error)


@contextmanager
def calling(config: RunConfig, member: str, *, allowed: str = "a member that takes every batch") -> Iterator[None]:
    """Say where own code failed that is called inside; what the machine or a peer failed at stays as it is.

    Args:
        config: The configuration.
        member: The member of the task that is called.
        allowed: What it may do.

    Raises:
        ConfigError: It failed.
    """
    try:
        yield
    except Exception as error:  # the user's code: whatever it raises is theirs to mend
        if not config.task.is_own or is_of_machine(error):
            raise
        raise task_error(config, member, f"failed: {describe_failure(error)}", allowed=allowed) from error


@contextmanager
def running_network(config: RunConfig) -> Iterator[None]:
    """Say where an own network failed that is run inside; what the machine or a peer failed at stays as it is.

    Raises:
        ModelError: It failed, in a call from a file of own code.
    """
    try:
        yield
    except Exception as error:  # the user's code: whatever it raises is theirs to mend
        if not is_own_network(config) or is_of_machine(error):
            raise
        # gloo tells of lost peers by a RuntimeError.
        if not _own_frames(error) or "gloo" in str(error).lower():
            raise
        raise ModelError(
            f"{network_name(config)} failed on a batch: {describe_failure(error)}",
            allowed="a network that takes every batch",
            todo="correct the network",
        ) from error


def _own_frames(error: Exception) -> list[traceback.FrameSummary]:
    """Return the calls that led to an error from files of own code, the last one last."""
    folder = code_folder()
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if folder is not None and Path(frame.filename).is_relative_to(folder)]


def _own_path(filename: str) -> str:
    """Return the path of a file below code.path, of which a process has a copy elsewhere; another one's whole."""
    folder = code_folder()
    path = Path(filename)
    return str(path.relative_to(folder)) if folder is not None and path.is_relative_to(folder) else filename


def _find_class(config: RunConfig) -> Any:
    if config.task.is_own:
        found = load_callable("task.name", config.task.name, ConfigError)
        check_members(found, config.task.name)
        return found
    module, name = _CLASSES[config.task.name]
    return getattr(importlib.import_module(f"trainer.tasks.{module}"), name)


def _make(kind: Any, context: TaskContext) -> Task:
    config = context.config
    name, arguments = config.task.name, config.task.arguments
    try:
        task = kind(context, **arguments)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # the user's code: whatever it raises is theirs to mend
        raise ConfigError(
            f"task {name} with task.arguments {arguments} cannot be made: {type(error).__name__}: {error}",
            allowed="arguments that its class takes, besides the context",
            todo="correct task.arguments, or the class",
        ) from error
    values = {attribute: _get(task, attribute, config) for attribute in _ATTRIBUTES}
    if missing := [attribute for attribute, value in values.items() if value is _MISSING]:
        raise ConfigError(
            f"task.name {name!r}: a {type(task).__name__} lacks {', '.join(missing)}",
            allowed=f"an object with the attributes {', '.join(_ATTRIBUTES)} (docs/tasks.md)",
            todo=f"set {missing[0]} in the class or in __init__",
        )
    fields, kinds = values["fields"], get_args(FieldKind)
    is_mapping = isinstance(fields, Mapping)
    if not is_mapping or not all(isinstance(field, str) and kind in kinds for field, kind in fields.items()):
        raise task_error(
            config,
            "fields",
            f"is {dict(fields)}" if is_mapping else f"is a {type(fields).__name__}",
            allowed=f"a dictionary of kinds by name: {', '.join(kinds)}",
        )
    for attribute, wanted in (("signature", Signature), ("headline", str)):
        if not isinstance(values[attribute], wanted):
            found = f"is a {type(values[attribute]).__name__}"
            raise task_error(config, attribute, found, allowed=f"a {wanted.__name__}")
    checked: Task = task
    return checked


def _get(task: object, attribute: str, config: RunConfig) -> Any:
    """Return an attribute, `_MISSING` where there is none; a property of own code may raise anything."""
    with calling(config, attribute, allowed="a value"):
        return getattr(task, attribute, _MISSING)
