"""The tokenizer beside the shards: the given one, the one of an increment's first manifest, or one that is trained.

A trained one is a byte-level BPE: its first tokens are all 256 bytes, so that no text is unknown to it. It reads the
text of the first samples of the training split in the order of the index, out of the finished shards. Training counts
words and merges the most frequent pair, of equal ones the first by number: it gives the same file whatever the number
of threads. Of several attempts the first decides all the same: another version of the library may give another file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import google_crc32c
import numpy as np

from contracts import storage
from contracts.artifacts import ShardManifest, TokenizerEntry
from contracts.config.sharding import TokenizerSection
from contracts.errors import TryAgain
from records.fields import FieldReader
from records.index import Index
from records.samples import open_samples
from records.tokenizer import count_tokens, find_padding
from sharding.commit.kept import Kept
from sharding.job import TOKENIZER_NAME, OpenJob
from sharding.sources.tokenizer import parse_tokenizer

# Tokens of a trained one beside those of text; the first one pads.
SPECIAL_TOKENS = ("[PAD]", "[CLS]", "[SEP]")
# A pair of tokens that is met once is no part of the language.
_MIN_FREQUENCY = 2
# Runs of blanks are words too.
_LONG_WORD = re.compile(r"\S{1000}|\s{1000}")
# Bytes of a shard, and records of the index, that are read at a time.
# Most bytes of text that a tokenizer is trained on: of the first samples of the training split.
_TEXT_BYTES = 100 << 20
_READ_BYTES, _READ_SAMPLES = 16 << 20, 1 << 15


def add_tokenizer(opened: OpenJob, manifest: ShardManifest, kept: Kept | None) -> ShardManifest:
    """Publish the tokenizer of a job that has one; return the manifest with it.

    Args:
        opened: The job, all of whose shards and parts of the index are published.
        manifest: Of the job, without a tokenizer.
        kept: What an increment takes over: a chain keeps the tokenizer of its first manifest.

    Raises:
        TryAgain: A shard changed while it was read.
    """
    section, field = opened.planned.sharding.tokenizer, opened.planned.sharding.text_field
    if section is None or field is None:
        return manifest
    output_uri = opened.job.output_uri
    if kept is not None and kept.manifest.tokenizer is not None:
        content = storage.read_bytes(kept.manifest.tokenizer.uri(kept.uri))
    elif section.file:
        content = storage.read_bytes(storage.join(opened.planned.listing_uri(output_uri), TOKENIZER_NAME))
    else:
        content = train(_texts(manifest, output_uri, field), section.vocabulary)
    name = f"tokenizer-{opened.job.key}.json"
    uri = storage.join(output_uri, name)
    try:
        storage.publish(uri, content)
    except storage.AlreadyPublished:
        content = storage.read_bytes(uri)
    entry, warnings = _describe(content, name, section, field)
    return manifest.model_copy(update={"tokenizer": entry, "warnings": [*manifest.warnings, *warnings]})


def train(texts: Iterator[str], vocabulary: int) -> bytes:
    """Return a tokenizer.json that is trained on texts.

    Args:
        texts: They are read once.
        vocabulary: Most tokens, the bytes and special tokens among them.
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
    """Yield a text in pieces, cut where a thousand characters have no blank.

    Words are learned from as a whole: one of a million letters takes minutes, a thousand of a thousand two seconds.
    """
    begin = 0
    for found in _LONG_WORD.finditer(text):
        yield text[begin : found.end()]
        begin = found.end()
    if begin < len(text):
        yield text[begin:]


def _texts(manifest: ShardManifest, folder_uri: str, field: str) -> Iterator[str]:
    """Yield the texts of the training split in the order of the index, until they have so many bytes."""
    reader = FieldReader(manifest, [field])
    index = open_samples(manifest, folder_uri)
    split = manifest.splits["train"]
    remaining = _TEXT_BYTES
    for first in range(split.first, split.first + split.samples, _READ_SAMPLES):
        records = index[first : min(first + _READ_SAMPLES, split.first + split.samples)]
        for run in _runs(records):
            uri = manifest.shards[int(run["shard"][0])].uri(folder_uri)
            begin = int(run["offset"][0])
            end = int(run["offset"][-1]) + int(run["size"][-1])
            content = storage.read_range(uri, begin, end - begin)
            for offset, size, crc32c, label in run[["offset", "size", "crc32c", "label"]].tolist():
                sample = content[offset - begin : offset - begin + size]
                if google_crc32c.value(sample) != crc32c:
                    raise TryAgain(f"{storage.display(uri)} changed while the tokenizer was trained; run again")
                text: str = reader.read(sample, label)[field]
                remaining -= (length := len(text.encode()))
                if remaining <= 0:
                    yield from cut_long_words(text.encode()[: length + remaining].decode(errors="ignore"))
                    return
                yield from cut_long_words(text)


def _runs(records: Index) -> Iterator[Index]:
    """Yield runs of samples that lie together in one shard, of 16 MiB or one sample at most."""
    first = 0
    ends = records["offset"] + records["size"]
    while first < len(records):
        near = (records["shard"] == records["shard"][first]) & (ends - records["offset"][first] <= _READ_BYTES)
        # The samples of a shard follow each other.
        count = int(np.argmin(near[first:])) if not near[first:].all() else len(records) - first
        yield records[first : first + max(1, count)]
        first += max(1, count)


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
