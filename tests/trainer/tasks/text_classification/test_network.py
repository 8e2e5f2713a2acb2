"""Networks of texts: architectures of transformers, functions of the user's, and pretrained ones."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.checked import Findings
from contracts.config import ModelSection
from contracts.config.load import parse_config
from contracts.errors import ModelError
from tests.conftest import OWN_CODE
from tests.trainer.one_rank import one_rank, train
from tests.trainer.tasks.text_classification.texts import BERT, CLASSES, make_shards, make_texts, sections, word_piece
from trainer.check.__main__ import check_network_side
from trainer.model.build import parameters_sha256
from trainer.tasks.text_classification.network import Text, build_network

TEXT = Text(vocabulary=300, padding=3, max_length=64)
SMALL: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "roberta": {**BERT, "max_position_embeddings": 68},
    "distilbert": {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 32},
    "deberta-v2": {**BERT, "num_hidden_layers": 1},
    "modernbert": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2},
}


def build(architecture: str, arguments: dict[str, Any] | None = None, text: Text = TEXT) -> nn.Module:
    section = ModelSection(architecture=architecture, arguments=SMALL.get(architecture, {}) | (arguments or {}))
    return build_network(section, num_classes=4, text=text)


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
    assert torch.allclose(longer, logits, atol=1e-5), "up to the last place"


def test_the_seed_decides_the_weights() -> None:
    def digest(seed: int) -> str:
        torch.manual_seed(seed)
        return parameters_sha256(build("bert").state_dict())

    assert digest(1) == digest(1) != digest(2)


@pytest.mark.parametrize(
    ("architecture", "arguments", "text", "given", "todo"),
    [
        ("resnet", {}, TEXT, "'resnet' is unknown", ""),
        ("distilbart", {}, TEXT, "'distilbart' is unknown", "did you mean distilbert?"),
        ("bert", {"hiden_size": 8}, TEXT, "model.arguments.hiden_size is no field", "did you mean hidden_size?"),
        ("bert", {"vocab_size": 299}, TEXT, "bert has 299 tokens, and the tokenizer 300", "at least 300"),
        (
            "bert",
            {},
            Text(300, 3, 72),
            "bert has 64 places, and texts up to 72",
            "max_position_embeddings to at least 72",
        ),
        ("gpt2", {"n_positions": 40}, TEXT, "gpt2 has 40 places", "set model.arguments.n_positions to at least 64"),
        ("gpt2", {"n_positions": 44}, TEXT, "gpt2 has 44 places", "task.arguments.max_length to at most 40"),
        # The places of padding and before are not a text's, and the tokenizer pads with 3.
        ("roberta", {"max_position_embeddings": 67}, TEXT, "the first 4 of which are no text's", "at least 68"),
        ("texts_network:of_transformers", {"places": 32}, TEXT, "has 32 places", "max_length to at most 32"),
        ("texts_network:of_images", {}, TEXT, "returned a str", "return the module itself"),
    ],
)
def test_what_does_not_fit_is_named(
    architecture: str, arguments: dict[str, Any], text: Text, given: str, todo: str
) -> None:
    with pytest.raises(ModelError, match=re.escape(given)) as caught:
        build(architecture, arguments, text)
    assert todo in caught.value.todo and caught.value.allowed
    if architecture == "resnet":
        assert "sequence-classification head (bert, distilbert, " in caught.value.allowed


def test_a_larger_vocabulary_is_kept() -> None:
    network: Any = build("bert", {"vocab_size": 320})
    assert network.get_input_embeddings().num_embeddings == 320


def test_a_function_gets_what_a_network_must_be_able_to_take() -> None:
    plain = build("texts_network:mean_of_tokens", {"width": 8})
    assert isinstance(plain.tokens, nn.Embedding)
    assert (tuple(plain.tokens.weight.shape), plain.tokens.padding_idx) == ((300, 8), 3)
    tokens = torch.arange(16).repeat(2, 1)
    assert plain(tokens, torch.ones_like(tokens)).shape == (2, 4)
    of_transformers = build("texts_network:of_transformers", {"places": 64})
    assert of_transformers(tokens, torch.ones_like(tokens)).shape == (2, 4), "by name, and its logits alone"


# --- pretrained -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as transformers saves it: a classifier of other classes, one of them ours, and its tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("pretrained")
    tokenizer = word_piece()
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    torch.manual_seed(5)
    labels = {0: "politics", 1: CLASSES[1]}
    config = BertConfig(vocab_size=tokenizer.get_vocab_size() + 5, pad_token_id=0, id2label=labels, **BERT)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def with_pretrained(folder: Path, **model: Any) -> dict[str, Any]:
    tokens = word_piece().get_vocab_size() + 5
    arguments = {**BERT, "vocab_size": tokens, **model.pop("arguments", {})}
    return sections(
        model={"weights": str(folder), "arguments": arguments, **model},
        sharding={"tokenizer": {"file": str(folder)}},
        train={"epochs": 1},
    )


def check(values: dict[str, Any]) -> Findings:
    findings = Findings()
    check_network_side(parse_config(values, where="test"), findings)
    return findings


def test_a_pretrained_network_comes_with_its_tokenizer(pretrained: Path, tmp_path: Path) -> None:
    values = with_pretrained(pretrained)
    answer = check(values)
    assert (answer.problems, answer.unchecked) == ([], [])
    shards = make_shards(tmp_path, make_texts(60), tokenizer=values["sharding"]["tokenizer"])
    entry = ShardManifest.load(shards).tokenizer
    assert entry is not None and (entry.tokens, entry.padding, entry.trained) == (
        word_piece().get_vocab_size(),
        0,
        False,
    )
    values["model"]["weights"] = storage.normalise(pretrained)
    with one_rank() as rank:
        initial = train(rank, tmp_path / "train", shards, values).initial
    assert initial is not None
    assert (initial.missing, initial.unexpected, initial.other_shape) == ([], [], [])
    assert initial.classes_taken == [CLASSES[1]] and initial.head == ["classifier.bias", "classifier.weight"]


def test_weights_of_another_tokenizer_or_architecture_are_refused_before_anything_runs(pretrained: Path) -> None:
    answer = check(with_pretrained(pretrained, arguments={"vocab_size": 900, "hidden_size": 16}))
    (problem,) = answer.problems
    assert "of another shape" in problem.given and "'vocab_size'" in problem.todo and "'hidden_size'" in problem.todo
    answer = check(with_pretrained(pretrained, architecture="electra"))
    assert "set model.architecture=bert" in answer.problems[0].todo


def test_of_a_tokenizer_that_is_still_to_be_trained_the_size_is_not_known(pretrained: Path) -> None:
    values = with_pretrained(pretrained) | {"sharding": sections()["sharding"]}
    values["model"] = {**values["model"], "arguments": BERT}
    answer = check(values)
    assert answer.problems == []
    assert any("the tokenizer's size is not known before sharding" in one for one in answer.unchecked)


def test_own_networks_are_checked_with_their_code(tmp_path: Path) -> None:
    values = sections(model={"architecture": "texts_network:mean_of_tokens", "arguments": {"width": 8}})
    values["code"] = {"path": str(OWN_CODE)}
    assert check(values).problems == []
    values["model"] = {"architecture": "texts_network:of_transformers", "arguments": {"places": 8}}
    assert "has 8 places" in str(check(values).problems)
