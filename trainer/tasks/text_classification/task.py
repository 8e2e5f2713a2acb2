"""The task of text classification: one of several classes for each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import nn

from contracts import storage
from contracts.artifacts.signature import Dimension, OutputSpec, Signature, TensorSpec
from contracts.errors import ConfigError, DataError
from trainer.model.architecture import is_own
from trainer.tasks.classes import losses
from trainer.tasks.classes.head import Head, find_head
from trainer.tasks.needs import check_shards
from trainer.tasks.protocol import Batch, Loss, Mode, Prepared, Sample, TaskContext
from trainer.tasks.text_classification.inputs import check_tokenizer
from trainer.tasks.text_classification.network import Text, build_network
from trainer.tasks.text_classification.predict import Encoder, pad

if TYPE_CHECKING:
    from torchmetrics import Metric

    from trainer.tasks.classes.report import ClassificationReport
    from trainer.weights.source import WeightSource

# Tensor cores take sizes that are multiples of 8, and fewer sizes are fewer plans of kernels.
MULTIPLE = 8
# With one multiple alone the length of the exported graph would be a constant; no network has more places.
LEAST_LENGTH, MOST_LENGTH = 2 * MULTIPLE, 1 << 17
# What engines are tuned for, where texts may be longer.
TYPICAL_LENGTH = 128


class TextClassification:
    """Texts to logits.

    Args:
        context: The configuration's sections model and train, and the shards' classes and tokenizer.
        max_length: Most tokens of a text, with the special ones that the tokenizer adds; of a longer one the beginning
            counts.
        loss: cross_entropy, focal, or `module:callable` that maps logits [B, classes] and labels [B] to losses [B].
        class_weights: `balanced`, or factors of the loss by class name; empty: 1 for all.

    Attributes:
        vocabulary: Tokens of the tokenizer.
        padding: Identifier of the token that fills up.

    Raises:
        ConfigError: An argument is none of these.
        DataError: The shards have no tokenizer.
    """

    fields: Mapping[str, str] = {"text": "text", "label": "class"}  # nobody changes it
    headline = "accuracy"
    uses_global_generators = False
    unit = "tokens"

    def __init__(
        self,
        context: TaskContext,
        *,
        max_length: int = 256,
        loss: str = "cross_entropy",
        class_weights: str | Mapping[str, float] = "",
    ) -> None:
        if type(max_length) is not int or not LEAST_LENGTH <= max_length <= MOST_LENGTH:
            raise ConfigError(
                f"task.arguments.max_length is {max_length!r}",
                allowed=f"a whole number from {LEAST_LENGTH} to {MOST_LENGTH}",
                todo="set it to the most tokens of a text that count",
            )
        check_shards(context.config, context.shards)
        assert context.shards.tokenizer is not None
        self._config, self._max_length = context.config, max_length
        self._entry, self._shards_uri = context.shards.tokenizer, context.shards_uri
        self.vocabulary, self.padding = self._entry.tokens, self._entry.padding
        self.classes = context.shards.classes
        smoothing = context.config.train.label_smoothing
        weights = losses.class_weights(class_weights, self.classes, context.shards)
        self._training_loss = losses.make_loss(loss, smoothing=smoothing, weights=weights)
        self._evaluation_loss = losses.make_loss(loss, smoothing=0.0, weights=weights)

    @property
    def signature(self) -> Signature:
        """`tokens` and `mask` [batch, length] int64 to `logits` [batch, classes] float32."""
        most = _round_up(self._max_length)
        length = Dimension(min=MULTIPLE, opt=min(TYPICAL_LENGTH, most), max=most, multiple=MULTIPLE)
        spec = TensorSpec(dtype="int64", shape=["batch", "length"])
        return Signature(
            inputs={"tokens": spec, "mask": spec},
            outputs={
                "logits": OutputSpec(dtype="float32", shape=["batch", max(1, len(self.classes))], compare="classes")
            },
            dimensions={"length": length},
        )

    # --- the network --------------------------------------------------------------------------------------------------

    def build_model(self) -> nn.Module:
        """Return the network of section `model`."""
        return self._build(len(self.classes))

    def head(self) -> Head:
        """Return which tensors are the classifier's head, whose rows belong to classes."""

        def example() -> tuple[torch.Tensor, ...]:
            tokens = torch.zeros(2, MULTIPLE, dtype=torch.int64)
            return tokens, torch.ones_like(tokens)

        on_meta = not is_own(self._config.model)
        return Head(find_head(self._build, len(self.classes), example=example, on_meta=on_meta), tuple(self.classes))

    def check_inputs(self, source: WeightSource) -> None:
        """Refuse weights that were trained with another tokenizer.

        Raises:
            ModelError: They were.
        """
        check_tokenizer(source, self._entry, self._shards_uri)

    def _build(self, num_classes: int) -> nn.Module:
        text = Text(self.vocabulary, self.padding, _round_up(self._max_length))
        return build_network(self._config.model, num_classes=num_classes, text=text)

    # --- from a sample to a batch -------------------------------------------------------------------------------------

    @cached_property
    def _encoder(self) -> Encoder:
        """Made where it is first asked for, in each loader process by itself: nothing of it crosses a fork."""
        entry, content = self._entry, b""
        with suppress(FileNotFoundError):
            content = storage.read_bytes(entry.uri(self._shards_uri))
        if storage.crc32c(content) != entry.crc32c:
            raise DataError(
                f"the shards in {storage.display(self._shards_uri)} are damaged: {entry.name} "
                + ("has other bytes than the manifest says" if content else "is missing"),
                allowed="the tokenizer that the shard stage left",
                todo="copy the folder of shards again, or run the shard stage again with --fresh",
            )
        try:
            return Encoder(content, max_length=self._max_length, padding=self.padding)
        except ValueError as error:
            raise DataError(
                f"{entry.name} of the shards in {storage.display(self._shards_uri)}: {error}",
                allowed="a tokenizer of the library tokenizers, whose special tokens are fewer than "
                f"task.arguments.max_length ({self._max_length})",
                todo="set task.arguments.max_length higher, or install the release of tokenizers that made the file",
            ) from error

    def __getstate__(self) -> dict[str, object]:
        """Leave the tokenizer behind: a process that gets the task makes its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_encoder"}

    def prepare(self, sample: Sample, mode: Mode) -> Prepared:
        """Return the identifiers of the text's tokens, and the label."""
        return {"tokens": self._encoder.encode(sample["text"]), "label": sample["label"]}

    def collate(self, samples: Sequence[Prepared], mode: Mode) -> Batch:
        """Return `tokens` and `mask` [B, L] int64, and `label` [B] int64; L is the longest text's, rounded up to 8."""
        tokens, mask = pad(
            [sample["tokens"] for sample in samples], padding=self.padding, least=MULTIPLE, multiple=MULTIPLE
        )
        return {
            "tokens": torch.from_numpy(tokens),
            "mask": torch.from_numpy(mask),
            "label": torch.tensor([sample["label"] for sample in samples]),
        }

    def count_units(self, batch: Batch) -> int:
        """Return the tokens of a batch, without those that pad it."""
        return int(batch["mask"].sum())

    def first_slot(self, batch: Batch) -> str:
        """Return a line for each text: its label, tokens without padding of all, and the beginning of them."""
        counts = batch["mask"].sum(dim=1).tolist()
        rows = zip(batch["tokens"].tolist(), counts, batch["label"].tolist(), strict=True)
        return "\n".join(
            f"{self.classes[label]}; {count} of {len(tokens)}: {' '.join(self._encoder.words(tokens[:count]))[:600]}"
            for tokens, count, label in rows
        )

    # --- on the device ------------------------------------------------------------------------------------------------

    def example(self, size: int) -> Batch:
        """Return texts of the length that engines are tuned for, of one token again and again, of the first class."""
        # Some networks find the end of a text by the token of padding.
        token = 0 if self.padding else 1
        tokens = torch.full((size, self.signature.dimensions["length"].opt), token)
        return {"tokens": tokens, "mask": torch.ones_like(tokens), "label": torch.zeros(size, dtype=torch.int64)}

    def to_model(self, batch: Batch, mode: Mode) -> Batch:
        """Return the batch as it is."""
        return batch

    def loss(self, outputs: torch.Tensor, batch: Batch, mode: Mode) -> Loss:
        """Return the loss in nats, summed over the batch, and its samples."""
        of_each = self._training_loss if mode.training else self._evaluation_loss
        return of_each(outputs.float(), batch["label"]).sum(), len(batch["label"])

    # --- metrics ------------------------------------------------------------------------------------------------------

    def metrics(self) -> Mapping[str, Metric]:
        """Return accuracy, and the means over classes of F1 and of recall."""
        from trainer.tasks.classes.metrics import make_metrics

        return make_metrics(len(self.classes))

    def update(self, metrics: Mapping[str, Metric], outputs: torch.Tensor, batch: Batch) -> None:
        """Take logits [B, classes] and labels in."""
        from trainer.tasks.classes.metrics import update_metrics

        update_metrics(metrics, outputs, batch)

    # --- what it shows ------------------------------------------------------------------------------------------------

    def report(self, device: torch.device) -> ClassificationReport:
        """Return what takes in the samples of the test split: confusion, curves, and the worst ones."""
        from trainer.tasks.classes.report import ClassificationReport

        return ClassificationReport(self.classes, device)

    def document(self) -> dict[str, object]:
        """Return what a checkpoint says of the texts that the network was trained on."""
        found = {"max_length": self._max_length, "vocabulary": self.vocabulary, "padding": self.padding}
        return {**found, "tokenizer": self._entry.crc32c}


def _round_up(length: int) -> int:
    return -(-length // MULTIPLE) * MULTIPLE
