"""Shards of texts of very different lengths, for the task of tests/own_code/words.py."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from contracts import storage
from contracts.stage import run_stage
from tests.conftest import OWN_CODE
from tests.own_code.words import CLASSES

FIELDS = {"text": {"column": "text", "kind": "text"}, "label": {"column": "label", "kind": "class"}}
LETTERS = "abc"


def words_config(**sections: Any) -> dict[str, Any]:
    """Return the sections of a configuration that the task needs; `arguments` are the task's."""
    arguments = sections.pop("arguments", {})
    return {
        "code": {"path": str(OWN_CODE)},
        "task": {"name": "words:Words", "arguments": arguments},
        "sharding": {"fields": FIELDS},
        **sections,
    }


def text_of(number: int) -> str:
    """Return the text of a sample: 5 to 64 letters, most of them those of its class; it starts with its number."""
    random = np.random.default_rng(number)
    own = LETTERS[number % CLASSES]
    letters = [own if random.random() < 0.8 else LETTERS[random.integers(3)] for _ in range(random.integers(1, 60))]
    return f"{number:04d}{''.join(letters)}"


def write_shards(folder: Path, *, train: int = 48, test: int = 16) -> str:
    """Shard so many texts of each split; return the shards' URI."""
    # Here: whoever only names the configuration needs no Beam.
    from sharding.task import shard

    folder.mkdir(exist_ok=True)
    splits = ["train"] * train + ["validation"] * test + ["test"] * test
    rows = [[text_of(number), str(number % CLASSES), split] for number, split in enumerate(splits)]
    with (folder / "texts.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["text", "label", "split"], *rows])
    sharding = {"source": str(folder / "texts.csv"), "fields": FIELDS}
    arguments = ["--output", str(folder / "shards"), "--config-json", json.dumps({"sharding": sharding})]
    assert run_stage("shard", shard, arguments) == 0
    return storage.normalise(folder / "shards")
