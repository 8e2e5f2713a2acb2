"""Tokenizers of the library `tokenizers`: where the file is, how many tokens it has, and which one pads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from contracts import storage

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# In a folder that transformers saved.
TOKENIZER_NAME = "tokenizer.json"
# Common padding tokens, for files without a section `padding`.
_PADDING_TOKENS = ("[PAD]", "<pad>")


def tokenizer_uri(file: str) -> str:
    """Return the URI of the file itself, where a folder is named."""
    uri = storage.normalise(file)
    return uri if uri.lower().endswith(".json") else storage.join(uri, TOKENIZER_NAME)


def find_padding(content: bytes, tokenizer: Tokenizer) -> int | None:
    """Return the identifier of the token that pads: the one that the file names, else a usual one; None: none is known.

    Args:
        content: The file.
        tokenizer: What is in it.
    """
    padding = json.loads(content).get("padding")
    if isinstance(padding, dict) and isinstance(padding.get("pad_id"), int):
        return int(padding["pad_id"])
    return next((own for token in _PADDING_TOKENS if (own := tokenizer.token_to_id(token)) is not None), None)


def count_tokens(tokenizer: Tokenizer, padding: int) -> int:
    """Return the number that all identifiers are below: there may be gaps between them."""
    return 1 + max(padding, *tokenizer.get_vocab(with_added_tokens=True).values())
