"""The tokenizer that the configuration names: read and checked before anything is written."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import ConfigError, DataError
from records.tokenizer import tokenizer_uri

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ALLOWED = "a tokenizer.json of the library tokenizers, or a folder of transformers that has one"


def read_tokenizer(section: ShardingSection) -> bytes:
    """Return the content of `sharding.tokenizer.file`; empty where none is named.

    Raises:
        ConfigError: The library is not installed, and a tokenizer is asked for.
        DataError: There is no such file, or it is no tokenizer.
    """
    if section.tokenizer is None:
        return b""
    _require_library()
    if not section.tokenizer.file:
        return b""
    uri = tokenizer_uri(section.tokenizer.file)
    shown = f"sharding.tokenizer.file {storage.display(uri)}"
    try:
        content = storage.read_bytes(uri)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{shown} does not exist", allowed=_ALLOWED, todo="check the path") from None
    except OSError as error:
        raise DataError(
            f"{shown} cannot be read: {error.strerror}", allowed="a file that this user may read", todo="check the path"
        ) from None
    parse_tokenizer(content, shown)
    return content


def hash_tokenizer(content: bytes) -> str:
    """Return the hash that stands for a given tokenizer in the fingerprint; empty where none is given."""
    return hashlib.sha256(content).hexdigest() if content else ""


def parse_tokenizer(content: bytes, shown: str) -> Tokenizer:
    """Return the tokenizer in a file.

    Raises:
        DataError: It is none.
    """
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(content.decode())
    except Exception as error:  # noqa: BLE001  # the library raises Exception itself
        raise DataError(
            f"{shown} is no tokenizer: {str(error)[:200]}",
            allowed=_ALLOWED,
            todo="save it with Tokenizer.save or save_pretrained of a fast tokenizer, or unset the file to train one",
        ) from None


def _require_library() -> None:
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        raise ConfigError(
            "sharding.tokenizer needs the library tokenizers, which is not installed",
            allowed="an installation with the extra shard",
            todo='pip install "shardline[shard]"',
        ) from None
