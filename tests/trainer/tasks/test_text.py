"""Text classification from a text to a batch: tokens, lengths, networks, weights, and what is refused."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, processors
from torch import nn

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.checked import Findings
from contracts.config import ModelSection
from contracts.config.load import parse_config
from contracts.errors import DataError, ModelError
from contracts.process import thread_environment
from tests.trainer.one_rank import one_rank, train
from tests.trainer.tasks.texts import BERT, CLASSES, make_shards, make_texts, sections, word_piece
from trainer.check.__main__ import check_network_side
from trainer.check.network import plan_task
from trainer.data.cursor import slot_requests
from trainer.data.loader import SlotDataset, make_loader, read_slots
from trainer.data.order import FullOrder
from trainer.data.reader import ShardReader
from trainer.predict.program import encode, open_tokenizer
from trainer.tasks.task import Mode, TaskContext
from trainer.tasks.text import MULTIPLE, UNKNOWN_CRC32C, TextClassification, build_network
from trainer.weights.source import WeightSource, find_source
from trainer.weights.start import StartWeights, start_from

EVALUATION = Mode(training=False)


def make_task(shards: str, **arguments: Any) -> TextClassification:
    context = TaskContext(parse_config(sections(), where="test"), ShardManifest.load(shards), shards)
    return TextClassification(context, **{"max_length": 60, **arguments})


def tokenizer_of(shards: str) -> Tokenizer:
    entry = ShardManifest.load(shards).tokenizer
    assert entry is not None
    return Tokenizer.from_str(storage.read_bytes(entry.uri(shards)).decode())


def ids_of(tokenizer: Tokenizer, text: str, max_length: int = 60) -> list[int]:
    """Return the tokens that the task makes of a text, without padding."""
    made = open_tokenizer(tokenizer.to_str(), max_length, 0, MULTIPLE)
    tokens, mask = encode(made, [text])
    ids: list[int] = tokens[0, : mask.sum()].tolist()
    return ids


# --- tokens and lengths -----------------------------------------------------------------------------------------------


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
    assert "label" not in task.collate([task.prepare({"text": "ab"}, EVALUATION)], EVALUATION), "as predict has them"
    assert task.count_units(batch) == sum(map(len, expected)), "padding is no token of a text"
    # What TensorBoard shows of the first batch: the tokens that the network got.
    assert task.first_samples(batch).splitlines() == [
        f"{CLASSES[1]}; {len(ids)} of {length}: {' '.join(tokenizer.id_to_token(token) for token in ids)}"
        for ids in expected
    ]


def test_a_long_text_keeps_its_beginning_and_the_special_tokens(text_shards: str) -> None:
    task, tokenizer = make_task(text_shards, max_length=20), tokenizer_of(text_shards)
    text = " ".join(text for text, _ in make_texts(4))
    batch = task.collate([{"text": text, "label": 0}], EVALUATION)
    assert batch["tokens"].shape == (1, 24) == (1, task.signature.dimensions["length"].max)
    (begin, *tokens, end) = batch["tokens"][0, :20].tolist()
    assert (begin, end) == (tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]"))
    assert tokens == tokenizer.encode(text, add_special_tokens=False).ids[:18]


def test_a_text_without_tokens_is_one_of_padding(text_shards: str) -> None:
    """A network that looks at nothing returns what is no number."""
    tokenizer = tokenizer_of(text_shards)
    assert ids_of(tokenizer, "") == tokenizer.encode("").ids
    tokenizer.post_processor = processors.Sequence([])
    made = open_tokenizer(tokenizer.to_str(), 16, 7, MULTIPLE)
    for texts, length in ((["", ""], 8), (["", "abc def ghi jkl mno"], 16)):
        tokens, mask = encode(made, texts)
        assert tokens.shape == (2, length)
        assert tokens[0].tolist() == [7] * length and mask[0].tolist() == [1] + [0] * (length - 1)


def test_special_tokens_are_not_read_from_a_text(text_shards: str) -> None:
    """Whoever writes a text cannot end it, or pad it."""
    saved = word_piece()
    # As transformers saves them: special tokens are added tokens, which the library looks for in texts.
    saved.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])
    assert saved.token_to_id("[SEP]") in saved.encode("abc [SEP] def").ids[1:-1]
    for tokenizer in (tokenizer_of(text_shards), saved):
        special = {tokenizer.token_to_id(name) for name in ("[PAD]", "[CLS]", "[SEP]")}
        begin, *inside, end = ids_of(tokenizer, "abc [SEP] [PAD] [CLS] def[SEP] Ж")
        assert {begin, end} < special
        assert len(inside) > 8 and not special & set(inside), inside


# --- loaders ----------------------------------------------------------------------------------------------------------


def slots_of(task: TextClassification, shards: str, ranks: int, num_workers: int = 0) -> dict[Any, Any]:
    slots = {}
    for rank in range(ranks):
        reader = ShardReader(shards, ShardManifest.load(shards), "train", fields=tuple(task.fields))
        data, order = SlotDataset(reader, task, seed=3), FullOrder(len(reader), seed=3)
        requests = slot_requests(0, order=order, epochs=1, global_batch_size=16, slot_size=3, rank=rank, ranks=ranks)
        loader = make_loader(data, requests, num_workers=num_workers, prefetch_factor=2, pin_memory=False)
        for slot in read_slots(loader):
            values = {name: tensor.tolist() for name, tensor in slot.batch.items()}
            slots[slot.request.step, slot.request.slot] = values
    return slots


@pytest.mark.timeout(120)
def test_a_slot_is_the_same_at_any_number_of_ranks_and_loader_processes(text_shards: str) -> None:
    """A tokenizer that has had threads leaves a fork without them: it is made anew in each process."""
    task = make_task(text_shards)
    one = slots_of(task, text_shards, 1)
    assert len({len(slot["tokens"][0]) for slot in one.values()}) > 1, "slots have lengths of their own"
    assert one == slots_of(task, text_shards, 2) == slots_of(task, text_shards, 3)
    assert one == slots_of(task, text_shards, 1, num_workers=2)
    assert thread_environment(3)["TOKENIZERS_PARALLELISM"] == "false"


# --- what is refused --------------------------------------------------------------------------------------------------


def test_it_can_be_made_before_there_are_shards() -> None:
    """The checks before the first stage build network, example and signature of a tokenizer that nobody has trained."""
    findings = Findings()
    task = plan_task(parse_config(sections(), where="test"), findings)
    assert findings.problems == [] and isinstance(task, TextClassification)
    example = task.example(2)
    assert example["tokens"].shape == (2, 64) and example["mask"].all() and task.padding not in example["tokens"]
    assert task.build_model()(example["tokens"], example["mask"]).shape == (2, 2)
    findings = Findings()
    assert plan_task(parse_config(sections(sharding={"tokenizer": None}), where="test"), findings) is None
    assert "needs a tokenizer" in findings.problems[0].given and "sharding.tokenizer" in findings.problems[0].todo


def test_a_tokenizer_that_was_changed_or_is_gone_is_named(text_shards: str, tmp_path: Path) -> None:
    shutil.copytree(storage.local_path(text_shards), tmp_path / "copy")
    uri = storage.normalise(tmp_path / "copy")
    entry = ShardManifest.load(uri).tokenizer
    assert entry is not None
    path = tmp_path / "copy" / entry.name
    # Another token for "e", and still a tokenizer.
    path.write_bytes(path.read_bytes().replace(b'"e": ', b'"\xc3\xa9\xc3\xa9": ', 1))
    for message in ("differs from the manifest's checksum", "is missing"):
        with pytest.raises(DataError, match=f"{path.name} {message}"):
            make_task(uri).collate([{"text": "a", "label": 0}], EVALUATION)
        path.unlink(missing_ok=True)


def test_as_many_special_tokens_as_a_text_may_have_are_refused(text_shards: str, tmp_path: Path) -> None:
    tokenizer = word_piece()
    names = [f"[{number}]" for number in range(16)]
    tokenizer.add_special_tokens(names)
    special = [(name, tokenizer.token_to_id(name)) for name in names]
    tokenizer.post_processor = processors.TemplateProcessing(single=[*names, "$A"], special_tokens=special)
    manifest, content = ShardManifest.load(text_shards), tokenizer.to_str().encode()
    assert manifest.tokenizer is not None
    (tmp_path / manifest.tokenizer.name).write_bytes(content)
    entry = manifest.tokenizer.model_copy(update={"crc32c": storage.crc32c(content)})
    shards = manifest.model_copy(update={"tokenizer": entry})
    context = TaskContext(parse_config(sections(), where="test"), shards, storage.normalise(tmp_path))
    task = TextClassification(context, max_length=16)
    with pytest.raises(DataError, match="adds 16 special tokens to a text, and 16 tokens are allowed") as caught:
        task.collate([{"text": "a", "label": 0}], EVALUATION)
    assert "task.arguments.max_length to at least 17" in caught.value.todo


def test_weights_of_another_tokenizer_are_refused_by_name(text_shards: str) -> None:
    task = make_task(text_shards)
    for crc32c in (task.document()["tokenizer"], None):
        task.check_weights(WeightSource("file:///there", "checkpoint", (), tokenizer_crc32c=crc32c))
    for uri, todo in (("file:///there/tokenizer.json", "set sharding.tokenizer.file=/there/tokenizer.json"), ("", "")):
        source = WeightSource("file:///there", "export", (), tokenizer_crc32c="12345678", tokenizer_uri=uri)
        with pytest.raises(ModelError, match=r"were trained with the tokenizer .* \(crc32c 12345678\)") as caught:
            task.check_weights(source)
        assert todo in caught.value.todo and "shard again" in caught.value.todo
    task._entry = task._entry.model_copy(update={"crc32c": UNKNOWN_CRC32C})
    task.check_weights(source)


# --- networks ---------------------------------------------------------------------------------------------------------

SIZES = {"vocabulary": 300, "padding": 3, "max_length": 64}
SMALL: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "roberta": {**BERT, "max_position_embeddings": 68},
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2},
}


def build(architecture: str, arguments: dict[str, Any] | None = None, **sizes: int) -> nn.Module:
    section = ModelSection(architecture=architecture, arguments=SMALL.get(architecture, {}) | (arguments or {}))
    return build_network(section, num_classes=4, **{**SIZES, **sizes})


@pytest.mark.parametrize("architecture", SMALL)
def test_architectures_map_tokens_to_logits_whatever_the_padding_holds(architecture: str) -> None:
    network: Any = build(architecture).eval()
    assert (network.config.vocab_size, network.config.pad_token_id) == (300, 3)
    with torch.no_grad():
        for parameter in network.parameters():
            # Drawn so small that all logits are alike.
            parameter.mul_(4)
    tokens = torch.arange(10, 26).repeat(3, 1)
    mask = torch.ones_like(tokens)
    tokens[1, 8:], mask[1, 8:] = 3, 0
    with torch.no_grad():
        logits = network(tokens, mask)
        alone = network(tokens[1:2, :8], mask[1:2, :8])
        longer = network(*(nn.functional.pad(one, (0, 48), value=fill) for one, fill in ((tokens, 3), (mask, 0))))
    assert logits.shape == (3, 4) and torch.equal(logits[0], logits[2])
    assert not torch.allclose(logits[0], logits[1], atol=1e-4)
    assert torch.allclose(alone, logits[1:2], atol=1e-5), "what is padded is not seen"
    assert torch.allclose(longer, logits, atol=1e-5), "up to the last position"


@pytest.mark.parametrize(
    ("architecture", "arguments", "max_length", "given", "todo"),
    [
        ("bert", {"vocab_size": 299}, 64, "bert has 299 tokens, and the tokenizer 300", "at least 300"),
        ("bert", {}, 72, "bert has 64 positions, and texts up to 72", "max_position_embeddings to at least 72"),
        # The positions of padding and before are not a text's, and the tokenizer pads with 3.
        ("roberta", {"max_position_embeddings": 67}, 64, "the first 4 of which are reserved", "at least 68"),
        ("texts_network:of_transformers", {"places": 32}, 64, "has 32 positions", "max_length to at most 32"),
    ],
)
def test_what_does_not_fit_is_named(
    architecture: str, arguments: dict[str, Any], max_length: int, given: str, todo: str
) -> None:
    with pytest.raises(ModelError, match=re.escape(given)) as caught:
        build(architecture, arguments, max_length=max_length)
    assert todo in caught.value.todo and caught.value.allowed


def test_a_function_gets_what_a_network_must_be_able_to_take() -> None:
    plain: Any = build("texts_network:mean_of_tokens", {"width": 8})
    assert (tuple(plain.tokens.weight.shape), plain.tokens.padding_idx) == ((300, 8), 3)
    tokens = torch.arange(16).repeat(2, 1)
    assert plain(tokens, torch.ones_like(tokens)).shape == (2, 4)
    of_transformers = build("texts_network:of_transformers", {"places": 64})
    assert of_transformers(tokens, torch.ones_like(tokens)).shape == (2, 4), "by name, and its logits alone"


# --- pretrained -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder as transformers saves it, with its tokenizer, and the network in it; of the classes of the shards."""
    from transformers import BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("pretrained")
    tokenizer = word_piece()
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    torch.manual_seed(5)
    labels = dict(enumerate(CLASSES))
    config = BertConfig(vocab_size=tokenizer.get_vocab_size() + 5, pad_token_id=0, id2label=labels, **BERT)
    network: Any = BertForSequenceClassification(config).eval()
    network.save_pretrained(folder)
    return folder, network


def with_pretrained(folder: Path, **model: Any) -> dict[str, Any]:
    arguments = {**BERT, "vocab_size": word_piece().get_vocab_size() + 5, **model.pop("arguments", {})}
    return sections(
        model={"weights": str(folder), "arguments": arguments, **model},
        sharding={"tokenizer": {"file": str(folder)}},
        train={"epochs": 1},
    )


def check(values: dict[str, Any]) -> Findings:
    findings = Findings()
    check_network_side(parse_config(values, where="test"), findings)
    return findings


def test_a_pretrained_network_comes_with_its_tokenizer(pretrained: tuple[Path, Any], tmp_path: Path) -> None:
    folder, theirs = pretrained
    values = with_pretrained(folder)
    answer = check(values)
    assert (answer.problems, answer.unchecked) == ([], [])
    shards = make_shards(tmp_path, make_texts(60), tokenizer=values["sharding"]["tokenizer"])
    entry = ShardManifest.load(shards).tokenizer
    assert entry is not None and (entry.tokens, entry.padding) == (word_piece().get_vocab_size(), 0)
    values["model"]["weights"] = storage.normalise(folder)
    config = parse_config(values, where="test")
    task = TextClassification(TaskContext(config, ShardManifest.load(shards), shards), max_length=60)
    ours = task.build_model().eval()
    uri = storage.normalise(folder)
    start_from(ours, StartWeights(uri, find_source(uri).sha256()), task)
    tokens = torch.arange(5, 21).repeat(2, 1)
    with torch.no_grad():
        expected = theirs(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
        torch.testing.assert_close(ours(tokens, torch.ones_like(tokens)), expected, rtol=0, atol=1e-6)
    with one_rank() as rank:
        initial = train(rank, tmp_path / "train", shards, values).initial
    assert initial is not None and initial.head == ["classifier.weight", "classifier.bias"] and initial.head_taken
    assert (initial.missing, initial.unexpected, initial.other_shape) == ([], [], [])
