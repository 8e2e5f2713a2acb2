"""The network of text classification: tokens and their mask to logits, from the section `model` of the configuration.

Architectures come from transformers' configurations (weights are random: nothing is downloaded) or from any
`module:callable` that returns a module. Attention is what transformers chooses: every architecture that was tried is
exported with it (docs/tasks/text.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import nn

from contracts.config import ModelSection
from contracts.errors import ModelError
from trainer.model.architecture import build_from_callable, build_from_transformers, is_own, takes_by_name

# Those that are trained most; of all others messages have the number.
_SHOWN = ("bert", "distilbert", "roberta", "electra", "albert", "deberta-v2", "modernbert", "xlm-roberta", "gpt2")
_POSITIONS = "max_position_embeddings"


@dataclass(frozen=True)
class Text:
    """What a network must be able to take."""

    vocabulary: int
    """Tokens: identifiers are below it."""
    padding: int
    """Identifier of the token that texts are padded with."""
    max_length: int
    """Most tokens of a text, padding included."""


def build_network(section: ModelSection, *, num_classes: int, text: Text) -> nn.Module:
    """Build the network with random weights from torch's current seed, without a forward pass.

    Args:
        section: The model section of the configuration.
        num_classes: Width of the last layer.
        text: What it must be able to take.

    Raises:
        ModelError: The architecture is unknown, does not take these arguments, or has fewer tokens or places than texts
            have.
    """
    if is_own(section):
        model = build_from_callable(
            section,
            allowed="a torch.nn.Module that maps tokens and mask [B, L] int64 to logits [B, num_classes]",
            num_classes=num_classes,
            vocabulary=text.vocabulary,
            padding=text.padding,
            max_length=text.max_length,
        )
        if takes_by_name(model, "input_ids"):
            _check_sizes(model, section, text)
            return _text_to_logits(model)
        return model
    from transformers import AutoModelForSequenceClassification
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as KNOWN

    def choose(defaults: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        settings = {"num_labels": num_classes, "pad_token_id": text.padding}
        if hasattr(defaults, "vocab_size") and "vocab_size" not in arguments:
            settings["vocab_size"] = text.vocabulary
        return settings

    network = build_from_transformers(
        section,
        AutoModelForSequenceClassification,
        known=KNOWN,
        shown=_SHOWN,
        head="a sequence-classification head",
        choose=choose,
    )
    _check_sizes(network, section, text)
    return _text_to_logits(network)


def _check_sizes(network: Any, section: ModelSection, text: Text) -> None:
    """Refuse a network of transformers that has fewer tokens or places than texts have."""
    tokens = network.get_input_embeddings()
    if isinstance(tokens, nn.Embedding) and tokens.num_embeddings < text.vocabulary:
        raise ModelError(
            f"{section.architecture} has {tokens.num_embeddings} tokens, and the tokenizer {text.vocabulary}",
            allowed="a network that knows every token of the tokenizer",
            todo=f"leave model.arguments.vocab_size out, or set it to at least {text.vocabulary}",
        )
    places = getattr(network.config, _POSITIONS, None)
    if not isinstance(places, int) or places <= 0:
        return
    used = _first_place(network)
    if places - used < text.max_length:
        name = network.config.attribute_map.get(_POSITIONS, _POSITIONS)
        said = f", the first {used} of which are no text's" if used else ""
        raise ModelError(
            f"{section.architecture} has {places} places{said}, and texts up to {text.max_length} tokens "
            "(task.arguments.max_length, rounded up to a multiple of 8)",
            allowed="a place for each token",
            todo=f"set model.arguments.{name} to at least {text.max_length + used}, or task.arguments.max_length to at "
            f"most {(places - used) // 8 * 8}",
        )


def _first_place(network: nn.Module) -> int:
    """Return how many places are not used: RoBERTa and its relatives count from the padding token's on."""
    for name, module in network.named_modules():
        if (
            isinstance(module, nn.Embedding)
            and "position" in name.rpartition(".")[2]
            and module.padding_idx is not None
        ):
            return int(module.padding_idx) + 1
    return 0


def _text_to_logits(network: nn.Module) -> nn.Module:
    """Give a transformers network the plain signature tokens, mask -> logits; its tensors keep their names."""
    # A bound method: a deep copy of the network has one of its own.
    network.forward = MethodType(_logits_of, network)
    return network


def _logits_of(network: nn.Module, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Map tokens [B, L] int64 and their mask [B, L] int64 (0: padding) to logits [B, classes]."""
    output: Any = type(network).forward(network, input_ids=tokens, attention_mask=mask)
    # One of a user's own may return them as they are.
    logits: torch.Tensor = output if isinstance(output, torch.Tensor) else output.logits
    return logits
