"""The recipes of docs/fine-tuning.md, as they stand there, on a small network."""

import re
from pathlib import Path

import yaml

from contracts.config.load import parse_config
from tests.conftest import small_config
from tests.trainer.tasks.for_tests import image_network
from trainer.check.network import check_patterns

PAGE = Path(__file__).parents[2] / "docs" / "fine-tuning.md"
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "patch_size": 8,
}


def test_keys_and_patterns_of_the_recipes_are_right() -> None:
    recipes = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)]
    assert len(recipes) == 2
    for recipe in recipes:
        recipe["model"]["arguments"] = SMALL
        config = parse_config(small_config(**recipe), where=str(PAGE))
        check_patterns(image_network(config.model), config)
