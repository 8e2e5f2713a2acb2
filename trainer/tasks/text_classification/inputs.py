"""Tokenizers of weights to start from: identifiers must stand for the same tokens, or their embeddings say nothing."""

from __future__ import annotations

from contextlib import suppress

from contracts import storage
from contracts.artifacts.shards import TokenizerEntry
from contracts.errors import ModelError
from trainer.weights.source import WeightSource

# Of a tokenizer that is not there yet.
NO_CRC32C = "00000000"


def check_tokenizer(source: WeightSource, entry: TokenizerEntry, shards_uri: str) -> None:
    """Refuse weights that were trained with other tokens; of a file nobody knows.

    Args:
        source: The weights.
        entry: The shards' tokenizer.
        shards_uri: Their folder; empty: they are not written yet.

    Raises:
        ModelError: An identifier stands for another token there.
    """
    theirs = source.tokenizer_crc32c
    if theirs in (None, entry.crc32c) or entry.crc32c == NO_CRC32C:
        return
    if source.tokenizer_uri:
        # Another file may have the same tokens.
        with suppress(FileNotFoundError):
            their_tokens = _tokens(storage.read_bytes(source.tokenizer_uri))
            our_tokens = _tokens(storage.read_bytes(entry.uri(shards_uri))) if shards_uri else None
            if our_tokens is None or all(
                our_tokens.get(number, token) == token for number, token in their_tokens.items()
            ):
                return
    where = storage.display(source.tokenizer_uri or source.uri)
    raise ModelError(
        f"model.weights {storage.display(source.uri)} were trained with another tokenizer than the shards have: "
        "the same identifiers stand for other tokens",
        allowed="weights and shards with one tokenizer",
        todo=f"set sharding.tokenizer.file={where} and shard again"
        if source.tokenizer_uri
        else "set sharding.tokenizer.file to the tokenizer of that training (tokenizer.json of its export, "
        "tokenizer-*.json of its shards) and shard again; or shard by increments (sharding.incremental), which keep it",
    )


def _tokens(content: bytes) -> dict[int, str]:
    """Return the token of each identifier."""
    from tokenizers import Tokenizer

    tokens: dict[str, int] = Tokenizer.from_str(content.decode()).get_vocab(with_added_tokens=True)
    return {number: token for token, number in tokens.items()}
