"""Texts of made-up words, their shards with a tokenizer, and a small transformer for them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from contracts import storage
from contracts.config.load import parse_config
from contracts.stage import run_stage

CLASSES = ("kitchen", "sport", "weather")
# BERT with 20,000 parameters besides its tokens.
BERT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
SECTIONS: dict[str, Any] = {
    "task": {"name": "text_classification", "arguments": {"max_length": 60}},
    "sharding": {
        "fields": {
            "text": {"column": "text", "kind": "text"},
            "label": {"column": "label", "kind": "class"},
        },
        "tokenizer": {"vocabulary": 400},
        "splits": {"train": 0.6, "validation": 0.2, "test": 0.2},
    },
    "data": {"num_workers": 0},
    "model": {"architecture": "bert", "arguments": BERT},
    "train": {"global_batch_size": 16, "epochs": 2, "learning_rate": 3e-3},
    "parallel": {"slot_size": 4},
    "export": {"max_batch": 4, "runtime": "tensorrt_rtx", "target": "l4"},
}


def sections(**changes: dict[str, Any]) -> dict[str, Any]:
    """Return the sections above with changes merged in."""
    values = {name: dict(section) for name, section in SECTIONS.items()}
    for name, change in changes.items():
        values[name] = {**values.get(name, {}), **change}
    parse_config(values, where="test")
    return values


def make_words(random: np.random.Generator, number: int) -> list[str]:
    letters = list("abcdefghijklmnoprstuvwzäß")
    return ["".join(random.choice(letters, random.integers(2, 9))) for _ in range(number)]


def make_texts(number: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """Return texts of 3 to 40 words with their class: a fifth of the words are the class's own."""
    random = np.random.default_rng(seed)
    # The same words whatever is drawn of them.
    words = np.random.default_rng(7)
    common, own = make_words(words, 200), {name: make_words(words, 12) for name in CLASSES}
    rows = []
    for place in range(number):
        name = CLASSES[place % len(CLASSES)]
        length = int(random.integers(3, 41))
        chosen = [str(random.choice(own[name] if random.random() < 0.2 else common)) for _ in range(length)]
        chosen[int(random.integers(length))] = str(random.choice(own[name]))
        rows.append((" ".join(chosen), name))
    return rows


def write_table(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("text", "label"), *rows])
    return path


def word_piece() -> Tokenizer:
    """Another kind of tokenizer: words of a dictionary, unknown ones as a whole."""
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    for piece in "abcdefghijklmnoprstuvwz":
        vocabulary |= {piece: len(vocabulary), f"##{piece}": len(vocabulary) + 1}
    vocabulary |= {"abcd": len(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def make_shards(folder: Path, rows: list[tuple[str, str]], **sharding: Any) -> str:
    """Return the URI of the shards of texts, with their tokenizer; `sharding` are further settings."""
    from sharding.task import shard

    table = write_table(folder / "texts.csv", rows)
    values = {**SECTIONS["sharding"], "source": str(table), **sharding}
    arguments = ["--output", str(folder / "shards"), "--config-json", json.dumps({"sharding": values})]
    assert run_stage("shard", shard, arguments) == 0
    return storage.normalise(folder / "shards")
