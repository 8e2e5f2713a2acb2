"""`sharding.tokenizer`: trained on the training split, or given; in the folder of the shards before the manifest is."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from contracts import storage
from records.tools.verify import verify
from sharding.tokenizer import SPECIAL_TOKENS, train

FIELDS = {"text": {"column": "text", "kind": "text"}, "label": {"column": "label", "kind": "class"}}
WORDS = ["ship", "shard", "tensor", "Größe", "naïve", "日本語", "running", "runner", "re-run", "emoji 😀"]


def make_texts(count, seed=0):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, 12).tolist()) + f" {number}" for number in range(count)]


def write_texts(folder, texts, name="texts.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"text": text, "label": "ab"[at % 2]} for at, text in enumerate(texts)]
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / name)


def read_tokenizer(result):
    content = (result.folder / result.manifest.tokenizer.name).read_bytes()
    return content, Tokenizer.from_str(content.decode())


def make_file(path, tokens=("[UNK]", "a", "b", "<pad>"), padding=None):
    """Write a tokenizer of words, such as others have."""
    tokenizer = Tokenizer(models.WordLevel({token: at for at, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if padding is not None:
        tokenizer.enable_padding(pad_id=padding, pad_token=tokens[padding])
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path


def test_one_is_trained_on_the_training_split(run_shard, tmp_path):
    texts = make_texts(300)
    tokenizer = {"vocabulary": 400}
    result = run_shard(
        source=write_texts(tmp_path / "texts", texts), fields=FIELDS, tokenizer=tokenizer, target_shard_bytes=8192
    )
    assert result.code == 0, result.stderr
    entry = result.manifest.tokenizer
    content, found = read_tokenizer(result)
    assert (entry.field, entry.trained, entry.padding) == ("text", True, 0)
    assert entry.tokens == found.get_vocab_size() <= 400
    assert entry.name == f"tokenizer-{result.manifest.key}.json" and entry.bytes == len(content)
    assert [found.id_to_token(at) for at in range(3)] == list(SPECIAL_TOKENS)
    # What was never seen comes back too: there is a token for every byte.
    for text in (*texts[:5], " leading blank", "\x00\t\r\n", "𒀀 עברית", "".join(map(chr, range(1, 300)))):
        ids = found.encode(text).ids
        assert (ids[0], ids[-1]) == (1, 2) and found.decode(ids) == text
    assert found.encode("tensor").tokens == ["[CLS]", "tensor", "[SEP]"]
    assert not verify(storage.normalise(result.folder), processes=1, progress=lambda *_: None)
    (result.folder / entry.name).write_bytes(content[:-5])
    assert verify(storage.normalise(result.folder), processes=1, progress=lambda *_: None)


def test_only_the_first_bytes_of_text_are_read(run_shard, tmp_path, monkeypatch):
    monkeypatch.setattr("sharding.tokenizer._TEXT_BYTES", 1024)
    source = write_texts(tmp_path / "texts", ["zebra " * 300, "lion " * 300, "zebra " * 301, "lion " * 301])
    splits = {"train": 1.0, "validation": 0.0, "test": 0.0}
    few = run_shard(source=source, fields=FIELDS, tokenizer={"vocabulary": 300}, splits=splits)
    # The first sample alone: what it is, is one animal.
    vocabulary = read_tokenizer(few)[1].get_vocab()
    assert ("Ġlion" in vocabulary) != ("Ġzebra" in vocabulary)


def test_training_gives_the_same_bytes_whatever_the_threads():
    program = (
        "import sys; from tests.sharding.test_tokenizer import make_texts; from sharding.tokenizer import train;"
        "sys.stdout.buffer.write(train(iter(make_texts(3000)), 600))"
    )
    environment = {**os.environ, "RAYON_NUM_THREADS": "7", "PYTHONHASHSEED": "1"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == train(iter(make_texts(3000)), 600)


@pytest.mark.parametrize(
    ("tokens", "padding", "expected"),
    [(("[UNK]", "a", "b", "<pad>"), 2, 2), (("[UNK]", "[PAD]"), None, 1)],
)
def test_a_given_one_is_copied_and_its_padding_found(run_shard, tmp_path, tokens, padding, expected):
    path = make_file(tmp_path / "saved/tokenizer.json", tokens, padding)
    result = run_shard(
        source=write_texts(tmp_path / "texts", make_texts(30)), fields=FIELDS, tokenizer={"file": str(path.parent)}
    )
    assert result.code == 0, result.stderr
    entry = result.manifest.tokenizer
    assert read_tokenizer(result)[0] == path.read_bytes()
    assert (entry.padding, entry.tokens, entry.trained) == (expected, len(tokens), False)
    assert not [line for line in result.manifest.warnings if "pads" in line]


def test_a_given_one_without_padding_is_warned_of_and_its_content_counts(run_shard, tmp_path):
    source = write_texts(tmp_path / "texts", make_texts(30))
    path = make_file(tmp_path / "mine.json", ("[UNK]", "a"))
    first = run_shard(source=source, fields=FIELDS, tokenizer={"file": str(path)})
    assert first.manifest.tokenizer.padding == 0 and "names no token that pads" in first.manifest.warnings[-1]
    moved = path.rename(tmp_path / "other.json")
    again = run_shard(source=source, fields=FIELDS, tokenizer={"file": str(moved)})
    assert again.folder == first.folder
    make_file(moved, ("[UNK]", "b"))
    other = run_shard(source=source, fields=FIELDS, tokenizer={"file": str(moved)})
    assert other.folder != first.folder and "b" in read_tokenizer(other)[1].get_vocab()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b'{"model": 3}', "is no tokenizer"),
    ],
)
def test_what_is_no_tokenizer_is_refused_before_anything_is_written(run_shard, tmp_path, content, message):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    result = run_shard(
        source=write_texts(tmp_path / "texts", make_texts(30)), fields=FIELDS, tokenizer={"file": str(path)}
    )
    assert result.code == 2 and message in result.stderr and str(path) in result.stderr, result.stderr
    assert not [path for path in result.root.iterdir() if path.name != "attempts"]


def test_a_chain_of_increments_keeps_the_tokenizer_of_its_first_manifest(run_shard, tmp_path):
    place = tmp_path / "texts"
    given = {"fields": FIELDS, "tokenizer": {"vocabulary": 400}, "incremental": True}
    first = run_shard(source=write_texts(place, make_texts(60)), **given)
    second = run_shard(source=write_texts(place, make_texts(60) + ["walrus " * 50] * 9), **given)
    assert second.code == 0 and second.manifest.parent is not None, second.stderr
    assert read_tokenizer(second)[0] == read_tokenizer(first)[0]
    assert second.manifest.tokenizer.folder == ""
