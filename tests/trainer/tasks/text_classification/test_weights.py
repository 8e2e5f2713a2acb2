"""Weights that a training on texts starts from: identifiers of tokens must mean the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config.load import parse_config
from contracts.errors import ModelError
from tests.trainer.tasks.text_classification.texts import CLASSES, sections
from tests.trainer.weights.exports import write_export
from trainer.model.build import build_model
from trainer.tasks.classes.labels import LABELS_NAME, write_json
from trainer.tasks.load import load_task
from trainer.tasks.text_classification.inputs import NO_CRC32C, check_tokenizer
from trainer.weights.save import save_weights
from trainer.weights.source import WeightSource, find_source
from trainer.weights.start import StartWeights, check_inputs, find_head, start_from


def network(shards: str, seed: int) -> tuple[Any, Any]:
    config = parse_config(sections(), where="test")
    task = load_task(config, ShardManifest.load(shards), shards)
    torch.manual_seed(seed)
    return task, build_model(task, config).eval()


def tokenizer_of(shards: str) -> bytes:
    entry = ShardManifest.load(shards).tokenizer
    assert entry is not None
    return storage.read_bytes(entry.uri(shards))


def exchanged(content: bytes) -> bytes:
    """Return a tokenizer in which two tokens have each other's identifier."""
    values = json.loads(content)
    vocabulary = values["model"]["vocab"]
    one, other = list(vocabulary)[50:52]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    return json.dumps(values).encode()


def start(folder: Path, shards: str) -> tuple[Any, Any]:
    uri = storage.normalise(folder)
    task, net = network(shards, 2)
    wanted = StartWeights(uri, find_source(uri).sha256())
    return net, start_from(net, wanted, find_head(task), check=lambda source: check_inputs(task, source))


@pytest.mark.parametrize("has_config", [True, False])
def test_an_exports_folder_is_taken_whole(text_shards: str, has_config: bool, tmp_path: Path) -> None:
    """A network of transformers has its configuration beside it; one of your own has the classes in labels.json."""
    task, theirs = network(text_shards, 1)
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_of(text_shards))
    write_json(tmp_path / LABELS_NAME, CLASSES)
    write_export(tmp_path, theirs, task, list(CLASSES), [LABELS_NAME, "tokenizer.json"])
    if not has_config:
        (tmp_path / "config.json").unlink()
    net, found = start(tmp_path, text_shards)
    assert (found.kind, found.matched_fraction, found.classes_taken) == ("export", 1.0, list(CLASSES))
    for key, tensor in theirs.state_dict().items():
        assert torch.equal(net.state_dict()[key], tensor), key


@pytest.mark.parametrize("is_export", [True, False])
def test_another_tokenizer_of_equal_size_is_refused(text_shards: str, is_export: bool, tmp_path: Path) -> None:
    task, theirs = network(text_shards, 1)
    content = exchanged(tokenizer_of(text_shards))
    (tmp_path / "tokenizer.json").write_bytes(content)
    write_json(tmp_path / LABELS_NAME, CLASSES)
    if is_export:
        write_export(tmp_path, theirs, task, list(CLASSES), [LABELS_NAME, "tokenizer.json"])
    else:
        save_weights(theirs, CLASSES, tmp_path)
    with pytest.raises(ModelError, match="were trained with another tokenizer") as caught:
        start(tmp_path, text_shards)
    assert f"sharding.tokenizer.file={tmp_path / 'tokenizer.json'}" in str(caught.value.todo)
    # The same tokens in another file: of its padding, or with more tokens behind.
    tokenizer = Tokenizer.from_str(tokenizer_of(text_shards).decode())
    tokenizer.enable_padding(length=8)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    start(tmp_path, text_shards)


def test_a_checkpoint_says_which_tokenizer_it_is_of(text_shards: str) -> None:
    task, _ = network(text_shards, 1)
    entry = ShardManifest.load(text_shards).tokenizer
    assert entry is not None
    source = WeightSource("file:///there", "checkpoint", (), tokenizer_crc32c=task.document()["tokenizer"])
    check_tokenizer(source, entry, text_shards)
    other = entry.model_copy(update={"crc32c": "12345678"})
    with pytest.raises(ModelError, match="another tokenizer"):
        check_tokenizer(source, other, text_shards)
    for unknown in (WeightSource("file:///file", "file", ()), WeightSource("file:///old", "checkpoint", ())):
        check_tokenizer(unknown, other, text_shards)
    check_tokenizer(source, entry.model_copy(update={"crc32c": NO_CRC32C}), "")
