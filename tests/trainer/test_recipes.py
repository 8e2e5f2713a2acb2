"""The recipes of docs/fine-tuning.md, as they stand there, on a small network and small shards."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from contracts import storage
from tests.conftest import small_config
from tests.trainer.one_rank import train
from trainer.checkpoint.loading import load_model_state
from trainer.parallel.process_group import Rank

PAGE = Path(__file__).parents[2] / "docs" / "fine-tuning.md"
NAMES = ("the head alone", "the whole network")
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "patch_size": 8,
}


def recipes() -> dict[str, dict[str, Any]]:
    """Return the YAML blocks of the page, in their order."""
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)]
    return dict(zip(NAMES, blocks, strict=True))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that transformers has saved: a small ViT, with one of our classes and two others."""
    from transformers import ViTConfig, ViTForImageClassification

    folder = tmp_path_factory.mktemp("pretrained")
    torch.manual_seed(1)
    config = ViTConfig(**SMALL, image_size=16, id2label={0: "red", 1: "pink", 2: "grey"})
    ViTForImageClassification(config).save_pretrained(folder)
    return folder


def configured(recipe: dict[str, Any], pretrained: Path) -> dict[str, Any]:
    """Return the recipe for the small shards, in two epochs; everything else is the page's."""
    # The second recipe's weights are those of the run before: here the same as the first's.
    recipe["model"] |= {"arguments": SMALL, "weights": storage.normalise(pretrained)}
    recipe["train"] |= {"epochs": 2, "global_batch_size": 16}
    return small_config(**recipe)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_trains(rank: Rank, name: str, small_shards: str, pretrained: Path, tmp_path: Path) -> None:
    config = configured(recipes()[name], pretrained)
    result = train(rank, tmp_path, small_shards, config)
    assert result.initial is not None and result.initial.matched_fraction == 1.0
    assert not result.initial.head_taken, "one of three classes is another"
    from transformers import ViTForImageClassification

    state = load_model_state(storage.normalise(tmp_path / "out"), result)
    theirs = ViTForImageClassification.from_pretrained(pretrained, local_files_only=True).state_dict()
    body = [torch.equal(state[key], theirs[key]) for key in theirs if key.startswith("vit.")]
    assert all(body) if name == "the head alone" else not any(body)
