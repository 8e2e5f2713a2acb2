"""The tokenizer beside the shards: that of the configuration, that of the parent, or a trained one.

A trained one is a byte-level BPE with all 256 bytes as its first tokens, so that no text is unknown. It is trained on
the first samples of the training split in the listing. Training merges the most frequent pair of tokens, with ties by
number, so the file does not depend on the number of threads. The first attempt's file counts, since another version of
the library may give another one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import ShardManifest, TokenizerEntry
from contracts.config import ShardingSection
from contracts.config.sharding import TokenizerSection
from contracts.errors import DataError
from records.tokenizer import count_tokens, find_padding, tokenizer_uri

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sharding.job import Job

# Special tokens of a tokenizer that is trained here. The first is the padding token.
SPECIAL_TOKENS = ("[PAD]", "[CLS]", "[SEP]")
# Pairs of tokens that occur once are not merged.
_MIN_FREQUENCY = 2
# Runs of blanks count as words too.
_LONG_WORD = re.compile(r"\S{1000}|\s{1000}")
# Most bytes of text that a tokenizer is trained on.
_TEXT_BYTES = 100 << 20
_ALLOWED = "a tokenizer.json of the library tokenizers, or a folder of transformers that has one"


def read_tokenizer(section: ShardingSection) -> bytes:
    """Return the content of `sharding.tokenizer.file`; empty if it is not set.

    Raises:
        DataError: The file is missing, or no tokenizer.
    """
    if section.tokenizer is None or not section.tokenizer.file:
        return b""
    uri = tokenizer_uri(section.tokenizer.file)
    shown = f"sharding.tokenizer.file {storage.display(uri)}"
    try:
        content = storage.read_bytes(uri)
    except OSError as error:
        reason = error.strerror or "it is not there"
        raise DataError(f"{shown} cannot be read: {reason}", allowed=_ALLOWED, todo="check the path") from None
    parse_tokenizer(content, shown)
    return content


def hash_tokenizer(content: bytes) -> str:
    """Return the hash of a given tokenizer for the fingerprint; empty without one."""
    return hashlib.sha256(content).hexdigest() if content else ""


def parse_tokenizer(content: bytes, shown: str) -> Tokenizer:
    """Parse a tokenizer.json.

    Raises:
        DataError: It is no tokenizer.
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


def add_tokenizer(job: Job, manifest: ShardManifest, parent: ShardManifest | None) -> ShardManifest:
    """Publish the tokenizer of a job that has one; return the manifest with it.

    Args:
        job: The planned job.
        manifest: Manifest of the job, without a tokenizer.
        parent: Parent of an increment, whose tokenizer is kept.
    """
    from sharding.job import TOKENIZER_NAME

    section, field = job.planned.sharding.tokenizer, job.planned.sharding.text_field
    if section is None or field is None:
        return manifest
    if parent is not None and parent.tokenizer is not None:
        content = storage.read_bytes(parent.tokenizer.uri(job.parent_uri))
    elif section.file:
        content = storage.read_bytes(storage.join(job.listing_uri, TOKENIZER_NAME))
    else:
        content = train(_read_texts(job, field), section.vocabulary)
    name = f"tokenizer-{job.key}.json"
    uri = storage.join(job.output_uri, name)
    try:
        storage.publish(uri, content)
    except storage.AlreadyPublished:
        content = storage.read_bytes(uri)
    entry, warnings = _describe(content, name, section, field)
    return manifest.model_copy(update={"tokenizer": entry, "warnings": [*manifest.warnings, *warnings]})


def train(texts: Iterator[str], vocabulary: int) -> bytes:
    """Return a tokenizer.json trained on texts.

    Args:
        texts: Training texts, which are read once.
        vocabulary: Most tokens, including the bytes and special tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=_MIN_FREQUENCY,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    begin, end = SPECIAL_TOKENS[1:]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B:1 {end}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (begin, end)],
    )
    content: str = tokenizer.to_str(pretty=True)
    return content.encode()


def cut_long_words(text: str) -> Iterator[str]:
    """Yield a text in pieces with words of at most 1,000 characters: training on a word of a million takes minutes."""
    begin = 0
    for match in _LONG_WORD.finditer(text):
        yield text[begin : match.end()]
        begin = match.end()
    if begin < len(text):
        yield text[begin:]


def _read_texts(job: Job, field: str) -> Iterator[str]:
    """Yield the first `_TEXT_BYTES` of text of the training split, in the order of the listing."""
    from sharding.reference import read_part

    remaining = _TEXT_BYTES
    for number in range(job.planned.num_parts):
        table = read_part(storage.read_bytes(job.part_uri(number)))
        for split, cells in zip(table["split"].to_pylist(), table["cells"].to_pylist(), strict=True):
            if split != 0:
                continue
            content = json.loads(cells)[field].encode()[:remaining]
            yield from cut_long_words(content.decode(errors="ignore"))
            remaining -= len(content)
            if remaining == 0:
                return


def _describe(content: bytes, name: str, section: TokenizerSection, field: str) -> tuple[TokenizerEntry, list[str]]:
    tokenizer = parse_tokenizer(content, name)
    padding = find_padding(content, tokenizer)
    warnings = []
    if padding is None:
        padding = 0
        warnings.append(
            f"sharding.tokenizer.file {section.file} names no token that pads: 0 is taken "
            f"({tokenizer.id_to_token(0)!r}); set one with Tokenizer.enable_padding before it is saved"
        )
    entry = TokenizerEntry(
        name=name,
        bytes=len(content),
        crc32c=storage.crc32c(content),
        field=field,
        tokens=count_tokens(tokenizer, padding),
        padding=padding,
        trained=not section.file,
    )
    return entry, warnings
