"""Networks of section `model`: an architecture of transformers, or a user function (`module:callable`).

Weights are random, drawn from torch's generator; nothing is downloaded.
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
    """Whether a user function builds the network."""
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

    `choose` maps the architecture's defaults and the arguments to settings that override the arguments. `shown`
    (example architectures) and `head` are for messages.

    Raises:
        ModelError: The architecture or an argument is unknown. transformers raises other errors for bad values.
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


def build_from_callable(section: ModelSection, *, allowed: str, **extra_arguments: object) -> nn.Module:
    """Build a network by the function that model.architecture names, passing `extra_arguments` and model.arguments.

    Raises:
        ModelError: It cannot be imported, or does not return a module. The function may raise anything.
    """
    builder = load_callable("model.architecture", section.architecture, ModelError)
    model = builder(**extra_arguments, **section.arguments)
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"{section.architecture} returned a {type(model).__name__}",
            allowed=allowed,
            todo="return the module itself",
        )
    return model


def takes_by_name(model: nn.Module, name: str) -> bool:
    """Whether a module is a transformers network whose forward has a parameter of this name."""
    return is_of_transformers(model) and name in inspect.signature(type(model).forward).parameters


def _check_arguments(section: ModelSection, defaults: Any) -> None:
    """Raise ModelError for unknown arguments: transformers would accept them silently."""
    fields = sorted(name for name in defaults.to_dict() if not name.startswith("_"))
    for name in section.arguments:
        if name not in fields:
            raise ModelError(
                f"model.arguments.{name} is no field of {section.architecture}'s configuration",
                allowed=", ".join(fields),
                todo=_did_you_mean(name, fields) or "remove it",
            )


def _did_you_mean(name: str, candidates: Collection[str]) -> str:
    close = difflib.get_close_matches(name, sorted(candidates), n=1)
    return f"did you mean {close[0]}?" if close else ""
