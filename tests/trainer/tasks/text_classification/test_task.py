"""The task of text classification from a text to a batch: tokens, lengths, and what it refuses."""

import pickle
import random
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config.load import parse_config
from contracts.errors import ConfigError, DataError
from contracts.process import thread_environment
from tests.trainer.tasks.text_classification.texts import CLASSES, make_texts, sections, word_piece
from trainer.check.network import plan_task
from trainer.data.cursor import slot_requests
from trainer.data.loader import SlotDataset, make_loader, read_slots
from trainer.data.order import FullOrder
from trainer.data.reader import ShardReader
from trainer.tasks.load import load_task
from trainer.tasks.protocol import Mode
from trainer.tasks.text_classification.predict import Encoder
from trainer.tasks.text_classification.task import TextClassification

EVALUATION = Mode(training=False)


def make_task(shards: str, **arguments: Any) -> TextClassification:
    config = parse_config(sections(task={"arguments": {"max_length": 60, **arguments}}), where="test")
    task = load_task(config, ShardManifest.load(shards), shards)
    assert isinstance(task, TextClassification)
    return task


def tokenizer_of(shards: str) -> Tokenizer:
    entry = ShardManifest.load(shards).tokenizer
    assert entry is not None
    return Tokenizer.from_str(storage.read_bytes(entry.uri(shards)).decode())


def test_a_batch_is_padded_to_its_longest_text_rounded_up(text_shards: str) -> None:
    task, tokenizer = make_task(text_shards), tokenizer_of(text_shards)
    texts = ["ab", "abc def ghi jkl mno pqr", ""]
    expected = [tokenizer.encode(text).ids for text in texts]
    longest = max(map(len, expected))
    assert 8 < longest < 40
    prepared = [task.prepare({"text": text, "label": 1}, EVALUATION) for text in texts]
    batch = task.collate(prepared, EVALUATION)
    length = -(-longest // 8) * 8
    assert {name: (value.dtype, tuple(value.shape)) for name, value in batch.items()} == {
        "tokens": (torch.int64, (3, length)),
        "mask": (torch.int64, (3, length)),
        "label": (torch.int64, (3,)),
    }
    for row, ids in enumerate(expected):
        assert batch["tokens"][row].tolist() == ids + [task.padding] * (length - len(ids))
        assert batch["mask"][row].tolist() == [1] * len(ids) + [0] * (length - len(ids))
    assert task.collate(prepared[2:], EVALUATION)["tokens"].shape == (1, 8)
    assert task.count_units(batch) == sum(map(len, expected)), "padding is no token of a text"

    # What TensorBoard shows of the first batch: the tokens that the network got.
    assert task.first_slot(batch).splitlines() == [
        f"{CLASSES[1]}; {len(ids)} of {length}: {' '.join(tokenizer.id_to_token(token) for token in ids)}"
        for ids in expected
    ]


def test_a_long_text_keeps_its_beginning_and_the_special_tokens(text_shards: str) -> None:
    task, tokenizer = make_task(text_shards, max_length=20), tokenizer_of(text_shards)
    text = " ".join(text for text, _ in make_texts(4))
    (begin, *tokens, end) = task.prepare({"text": text, "label": 0}, EVALUATION)["tokens"]
    assert (begin, end) == (tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]"))
    assert tokens == tokenizer.encode(text, add_special_tokens=False).ids[:18]
    batch = task.collate([{"tokens": [begin, *tokens, end], "label": 0}], EVALUATION)
    assert batch["tokens"].shape == (1, 24) == (1, task.signature.dimensions["length"].max)


def test_an_empty_text_is_of_special_tokens_alone(text_shards: str) -> None:
    tokenizer = tokenizer_of(text_shards)
    assert make_task(text_shards).prepare({"text": "", "label": 0}, EVALUATION)["tokens"] == tokenizer.encode("").ids
    # Without special tokens it is one of padding, which counts as text: a network that looks at nothing has no answer.
    tokenizer.post_processor = processors.Sequence([])
    content = tokenizer.to_str().encode()
    assert Encoder(content, max_length=16, padding=7).encode("") == [7]


@pytest.mark.parametrize("kind", ["bytes", "words"])
def test_a_text_whose_end_is_not_looked_at_has_the_tokens_of_the_whole(text_shards: str, kind: str) -> None:
    tokenizer = tokenizer_of(text_shards) if kind == "bytes" else word_piece()
    encoder = Encoder(tokenizer.to_str().encode(), max_length=16, padding=0)
    tokenizer.enable_truncation(16)
    words = " ".join(text for text, _ in make_texts(40)).split()
    draw = random.Random(0)
    for _ in range(300):
        blank = draw.choice((" ", "\n", "      ", " " * 90))
        text = blank.join(draw.choices(words, k=draw.randrange(1, 120)))
        assert encoder.encode(text) == tokenizer.encode(text).ids


def test_a_word_that_is_cut_is_none_of_those_that_are_kept() -> None:
    """Of the first 256 characters, 14 tokens and the two special ones: the last one is a part of a word."""
    tokenizer = word_piece()
    encoder = Encoder(tokenizer.to_str().encode(), max_length=16, padding=0)
    tokenizer.enable_truncation(16)
    for blanks in range(150, 256):
        text = " " * blanks + "abcd " * 40
        assert encoder.encode(text) == tokenizer.encode(text).ids, blanks


def test_ten_million_characters_are_cut_at_once(text_shards: str) -> None:
    """The library alone takes half a minute."""
    of_bytes, of_words = (
        Encoder(one.to_str().encode(), max_length=60, padding=0) for one in (tokenizer_of(text_shards), word_piece())
    )
    for text in ("word " * 2_000_000, "x" * 10_000_000, " " * 10_000_000, "ä€😀" * 3_333_333):
        for encoder in (of_bytes, of_words):
            began = time.monotonic()
            assert 0 < len(encoder.encode(text)) <= 60
            assert time.monotonic() - began < 2, "a deadline that catches what reads all of it"


def slots_of(shards: str, ranks: int, num_workers: int = 0) -> dict[tuple[int, int], dict[str, Any]]:
    task, manifest = make_task(shards), ShardManifest.load(shards)
    found = {}
    for rank in range(ranks):
        data = SlotDataset(ShardReader(shards, manifest, "train", fields=tuple(task.fields)), task, seed=3)
        requests = slot_requests(
            0,
            order=FullOrder(len(data.reader), seed=3),
            epochs=1,
            global_batch_size=16,
            slot_size=3,
            rank=rank,
            ranks=ranks,
        )
        loader = make_loader(data, requests, num_workers=num_workers, prefetch_factor=2, pin_memory=False)
        for slot in read_slots(loader):
            found[slot.request.step, slot.request.slot] = {name: one.tolist() for name, one in slot.batch.items()}
    return found


def test_a_slot_is_the_same_at_any_number_of_ranks(text_shards: str) -> None:
    one = slots_of(text_shards, 1)
    assert len({len(slot["tokens"][0]) for slot in one.values()}) > 1, "slots have lengths of their own"
    assert one == slots_of(text_shards, 2) == slots_of(text_shards, 3)


@pytest.mark.timeout(120)
def test_loader_processes_make_the_same_of_it_whatever_was_tokenised_before(text_shards: str) -> None:
    """A tokenizer that has had threads leaves a fork without them: it is made anew in each process."""
    task = make_task(text_shards)
    task.prepare({"text": "before the fork", "label": 0}, EVALUATION)
    data = SlotDataset(ShardReader(text_shards, ShardManifest.load(text_shards), "train"), task, seed=3)
    order = FullOrder(len(data.reader), seed=3)
    requests = list(
        slot_requests(0, order=order, epochs=1, global_batch_size=16, slot_size=4, rank=0, ranks=1),
    )
    batches = [
        [
            slot.batch
            for slot in read_slots(make_loader(data, requests, num_workers=n, prefetch_factor=2, pin_memory=False))
        ]
        for n in (0, 2)
    ]
    for ours, theirs in zip(*batches, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert thread_environment(3)["TOKENIZERS_PARALLELISM"] == "false"


def test_a_copy_in_another_process_makes_its_own_tokenizer(text_shards: str) -> None:
    task = make_task(text_shards)
    before = task.prepare({"text": "some text", "label": 2}, EVALUATION)
    copy = pickle.loads(pickle.dumps(task))
    assert "_encoder" in vars(task) and "_encoder" not in vars(copy)
    assert copy.prepare({"text": "some text", "label": 2}, EVALUATION) == before


def test_loss_metrics_and_report_are_those_of_classes(text_shards: str) -> None:
    task = make_task(text_shards, class_weights={CLASSES[1]: 3.0})
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    labels = torch.tensor([0, 1])
    loss, count = task.loss(logits, {"label": labels}, EVALUATION)
    each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    assert (float(loss), count) == (pytest.approx(float(each[0] + 3 * each[1])), 2)
    assert set(task.metrics()) == {"accuracy", "f1_macro", "recall_macro"}
    report = task.report(torch.device("cpu"))
    report.add(logits, {"label": labels}, first_place=0)
    assert [one["right"] for one in report.details([("a", "0"), ("a", "1")])["classes"]] == [1, 1, 0]


def test_it_can_be_made_before_there_are_shards() -> None:
    """The checks before the first stage build network, example and signature of a tokenizer that nobody has trained."""
    from contracts.checked import Findings

    findings = Findings()
    task = plan_task(parse_config(sections(), where="test"), findings)
    assert findings.problems == [] and isinstance(task, TextClassification)
    example = task.example(2)
    length = task.signature.dimensions["length"]
    assert (length.min, length.opt, length.max, length.multiple) == (8, 64, 64, 8)
    assert example["tokens"].shape == (2, 64) and example["mask"].all()
    assert task.padding not in example["tokens"]
    assert task.build_model()(example["tokens"], example["mask"]).shape == (2, 2)
    findings = Findings()
    assert plan_task(parse_config(sections(sharding={"tokenizer": None}), where="test"), findings) is None
    assert "needs a tokenizer" in findings.problems[0].given and "sharding.tokenizer" in findings.problems[0].todo


@pytest.mark.parametrize(
    ("max_length", "range_"), [(16, (8, 16, 16)), (60, (8, 64, 64)), (130, (8, 128, 136)), (512, (8, 128, 512))]
)
def test_lengths_are_multiples_of_eight(text_shards: str, max_length: int, range_: tuple[int, ...]) -> None:
    length = make_task(text_shards, max_length=max_length).signature.dimensions["length"]
    assert (length.min, length.opt, length.max) == range_ and length.multiple == 8


@pytest.mark.parametrize("given", [15, "128", True, 1 << 20])
def test_a_length_that_is_none_is_refused(text_shards: str, given: object) -> None:
    with pytest.raises(ConfigError, match=r"task.arguments.max_length is .*\n.*a whole number from 16 to 131072"):
        make_task(text_shards, max_length=given)


@pytest.fixture
def copied(text_shards: str, tmp_path: Path) -> tuple[str, Path]:
    """A copy of the shards, and its tokenizer's file."""
    shutil.copytree(storage.local_path(text_shards), tmp_path / "copy")
    uri = storage.normalise(tmp_path / "copy")
    entry = ShardManifest.load(uri).tokenizer
    assert entry is not None
    return uri, tmp_path / "copy" / entry.name


def test_a_tokenizer_that_was_changed_or_is_gone_is_named(copied: tuple[str, Path]) -> None:
    uri, path = copied
    content = path.read_bytes()
    # Another token for "e", and still a tokenizer.
    path.write_bytes(content.replace(b'"e": ', b'"\xc3\xa9\xc3\xa9": ', 1))
    with pytest.raises(DataError, match=rf"{path.name} has other bytes than the manifest says"):
        make_task(uri).prepare({"text": "a", "label": 0}, EVALUATION)
    path.unlink()
    with pytest.raises(DataError, match=rf"{path.name} is missing"):
        make_task(uri).prepare({"text": "a", "label": 0}, EVALUATION)


def test_what_is_no_tokenizer_and_too_many_special_tokens_are_told() -> None:
    with pytest.raises(ValueError, match="it is no tokenizer"):
        Encoder(b"{}", max_length=16, padding=0)
    tokenizer = word_piece()
    special = [(f"[{number}]", 40 + number) for number in range(16)]
    tokenizer.add_special_tokens([name for name, _ in special])
    single = [*(name for name, _ in special), "$A"]
    special = [(name, tokenizer.token_to_id(name)) for name, _ in special]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    with pytest.raises(ValueError, match="adds 16 special tokens to a text, and 16 tokens are allowed"):
        Encoder(tokenizer.to_str().encode(), max_length=16, padding=0)


def test_what_the_file_says_of_padding_and_length_does_not_count(text_shards: str) -> None:
    tokenizer = tokenizer_of(text_shards)
    expected = tokenizer.encode("abc def").ids
    tokenizer.enable_padding(length=50)
    tokenizer.enable_truncation(4)
    assert Encoder(tokenizer.to_str().encode(), max_length=40, padding=0).encode("abc def") == expected
    assert np.array(expected).max() < 400


def test_special_tokens_are_not_read_from_a_text(text_shards: str) -> None:
    """Neither of the trained tokenizer nor of a file's: whoever writes a text cannot end it, or pad it."""
    trained = tokenizer_of(text_shards)
    for tokenizer in (trained, word_piece_with_specials(), unigram_with_specials()):
        encoder = Encoder(tokenizer.to_str().encode(), max_length=60, padding=0)
        special = {tokenizer.token_to_id(name) for name in ("[PAD]", "[CLS]", "[SEP]")}
        begin, *inside, end = encoder.encode("abc [SEP] [PAD] [CLS] def[SEP] Ж")
        assert {begin, end} < special
        assert len(inside) > 8 and not special & set(inside), inside
        if (unknown := tokenizer.token_to_id("[UNK]")) is not None:
            assert inside[-1] == unknown
        # As far as a long text is looked at, too.
        long = Encoder(tokenizer.to_str().encode(), max_length=16, padding=0).encode("[PAD] " * 1000)
        assert not special & set(long[1:-1])


def word_piece_with_specials() -> Tokenizer:
    """As transformers saves them: special tokens are added tokens, which the library looks for in texts."""
    tokenizer = word_piece()
    tokenizer.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])
    assert tokenizer.token_to_id("[SEP]") in tokenizer.encode("abc [SEP] def").ids[1:-1]
    return tokenizer


def unigram_with_specials() -> Tokenizer:
    """Its model has the special tokens as words, as those of SentencePiece have."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    pieces = [(name, 0.0) for name in names] + [(piece, -3.0) for piece in "abcdef"]
    tokenizer = Tokenizer(models.Unigram(pieces, 1, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(names)
    return tokenizer


def test_an_error_names_a_row_by_its_begin_where_samples_are_shown(text_shards: str) -> None:
    reader = ShardReader(text_shards, ShardManifest.load(text_shards), "train", fields=("text", "label"))
    assert re.fullmatch(r"shard train-\S+, sample [0-9a-f]{32}", reader.describe(3))
    reader.shows_rows = True
    begin = reader.sample(3)["text"][:20]
    assert re.fullmatch(
        rf"shard train-\S+, sample [0-9a-f]{{32}} \(row text '{re.escape(begin)}.*\)", reader.describe(3)
    )
