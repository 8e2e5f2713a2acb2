"""The task of words.py with the library tokenizers, in batches: its threads are there when loaders are forked."""

from __future__ import annotations

from typing import Any

import torch
from words import Words

# So many are spread over threads.
MANY = 2000


class Encoded(Words):
    """Texts to classes, their letters by a tokenizer that each process of the task has used."""

    def __init__(self, context: Any) -> None:
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from tokenizers.pre_tokenizers import Split

        super().__init__(context)
        vocabulary = {letter: place for place, letter in enumerate("abc0123456789")}
        self._tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="a"))
        self._tokenizer.pre_tokenizer = Split("", "isolated")
        self._encode("abc")

    def _encode(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer.encode_batch([text] * MANY)[0].ids
        return found

    def prepare(self, sample: dict[str, Any], mode: Any) -> tuple[torch.Tensor, int]:
        return torch.tensor(self._encode(sample["text"])), sample["label"]
