"""`sharding.tokenizer`: trained on the training split, or given; in the folder of the shards before the manifest is."""

import json
import os
import subprocess
import sys

import numpy as np
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
    for text in (*texts[:5], "\x00\t\r\n", "𒀀 עברית"):
        ids = found.encode(text).ids
        assert (ids[0], ids[-1]) == (1, 2) and found.decode(ids) == text
    assert found.encode("tensor").tokens == ["[CLS]", "tensor", "[SEP]"]
    assert not verify(storage.normalise(result.folder), processes=1, progress=lambda *_: None)


def test_training_gives_the_same_bytes_whatever_the_threads():
    program = (
        "import sys; from tests.sharding.test_tokenizer import make_texts; from sharding.tokenizer import train;"
        "sys.stdout.buffer.write(train(iter(make_texts(3000)), 600))"
    )
    environment = {**os.environ, "RAYON_NUM_THREADS": "7", "PYTHONHASHSEED": "1"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == train(iter(make_texts(3000)), 600)


def test_a_given_one_is_copied_and_its_content_counts(run_shard, tmp_path):
    source = write_texts(tmp_path / "texts", make_texts(30))
    path = make_file(tmp_path / "saved/tokenizer.json", padding=2)

    def run(file):
        return run_shard(source=source, fields=FIELDS, tokenizer={"file": str(file)})

    first = run(path.parent)
    assert first.code == 0, first.stderr
    assert read_tokenizer(first)[0] == path.read_bytes()
    entry = first.manifest.tokenizer
    assert (entry.padding, entry.tokens, entry.trained) == (2, 4, False)
    assert not [line for line in first.manifest.warnings if "pads" in line]
    moved = path.rename(tmp_path / "other.json")
    assert run(moved).folder == first.folder
    # Another content is another output; this one names no padding.
    make_file(moved, ("[UNK]", "c"))
    other = run(moved)
    assert other.folder != first.folder and "c" in read_tokenizer(other)[1].get_vocab()
    assert other.manifest.tokenizer.padding == 0 and "names no token that pads" in other.manifest.warnings[-1]
    moved.write_bytes(b'{"model": 3}')
    refused = run(moved)
    assert refused.code == 2 and "is no tokenizer" in refused.stderr and str(moved) in refused.stderr


def test_a_chain_of_increments_keeps_the_tokenizer_of_its_first_manifest(run_shard, tmp_path):
    place = tmp_path / "texts"
    given = {"fields": FIELDS, "tokenizer": {"vocabulary": 400}, "incremental": True}
    first = run_shard(source=write_texts(place, make_texts(60)), **given)
    second = run_shard(source=write_texts(place, make_texts(60) + ["walrus " * 50] * 9), **given)
    assert second.code == 0 and second.manifest.parent is not None, second.stderr
    assert read_tokenizer(second)[0] == read_tokenizer(first)[0]
    assert second.manifest.tokenizer.folder == ""
