"""Networks that section `model` names: an architecture of transformers, or `module:callable`.

Tasks say which architectures they take and what their inputs are; nothing here knows a task. Weights are random, from
torch's generator: nothing is downloaded.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import nn

from contracts.config import ModelSection
from contracts.errors import ModelError
from trainer.model.build import is_of_transformers
from trainer.model.user_code import load_callable
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
    """Build a network of transformers by `kind`, an auto class, which has the architectures `known`.

    `choose` returns settings that come on top of the arguments, given the architecture's defaults and the arguments;
    `shown`, some architectures, and their `head` are for messages.

    Raises:
        ModelError: The architecture is unknown, or has no such arguments. The library raises others for their values.
    """
    from transformers import AutoConfig

    if section.architecture not in known:
        raise ModelError(
            f"model.architecture {section.architecture!r} is unknown",
            allowed=f"a model type of transformers with {head} ({', '.join(shown)}, ... {len(known)} in all), or "
            "module:callable",
            todo=_did_you_mean(section.architecture, known) or "choose one of them",
        )
    defaults = AutoConfig.for_model(section.architecture)
    arguments = dict(section.arguments)
    if arguments.get(MODEL_TYPE) == section.architecture:
        # A whole config.json, of any version of transformers.
        config = type(defaults).from_dict({**arguments, **choose(defaults, arguments)})
    else:
        _check_arguments(section, defaults)
        config = AutoConfig.for_model(section.architecture, **{**arguments, **choose(defaults, arguments)})
    network: nn.Module = kind.from_config(config)
    return network


def build_from_callable(section: ModelSection, *, allowed: str, **given: object) -> nn.Module:
    """Build a network by the function that model.architecture names, with `given` besides model.arguments.

    Raises:
        ModelError: It cannot be imported, or returns something else; it may itself raise anything.
    """
    builder = load_callable("model.architecture", section.architecture, ModelError)
    model = builder(**given, **section.arguments)
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


def _check_arguments(section: ModelSection, defaults: Any) -> None:
    """Refuse names that the configuration does not have: transformers would take them without a word."""
    known = sorted(name for name in defaults.to_dict() if not name.startswith("_"))
    for name in section.arguments:
        if name not in known:
            raise ModelError(
                f"model.arguments.{name} is no field of {section.architecture}'s configuration",
                allowed=", ".join(known),
                todo=_did_you_mean(name, known) or "remove it",
            )


def _did_you_mean(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {close[0]}?" if close else ""
