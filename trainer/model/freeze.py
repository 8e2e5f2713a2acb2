"""Frozen parameters, chosen by glob patterns, and normalisation layers with frozen statistics.

Names are those of `named_parameters` and `named_buffers`; `*` matches dots too (fnmatch.fnmatchcase).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MethodType

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from contracts.errors import ConfigError

# Names that a message gives as examples.
_MOST_NAMES = 6


@dataclass(frozen=True)
class Frozen:
    """Parameters and normalisation layers that patterns name."""

    parameters: frozenset[str] = frozenset()
    norms: tuple[str, ...] = ()
    """Modules with running statistics that keep them."""


def find_frozen(model: nn.Module, patterns: Sequence[str]) -> Frozen:
    """Return the parameters and normalisation layers that match glob patterns.

    A normalisation layer with running statistics (BatchNorm, InstanceNorm) keeps them when all its own parameters are
    named, or its running mean and variance are.

    Raises:
        ConfigError: A pattern matches neither a parameter nor running statistics.
    """
    if not patterns:
        return Frozen()
    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    norms = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _NormBase) and module.running_mean is not None
    }
    statistics = {_join(norm, buffer) for norm in norms for buffer in ("running_mean", "running_var")}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in [*parameters, *statistics]):
            raise no_match("model.freeze", pattern, parameters)
    named = {name for name in [*parameters, *statistics] if any(fnmatchcase(name, pattern) for pattern in patterns)}
    frozen_norms = []
    for norm, module in norms.items():
        norm_parameters = {_join(norm, name) for name, _ in module.named_parameters(recurse=False)}
        norm_statistics = {_join(norm, "running_mean"), _join(norm, "running_var")}
        if (norm_parameters and norm_parameters <= named) or norm_statistics <= named:
            frozen_norms.append(norm)
    return Frozen(frozenset(named - statistics), tuple(frozen_norms))


def freeze(model: nn.Module, frozen: Frozen) -> None:
    """Set requires_grad=False on frozen parameters, and freeze the statistics of normalisation layers."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in frozen.parameters:
            parameter.requires_grad_(False)
    keep_statistics(model, frozen.norms)


def keep_statistics(model: nn.Module, norms: Iterable[str]) -> None:
    """Keep modules, and copies of them, in evaluation mode even if `train` is called on a parent.

    Call it again after modules were replaced, e.g. by convert_sync_batchnorm.
    """
    for name in norms:
        module = model.get_submodule(name)
        # An attribute of this one module hides the method of its class.
        module.__dict__["train"] = MethodType(_stay_in_evaluation, module)
        module.train(False)


def no_match(field: str, pattern: str, names: Sequence[str]) -> ConfigError:
    """Return the error for a pattern without a match; it lists close names, or the first ones."""
    close = difflib.get_close_matches(pattern.strip("*"), names, n=_MOST_NAMES, cutoff=0.5)
    return ConfigError(
        f"{field}: the pattern {pattern!r} matches no parameter of the network",
        allowed=f"glob patterns of names such as: {', '.join(close or names[:_MOST_NAMES])}",
        todo="correct the pattern (`*` matches anything, dots too), or leave it out",
    )


def require_some_learns(learns: Sequence[str], patterns: Sequence[str]) -> None:
    """Raise a ConfigError if all parameters are frozen."""
    if not learns:
        raise ConfigError(
            f"model.freeze {list(patterns)} freezes all parameters of the network",
            allowed="patterns that leave some parameters to learn, such as those of the classifier's head",
            todo="name less in model.freeze",
        )


def _stay_in_evaluation(module: nn.Module, mode: bool = True) -> nn.Module:
    return nn.Module.train(module, False)


def _join(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name
