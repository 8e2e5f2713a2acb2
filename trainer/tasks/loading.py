"""The task of a configuration: class, instance, and errors of own code that name member, file and line."""

from __future__ import annotations

import importlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import torch

from contracts.artifacts import ShardManifest
from contracts.artifacts.signature import Signature
from contracts.config import FieldKind, RunConfig
from contracts.errors import ConfigError, ModelError, UserError
from contracts.own_code import code_folder
from trainer.model.user_code import load_callable
from trainer.report.gauges import is_allocation_error
from trainer.tasks.shard_checks import check_fields
from trainer.tasks.task import Task, TaskContext

_OF_MACHINE = (UserError, MemoryError, torch.OutOfMemoryError, torch.distributed.DistBackendError)
_UNIT = re.compile(r"(?!samples$)[a-z][a-z0-9_]{0,31}")
# Module and class of built-in tasks (contracts/config, TASKS).
_CLASSES = {
    "image_classification": ("image", "ImageClassification"),
    "image_multilabel": ("multilabel", "ImageMultilabel"),
    "text_classification": ("text", "TextClassification"),
}


def load_task(config: RunConfig, shards: ShardManifest, shards_uri: str = "") -> Task:
    """Return the task of a configuration, made for shards; `shards_uri` is empty before they are written.

    Raises:
        ConfigError: Its class cannot be imported or made, or an attribute has the wrong type.
        DataError: The shards lack a field that it needs, or have it in another kind.
    """
    name, arguments = config.task.name, config.task.arguments
    task_class = _find_class(config)
    try:
        task = task_class(TaskContext(config, shards, shards_uri), **arguments)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # own code may raise anything
        raise ConfigError(
            f"task {name} with task.arguments {arguments} cannot be made: {type(error).__name__}: {error}",
            allowed="arguments that its class takes, besides the context",
            todo="correct task.arguments, or the class",
        ) from error
    _check_attributes(task, config)
    check_fields(task.fields, shards, name=name)
    return task


def _find_class(config: RunConfig) -> Callable[..., Task]:
    name = config.task.name
    if config.task.is_own:
        task_class: object = load_callable("task.name", name, ConfigError)
    else:
        module, class_name = _CLASSES[name]
        task_class = getattr(importlib.import_module(f"trainer.tasks.{module}"), class_name)
    if not inspect.isclass(task_class) or not issubclass(task_class, Task):
        raise ConfigError(
            f"task.name {name!r} is no class that inherits from Task",
            allowed="a class that inherits from trainer.tasks.task.Task (docs/tasks.md)",
            todo="write `class ...(Task)`, or name such a class",
        )
    if inspect.isabstract(task_class):
        missing = ", ".join(sorted(task_class.__abstractmethods__))
        raise ConfigError(
            f"task.name {name!r}: class {task_class.__name__} has no {missing}",
            allowed="a class with all abstract methods of trainer.tasks.task.Task (docs/tasks.md)",
            todo=f"write {missing}",
        )
    return task_class


def _check_attributes(task: Task, config: RunConfig) -> None:
    """Compare the types of a task's attributes with the interface.

    Raises:
        ConfigError: An attribute is missing or of another type, or only one of `unit` and `count_units` is defined.
    """
    kinds = get_args(FieldKind)
    expected_types = {"fields": Mapping, "signature": Signature, "headline": str}
    for attribute, expected in expected_types.items():
        with calling(config, attribute, allowed=f"a {expected.__name__}"):
            value = getattr(task, attribute, None)
        if not isinstance(value, expected):
            allowed = f"a {expected.__name__}, set in the class or in __init__"
            raise task_error(config, attribute, f"is a {type(value).__name__}", allowed=allowed)
    if not all(isinstance(name, str) and kind in kinds for name, kind in task.fields.items()):
        allowed = f"a dictionary of kinds by name: {', '.join(kinds)}"
        raise task_error(config, "fields", f"is {dict(task.fields)}", allowed=allowed)
    counts_units = type(task).count_units is not Task.count_units
    if bool(task.unit) != counts_units or (task.unit and not _UNIT.fullmatch(task.unit)):
        raise task_error(
            config,
            "unit",
            f"is {task.unit!r}, and count_units is {'' if counts_units else 'not '}written",
            allowed="both or neither; a name of small letters, digits and _, other than samples",
        )


# --- names and errors -------------------------------------------------------------------------------------------------


def network_name(config: RunConfig, *, arguments: bool = False) -> str:
    """Return the network's name in messages, with model.arguments if the message is about them."""
    if config.task.is_own:
        return f"the network of task {config.task.name}"
    suffix = f" with model.arguments {config.model.arguments}" if arguments else ""
    return f"{config.model.architecture}{suffix}"


def is_own_network(config: RunConfig) -> bool:
    """Whether own code builds the network, and may hold tensors outside of it."""
    return config.task.is_own or ":" in config.model.architecture


def task_error(config: RunConfig, member: str, fault: str, *, allowed: str) -> ConfigError:
    """Return the error of a task's member; `fault` follows its name in the message."""
    return ConfigError(
        f"task {config.task.name}: {member} {fault}", allowed=allowed, todo=f"correct {member} (docs/tasks.md)"
    )


def describe_failure(error: Exception) -> str:
    """Return an exception of own code as text, with the last line of own code that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    raised = (_own_frames(error) or frames)[-1]
    return f"{type(error).__name__}: {error} ({_own_path(raised.filename)}, line {raised.lineno})"


def is_of_machine(error: Exception) -> bool:
    """Whether an error is a user error, or comes from the machine or a peer, not from own code."""
    return isinstance(error, _OF_MACHINE) or is_allocation_error(error)


@contextmanager
def calling(config: RunConfig, member: str, *, allowed: str = "a member that takes every batch") -> Iterator[None]:
    """Convert exceptions of an own task's member, called in this context, to errors that name it.

    Raises:
        ConfigError: The member failed.
    """
    try:
        yield
    except Exception as error:  # own code may raise anything
        if not config.task.is_own or is_of_machine(error):
            raise
        raise task_error(config, member, f"failed: {describe_failure(error)}", allowed=allowed) from error


@contextmanager
def running_network(config: RunConfig) -> Iterator[None]:
    """Convert exceptions of an own network, run in this context, to errors with file and line.

    Raises:
        ModelError: The network failed, in a call from a file of own code.
    """
    try:
        yield
    except Exception as error:  # own code may raise anything
        if not is_own_network(config) or is_of_machine(error):
            raise
        # gloo reports lost peers by a RuntimeError.
        if not _own_frames(error) or "gloo" in str(error).lower():
            raise
        raise ModelError(
            f"{network_name(config)} failed on a batch: {describe_failure(error)}",
            allowed="a network that takes every batch",
            todo="correct the network",
        ) from error


def _own_frames(error: Exception) -> list[traceback.FrameSummary]:
    """Return the frames of an error that are in files of own code, the innermost last."""
    folder = code_folder()
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if folder is not None and Path(frame.filename).is_relative_to(folder)]


def _own_path(filename: str) -> str:
    """Return a path relative to this process's copy of code.path; other paths are unchanged."""
    folder = code_folder()
    path = Path(filename)
    return str(path.relative_to(folder)) if folder is not None and path.is_relative_to(folder) else filename
