"""Networks that section `model` names: an architecture of transformers, or `module:callable`.

Tasks say which architectures they take and what their inputs are; nothing here knows a task. Weights are random, from
torch's generator: nothing is downloaded.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import nn

from contracts.config import ModelSection
from contracts.errors import ModelError
from trainer.model.build import MISFITS, is_of_transformers
from trainer.model.user_callable import load_callable
from trainer.weights.source import MODEL_TYPE


def is_own(section: ModelSection) -> bool:
    """Whether the network is made by a function of the user's."""
    return ":" in section.architecture


def build_from_transformers(
    section: ModelSection,
    kind: Any,
    *,
    known: Collection[str],
    shown: Sequence[str],
    head: str,
    choose: Callable[[Any, dict[str, Any]], Mapping[str, Any]],
) -> nn.Module:
    """Build a network of transformers.

    Args:
        section: The model section of the configuration.
        kind: Auto class of transformers that makes it of a configuration.
        known: Architectures that it has.
        shown: Some of them, for messages.
        head: What they have in common, for messages.
        choose: Returns settings that come on top of the arguments, given the architecture's defaults and the arguments.

    Raises:
        ModelError: The architecture is unknown, or does not take these arguments.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    if section.architecture not in known:
        close = difflib.get_close_matches(section.architecture, sorted(known), n=1)
        raise ModelError(
            f"model.architecture {section.architecture!r} is unknown",
            allowed=f"a model type of transformers with {head} ({', '.join(shown)}, ... {len(known)} in all), or "
            "module:callable",
            todo=f"did you mean {close[0]}?" if close else "choose one of them",
        )
    try:
        defaults = AutoConfig.for_model(section.architecture)
        if section.arguments.get(MODEL_TYPE) == section.architecture:
            # A whole config.json, of any version of transformers.
            arguments = dict(section.arguments)
            config = type(defaults).from_dict({**arguments, **choose(defaults, arguments)})
        else:
            arguments = _check_arguments(section, defaults)
            config = AutoConfig.for_model(section.architecture, **{**arguments, **choose(defaults, arguments)})
        network: nn.Module = kind.from_config(config)
    except (*MISFITS, StrictDataclassError) as error:
        raise refused(section, error) from error
    return network


def build_from_callable(section: ModelSection, *, allowed: str, **given: object) -> nn.Module:
    """Build a network by the function that model.architecture names.

    Args:
        section: The model section of the configuration.
        allowed: What it returns, for messages.
        given: Keyword arguments besides model.arguments.

    Raises:
        ModelError: It cannot be imported, does not take these arguments, or returns something else.
    """
    builder = load_callable("model.architecture", section.architecture, ModelError)
    try:
        model = builder(**given, **section.arguments)
    except MISFITS as error:
        raise refused(section, error, builder, given) from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"{section.architecture} returned a {type(model).__name__}",
            allowed=allowed,
            todo="return the module itself",
        )
    return model


def takes_by_name(model: nn.Module, name: str) -> bool:
    """Whether a module is one of transformers' networks whose forward has a parameter of this name."""
    return is_of_transformers(model) and name in inspect.signature(type(model).forward).parameters


def refused(
    section: ModelSection,
    error: Exception,
    builder: Callable[..., object] | None = None,
    given: Collection[str] = (),
) -> ModelError:
    """Return the error of arguments that an architecture does not take.

    Args:
        section: The model section of the configuration.
        error: What was raised.
        builder: What takes the arguments, where their names can be told from it.
        given: Names of what it is given besides model.arguments.
    """
    found: list[inspect.Parameter] = []
    # What is not written in Python may have no signature.
    with suppress(TypeError, ValueError):
        found = list(inspect.signature(builder).parameters.values()) if builder is not None else []
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [one.name for one in found if one.kind in named and one.name not in given]
    todo = "correct model.arguments"
    wrong = next((name for name in section.arguments if name not in known), None)
    if known and wrong and not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in found):
        close = difflib.get_close_matches(wrong, known, n=1)
        todo = f"did you mean model.arguments.{close[0]}?" if close else f"remove model.arguments.{wrong}"
    return ModelError(
        f"{section.architecture!r} with model.arguments {section.arguments} cannot be built: {error}",
        allowed=f"model.arguments that the architecture takes: {', '.join(known)}"
        if known
        else "arguments that the architecture takes",
        todo=todo,
    )


def _check_arguments(section: ModelSection, defaults: Any) -> dict[str, Any]:
    """Refuse names that the configuration does not have: transformers would take them without a word."""
    known = sorted(name for name in defaults.to_dict() if not name.startswith("_"))
    for name in section.arguments:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise ModelError(
                f"model.arguments.{name} is no field of {section.architecture}'s configuration",
                allowed=", ".join(known),
                todo=f"did you mean {close[0]}?" if close else "remove it",
            )
    return dict(section.arguments)
