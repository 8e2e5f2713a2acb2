"""Text classification: one of several classes for each text, tokenised by the shards' tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from contracts import storage
from contracts.artifacts.signature import Dimension, OutputSpec, Signature, TensorSpec
from contracts.errors import ConfigError, DataError, ModelError
from trainer.model.architecture import build_from_callable, build_from_transformers, is_own, takes_by_name
from trainer.predict.program import encode, open_tokenizer
from trainer.tasks.classification import Classification
from trainer.tasks.shard_checks import check_shards

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from contracts.config import ModelSection
    from trainer.tasks.task import Batch, Mode, Prepared, Sample, TaskContext
    from trainer.weights.source import WeightSource

MULTIPLE = 8
"""Of lengths: efficient on tensor cores, and fewer sizes need fewer kernel plans."""
MIN_LENGTH, MAX_LENGTH = 2 * MULTIPLE, 1 << 17
"""Of task.arguments.max_length: the exported graph's length would be a constant with a single multiple."""
TYPICAL_LENGTH = 128
"""Length that engines are tuned for, if max_length allows it."""
UNKNOWN_CRC32C = "00000000"
"""Checksum of a tokenizer that is not trained yet."""


class TextClassification(Classification):
    """Texts to logits of classes, of which each text has one.

    Args:
        context: The configuration's sections model and train, and the shards' classes and tokenizer.
        max_length: Most tokens of a text, with the special tokens that the tokenizer adds; a longer text is truncated.
        class_weights: `balanced`, or factors of the loss by class name; empty: 1 for all.

    Attributes:
        vocabulary: Number of tokens of the tokenizer.
        padding: Identifier of the padding token.

    Raises:
        ConfigError: An argument is none of these.
        DataError: The shards have no tokenizer.
    """

    fields: Mapping[str, str] = {"text": "text", "label": "class"}
    unit = "tokens"

    def __init__(
        self, context: TaskContext, *, max_length: int = 256, class_weights: str | Mapping[str, float] = ""
    ) -> None:
        if type(max_length) is not int or not MIN_LENGTH <= max_length <= MAX_LENGTH:
            raise ConfigError(
                f"task.arguments.max_length is {max_length!r}",
                allowed=f"a whole number from {MIN_LENGTH} to {MAX_LENGTH}",
                todo="set it to the number of tokens to which texts are truncated",
            )
        check_shards(context.config, context.shards)
        assert context.shards.tokenizer is not None
        super().__init__(context, class_weights)
        self._model, self._max_length = context.config.model, max_length
        self._entry, self._shards_uri = context.shards.tokenizer, context.shards_uri
        self.vocabulary, self.padding = self._entry.tokens, self._entry.padding
        longest = -(-max_length // MULTIPLE) * MULTIPLE
        length = Dimension(min=MULTIPLE, opt=min(TYPICAL_LENGTH, longest), max=longest, multiple=MULTIPLE)
        tokens = TensorSpec(dtype="int64", shape=["batch", "length"])
        logits = OutputSpec(dtype="float32", shape=["batch", max(1, len(self.classes))], compare="classes")
        self.signature = Signature(
            inputs={"tokens": tokens, "mask": tokens}, outputs={"logits": logits}, dimensions={"length": length}
        )

    def build_model(self) -> nn.Module:
        """Return the network of section `model`."""
        return build_network(
            self._model,
            num_classes=len(self.classes),
            vocabulary=self.vocabulary,
            padding=self.padding,
            max_length=self.signature.dimensions["length"].max,
        )

    def check_weights(self, source: WeightSource) -> None:
        """Refuse weights trained with another tokenizer, which has other identifiers of tokens.

        Raises:
            ModelError: The tokenizers differ; that of a file is unknown and not checked.
        """
        if source.tokenizer_crc32c in (None, self._entry.crc32c) or self._entry.crc32c == UNKNOWN_CRC32C:
            return
        name = storage.display(source.tokenizer_uri) if source.tokenizer_uri else ""
        raise ModelError(
            f"model.weights {storage.display(source.uri)} were trained with the tokenizer {name or 'of their shards'} "
            f"(crc32c {source.tokenizer_crc32c}), and the shards have another one ({self._entry.name}, "
            f"crc32c {self._entry.crc32c})",
            allowed="weights and shards with one tokenizer",
            todo=f"set sharding.tokenizer.file={name} and shard again"
            if name
            else "set sharding.tokenizer.file to the tokenizer of that training (tokenizer.json of its export, "
            "tokenizer-*.json of its shards) and shard again",
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The shards' tokenizer with truncation and padding; created once per loader process.

        Raises:
            DataError: The file is damaged, of another release of tokenizers, or adds too many special tokens.
        """
        content = b""
        with suppress(FileNotFoundError):
            content = storage.read_bytes(self._entry.uri(self._shards_uri))
        folder = f"the shards in {storage.display(self._shards_uri)}"
        if storage.crc32c(content) != self._entry.crc32c:
            raise DataError(
                f"{folder} are damaged: {self._entry.name} "
                + ("differs from the manifest's checksum" if content else "is missing"),
                allowed="the tokenizer that the shard stage wrote",
                todo="copy the folder of shards again, or run the shard stage again with --fresh",
            )
        try:
            tokenizer: Tokenizer = open_tokenizer(content.decode(), self._max_length, self.padding, MULTIPLE)
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise DataError(
                f"{self._entry.name} of {folder} is no tokenizer: {error}",
                allowed="a tokenizer of the library tokenizers",
                todo="install the release of tokenizers that made the file",
            ) from None
        # Truncation leaves no token of a text then, or batches longer than max_length.
        added = tokenizer.num_special_tokens_to_add(False)
        if added >= self._max_length:
            raise DataError(
                f"{self._entry.name} of {folder} adds {added} special tokens to a text, and {self._max_length} tokens "
                "are allowed in all",
                allowed="fewer special tokens than task.arguments.max_length",
                todo=f"set task.arguments.max_length to at least {added + 1}",
            )
        return tokenizer

    def __getstate__(self) -> dict[str, object]:
        """Exclude the tokenizer from pickling: each process creates its own."""
        return {name: value for name, value in self.__dict__.items() if name != "tokenizer"}

    def prepare(self, sample: Sample, mode: Mode) -> Prepared:
        """Return the sample: a batch is tokenised as a whole."""
        return sample

    def collate(self, samples: Sequence[Prepared], mode: Mode) -> Batch:
        """Return `tokens` and `mask` [B, L] int64, and `label` [B] int64 where the samples have one.

        L is the length of the longest text, rounded up to a multiple of 8.
        """
        tokens, mask = encode(self.tokenizer, [sample["text"] for sample in samples])
        batch = {"tokens": torch.from_numpy(tokens), "mask": torch.from_numpy(mask)}
        if "label" in samples[0]:
            batch["label"] = torch.tensor([sample["label"] for sample in samples])
        return batch

    def count_units(self, batch: Batch) -> int:
        """Return the tokens of a batch without padding."""
        return int(batch["mask"].sum())

    def example(self, size: int) -> Batch:
        """Return texts of the length that engines are tuned for, filled with one token that is not padding."""
        # Some networks find the end of a text by the padding token.
        token = 0 if self.padding else 1
        tokens = torch.full((size, self.signature.dimensions["length"].opt), token)
        return {"tokens": tokens, "mask": torch.ones_like(tokens), "label": torch.zeros(size, dtype=torch.int64)}

    def first_samples(self, batch: Batch) -> str:
        """Return a line per text: its label, its tokens of the batch's length, and the first of them."""
        lines = []
        for tokens, mask, label in zip(batch["tokens"], batch["mask"], batch["label"].tolist(), strict=True):
            ids = tokens[: int(mask.sum())].tolist()
            text = " ".join(self.tokenizer.id_to_token(token) or f"[{token}]" for token in ids)
            lines.append(f"{self.classes[label]}; {len(ids)} of {len(tokens)}: {text[:600]}")
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """Return length and tokenizer of the texts."""
        sizes = {"max_length": self._max_length, "vocabulary": self.vocabulary, "padding": self.padding}
        return {**sizes, "tokenizer": self._entry.crc32c}


# Common architectures; messages have the number of the others.
_SHOWN = ("bert", "distilbert", "roberta", "electra", "albert", "deberta-v2", "modernbert", "xlm-roberta", "gpt2")
_POSITIONS = "max_position_embeddings"


def build_network(
    section: ModelSection, *, num_classes: int, vocabulary: int, padding: int, max_length: int
) -> nn.Module:
    """Build the network of section `model` with random weights from torch's generator, without a forward pass.

    It is an architecture of transformers, or `module:callable`.

    Args:
        section: The model section of the configuration.
        num_classes: Width of the last layer.
        vocabulary: Number of tokens: identifiers are below it.
        padding: Identifier of the padding token.
        max_length: Most tokens of a text, padding included.

    Raises:
        ModelError: The architecture is unknown, does not take these arguments, or has too few tokens or positions.
    """
    if is_own(section):
        network = build_from_callable(
            section,
            allowed="a torch.nn.Module that maps tokens and mask [B, L] int64 to logits [B, num_classes]",
            num_classes=num_classes,
            vocabulary=vocabulary,
            padding=padding,
            max_length=max_length,
        )
        if not takes_by_name(network, "input_ids"):
            return network
    else:
        from transformers import AutoModelForSequenceClassification
        from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as KNOWN

        def choose(defaults: Any, arguments: dict[str, Any]) -> dict[str, Any]:
            settings = {"num_labels": num_classes, "pad_token_id": padding}
            if hasattr(defaults, "vocab_size") and "vocab_size" not in arguments:
                settings["vocab_size"] = vocabulary
            return settings

        network = build_from_transformers(
            section,
            AutoModelForSequenceClassification,
            known=KNOWN,
            shown=_SHOWN,
            head="a sequence-classification head",
            choose=choose,
        )
    _check_vocabulary(network, section, vocabulary)
    _check_positions(network, section, max_length)
    # A bound method is copied with the network; its tensors keep their names.
    network.forward = MethodType(_logits_of, network)
    return network


def _logits_of(network: nn.Module, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Map tokens [B, L] int64 and their mask [B, L] int64 (0: padding) to logits [B, classes]."""
    output: Any = type(network).forward(network, input_ids=tokens, attention_mask=mask)
    # A user's network may return logits directly.
    logits: torch.Tensor = output if isinstance(output, torch.Tensor) else output.logits
    return logits


def _check_vocabulary(network: Any, section: ModelSection, vocabulary: int) -> None:
    tokens = network.get_input_embeddings()
    if isinstance(tokens, nn.Embedding) and tokens.num_embeddings < vocabulary:
        raise ModelError(
            f"{section.architecture} has {tokens.num_embeddings} tokens, and the tokenizer {vocabulary}",
            allowed="a network with an embedding for each token of the tokenizer",
            todo=f"leave model.arguments.vocab_size out, or set it to at least {vocabulary}",
        )


def _check_positions(network: Any, section: ModelSection, max_length: int) -> None:
    positions = getattr(network.config, _POSITIONS, None)
    if not isinstance(positions, int) or positions <= 0:
        return
    reserved = _reserved_positions(network)
    if positions - reserved < max_length:
        name = network.config.attribute_map.get(_POSITIONS, _POSITIONS)
        note = f", the first {reserved} of which are reserved" if reserved else ""
        raise ModelError(
            f"{section.architecture} has {positions} positions{note}, and texts up to {max_length} tokens "
            f"(task.arguments.max_length, rounded up to a multiple of {MULTIPLE})",
            allowed="a position for each token",
            todo=f"set model.arguments.{name} to at least {max_length + reserved}, or task.arguments.max_length to at "
            f"most {(positions - reserved) // MULTIPLE * MULTIPLE}",
        )


def _reserved_positions(network: nn.Module) -> int:
    """Return the number of unused positions: RoBERTa-like networks count from the padding token's identifier on."""
    for name, module in network.named_modules():
        is_position = "position" in name.rpartition(".")[2]
        if is_position and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return int(module.padding_idx) + 1
    return 0
